//! The one error of this crate. Each variant names the file and what to do about it.

use std::path::{Path, PathBuf};

/// What can go wrong with data. Bad SQL inside a question is not an error: the question is left out and reported.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file system refused. Remedy: the path's existence, its permissions, or the space on its disk.
    #[error("{}: cannot {action}: {source}{}", path.display(), io_remedy(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as an infinitive: "read", "write".
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is not what it should be. Remedy: in the message.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Which field or index, what is wrong, and the remedy.
        problem: String,
    },
    /// The caller asked for what is not there. Remedy: in the message.
    #[error("{0}")]
    Request(String),
    /// SQLite refused while a database was being written. Remedy: space on the disk; else a bug.
    #[error("{}: SQLite: {source}{}", path.display(), sqlite_remedy(source))]
    Sqlite {
        /// The database file.
        path: PathBuf,
        /// SQLite's reason.
        source: rusqlite::Error,
    },
}

impl DataError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            action,
            source,
        }
    }

    pub(crate) fn sqlite(path: &Path) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Sqlite {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn format(path: &Path, problem: impl Into<String>) -> Self {
        Self::Format {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }
}

fn io_remedy(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::NotFound => "; check the path",
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            "; choose a folder that you may use"
        }
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "; free space on this disk or choose another folder"
        }
        _ => "",
    }
}

fn sqlite_remedy(source: &rusqlite::Error) -> &'static str {
    match source.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull | rusqlite::ErrorCode::SystemIoFailure) => {
            "; free space on this disk or choose another folder"
        }
        Some(rusqlite::ErrorCode::CannotOpen | rusqlite::ErrorCode::ReadOnly) => {
            "; choose a folder that you may use"
        }
        _ => "",
    }
}
