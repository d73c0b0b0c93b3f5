//! The error type of the crate.
//!
//! Invariant: every message names the file, field or tensor at fault and says what is expected
//! instead.

use std::io;
use std::path::{Path, PathBuf};

use crate::durable;

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
    /// A file or folder cannot be written. Remedy: check the path, its permissions and the room on
    /// the disk.
    #[error("{path}: cannot be written: {source}{}", remedy(source), path = path.display())]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
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

    /// Returns a function that builds a [`PolicyError::Unwritable`].
    pub(crate) fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Unwritable {
            path: path.to_path_buf(),
            source,
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

/// Returns what to do about a failure of the disk, if that is clear.
fn remedy(cause: &io::Error) -> &'static str {
    match durable::is_full(cause) {
        true => "; free space on this disk",
        false => "",
    }
}

/// The result type of this crate.
pub type Result<T, E = PolicyError> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_has_a_remedy() {
        let failed = |kind: io::ErrorKind| {
            let failed = PolicyError::unwritable(Path::new("file"))(kind.into());
            failed.to_string()
        };
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let full = failed(kind);
            assert!(full.starts_with("file: cannot be written: "), "{full}");
            assert!(full.ends_with("; free space on this disk"), "{full}");
        }
        assert!(!failed(io::ErrorKind::NotFound).contains("space"));
    }
}
