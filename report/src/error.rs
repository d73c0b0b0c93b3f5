//! Errors of reading and writing a run folder.

use std::{io, path::PathBuf};

/// Why a run folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The path is not a directory.
    #[error("{} is not a folder; give the folder of a run, such as runs/NAME", .0.display())]
    NotAFolder(PathBuf),
    /// The folder has none of the files of a run.
    #[error("{} has no files of a run; give the folder of a run, such as runs/NAME", .0.display())]
    NotARun(PathBuf),
    /// A new run would write between files of something else.
    #[error(
        "{} has files, and none of a run; choose another run folder, so that nothing is lost",
        .0.display()
    )]
    Occupied(PathBuf),
    /// Another process holds the lock of the run folder.
    #[error(
        "{} is in use by another process; wait until it ends or choose another run folder",
        .0.display()
    )]
    InUse(PathBuf),
    /// The lock is a symbolic link.
    #[error("{} is a link; remove it, and check who made it", .0.display())]
    LinkedLock(PathBuf),
    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The operation, such as `write`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A record cannot be written as JSON.
    #[error("cannot encode a record as JSON")]
    Json(#[from] serde_json::Error),
}

impl ReportError {
    /// Returns a function that wraps an [`io::Error`] of `action` on `path`.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
