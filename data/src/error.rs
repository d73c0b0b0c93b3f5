//! The errors of this crate. Each message of a [`DataError`] names the file and the remedy.

use std::path::{Path, PathBuf};

/// An error about data. Bad SQL inside a question is not an error: the question is left out and
/// reported.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file operation failed.
    #[error("{}: cannot {action}: {cause}{}", path.display(), io_remedy(cause))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operation, as an infinitive: "read", "write".
        action: &'static str,
        /// The cause. It is part of the message, so it is not a source as well.
        cause: std::io::Error,
    },
    /// A file has the wrong content.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The field or index, the problem and the remedy.
        problem: String,
    },
    /// What the caller asked for does not exist or cannot be made.
    #[error("{0}")]
    Request(String),
    /// SQLite failed to open, read or write a database.
    #[error("{}: SQLite: {cause}{}", path.display(), sqlite_remedy(cause))]
    Sqlite {
        /// The database file.
        path: PathBuf,
        /// The cause. It is part of the message, so it is not a source as well.
        cause: rusqlite::Error,
    },
    /// The caller stopped the work, and nothing was written.
    #[error("stopped")]
    Stopped,
}

/// Why a query has no result, or why the record with it cannot become a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: String,
    /// Whether the query or the record is wrong: see [`crate::LeftOut`].
    pub(crate) is_wrong: bool,
}

impl Refused {
    pub(crate) fn wrong(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            is_wrong: true,
        }
    }

    pub(crate) fn unanswered(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            is_wrong: false,
        }
    }
}

impl DataError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| Self::Io {
            path: path.to_owned(),
            action,
            cause,
        }
    }

    pub(crate) fn sqlite(path: &Path) -> impl FnOnce(rusqlite::Error) -> Self {
        move |cause| Self::Sqlite {
            path: path.to_owned(),
            cause,
        }
    }

    /// Names `to` in place of the folder `from`, which the caller makes and removes.
    pub(crate) fn moved(mut self, from: &Path, to: &Path) -> Self {
        if let Self::Io { path, .. } | Self::Format { path, .. } | Self::Sqlite { path, .. } =
            &mut self
            && let Ok(rest) = path.strip_prefix(from)
        {
            *path = to.join(rest);
        }
        self
    }

    pub(crate) fn format(path: &Path, problem: impl Into<String>) -> Self {
        Self::Format {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }
}

fn io_remedy(cause: &std::io::Error) -> &'static str {
    match cause.kind() {
        std::io::ErrorKind::NotFound => "; check the path",
        std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => {
            "; a file is in the way, choose another folder"
        }
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            "; choose a folder that you may use"
        }
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "; free space on this disk or choose another folder"
        }
        std::io::ErrorKind::FileTooLarge => "; raise the limit of a file's size (ulimit -f)",
        _ => "",
    }
}

fn sqlite_remedy(cause: &rusqlite::Error) -> &'static str {
    match cause.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => "; free space on this disk or choose another folder",
        // SQLite does not say that a file may not grow.
        Some(rusqlite::ErrorCode::SystemIoFailure) => {
            "; free space on this disk, raise the limit of a file's size (ulimit -f), or choose \
             another folder"
        }
        Some(rusqlite::ErrorCode::CannotOpen | rusqlite::ErrorCode::ReadOnly) => {
            "; choose a folder that you may use"
        }
        _ => "",
    }
}
