//! The error type of the crate.
//!
//! Invariant: every message names the file, field or tensor at fault and says what is expected
//! instead.

use std::path::{Path, PathBuf};

/// An error of opening, running or saving a policy.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A file is missing, unreadable or malformed. The reason says what the folder needs.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with the file, and what is needed.
        reason: String,
    },
    /// A setting has an unsupported value. The remedy is to change the named field.
    #[error("{field}: {reason}")]
    Setting {
        /// The field, e.g. `config.json: hidden_act`.
        field: String,
        /// The value found and the values supported.
        reason: String,
    },
    /// A weight is missing, or its shape differs from the config. The config and the weights must
    /// belong to one model.
    #[error("tensor {tensor}: {reason}")]
    Tensor {
        /// The tensor's Hugging Face name.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Text cannot be tokenized, or a chat cannot be rendered. The message names the template or
    /// the tokenizer.
    #[error("{0}")]
    Text(String),
    /// The arguments of a call do not fit each other, e.g. a row has more tokens than the KV cache
    /// holds, or bytes in memory are not of the format that the call reads or writes.
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
    /// Builds a [`PolicyError::File`].
    pub fn file(path: impl AsRef<Path>, reason: impl ToString) -> Self {
        Self::File {
            path: path.as_ref().to_path_buf(),
            reason: reason.to_string(),
        }
    }

    /// Builds a [`PolicyError::Setting`].
    pub fn setting(field: impl ToString, reason: impl ToString) -> Self {
        Self::Setting {
            field: field.to_string(),
            reason: reason.to_string(),
        }
    }

    /// Builds a [`PolicyError::Tensor`].
    pub fn tensor(tensor: impl ToString, reason: impl ToString) -> Self {
        Self::Tensor {
            tensor: tensor.to_string(),
            reason: reason.to_string(),
        }
    }
}

/// The result type of this crate.
pub type Result<T, E = PolicyError> = std::result::Result<T, E>;
