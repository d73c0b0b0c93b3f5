//! The one error of the crate.
//!
//! Invariant: every message names the file, field or tensor at fault and what is expected instead.

use std::path::{Path, PathBuf};

use crate::disk::DiskError;

/// What can go wrong when a policy is opened, run or saved.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A file is missing, unreadable or not what its name says. Remedy: the reason tells what the folder needs.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it and what is needed.
        reason: String,
    },
    /// A setting is outside of what is supported. Remedy: change the named field.
    #[error("{field}: {reason}")]
    Setting {
        /// The field, e.g. `config.json: hidden_act`.
        field: String,
        /// The value met and the values supported.
        reason: String,
    },
    /// A weight is missing or has another shape than the config says. Remedy: use the config and weights of one model.
    #[error("tensor {tensor}: {reason}")]
    Tensor {
        /// The tensor's Hugging Face name.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Text could not be tokenized or a chat could not be rendered. Remedy: the reason names the template or tokenizer.
    #[error("{0}")]
    Text(String),
    /// A caller asked for what the arguments do not allow (e.g. more tokens than the KV cache holds).
    #[error("{0}")]
    Usage(String),
    /// An error of the tensor library.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers hand over errors and fresh strings"
)]
impl PolicyError {
    /// A [`PolicyError::File`].
    pub fn file(path: impl AsRef<Path>, reason: impl ToString) -> Self {
        Self::File {
            path: path.as_ref().to_path_buf(),
            reason: reason.to_string(),
        }
    }

    /// A [`PolicyError::Setting`].
    pub fn setting(field: impl ToString, reason: impl ToString) -> Self {
        Self::Setting {
            field: field.to_string(),
            reason: reason.to_string(),
        }
    }

    /// A [`PolicyError::Tensor`].
    pub fn tensor(tensor: impl ToString, reason: impl ToString) -> Self {
        Self::Tensor {
            tensor: tensor.to_string(),
            reason: reason.to_string(),
        }
    }
}

impl From<DiskError> for PolicyError {
    fn from(error: DiskError) -> Self {
        let DiskError {
            action,
            path,
            source,
        } = error;
        Self::file(path, format!("cannot {action} it: {source}"))
    }
}

/// Results of this crate.
pub type Result<T, E = PolicyError> = std::result::Result<T, E>;
