//! The error of a server that cannot start.

/// A setting of the server is out of range, contradicts another, or names an unusable file.
#[derive(Debug, thiserror::Error)]
#[error("env-node setting {field} cannot be used: {remedy}")]
pub struct SettingError {
    /// The setting.
    pub field: &'static str,
    /// What is wrong, unless the field shows it, and what to give.
    pub remedy: String,
}
