//! The error of a server that cannot start.

use proto::TransportError;

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

impl From<TransportError> for SettingError {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::File {
                setting,
                path,
                reason,
            } => Self {
                field: setting,
                remedy: format!("{}: {reason}", path.display()),
            },
            TransportError::Address { .. } => Self {
                field: "server",
                remedy: error.to_string(),
            },
        }
    }
}
