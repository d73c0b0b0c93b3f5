//! The error of a server that cannot start.

use proto::FileError;

/// A setting of the server is out of range, contradicts another, or names an unusable file.
#[derive(Debug, thiserror::Error)]
#[error("env-node setting {field} cannot be used: {remedy}")]
pub struct SettingError {
    /// The setting.
    pub field: &'static str,
    /// What is wrong, unless the field shows it, and what to give.
    pub remedy: String,
}

impl SettingError {
    /// Refuses a setting where `holds` is false.
    pub(crate) fn unless(
        holds: bool,
        field: &'static str,
        remedy: impl Into<String>,
    ) -> Result<(), Self> {
        match holds {
            true => Ok(()),
            false => Err(Self {
                field,
                remedy: remedy.into(),
            }),
        }
    }
}

impl From<FileError> for SettingError {
    fn from(error: FileError) -> Self {
        Self {
            field: error.setting,
            remedy: format!("{}: {}", error.path.display(), error.reason),
        }
    }
}
