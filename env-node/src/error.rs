//! What keeps a server from starting.

/// A setting of the server is out of range, contradicts another or names a file that is no use.
#[derive(Debug, thiserror::Error)]
#[error("env-node setting {field} cannot be used: {remedy}")]
pub struct SettingError {
    /// The setting.
    pub field: &'static str,
    /// What is wrong, where the field does not say it, and what to give.
    pub remedy: String,
}
