//! Tells whether a file is still the one that it was, without reading it.

use std::{fs::Metadata, io, time::SystemTime};

/// Which file a path names, and the state that a write to it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    size_bytes: u64,
    modified: SystemTime,
    /// Device and number of the file; zero on systems that have none.
    id: (u64, u64),
}

impl FileStamp {
    /// Reads it from a file's metadata.
    ///
    /// # Errors
    /// The system keeps no time of the last write.
    pub(crate) fn of(metadata: &Metadata) -> io::Result<Self> {
        Ok(Self {
            size_bytes: metadata.len(),
            modified: metadata.modified()?,
            id: id(metadata),
        })
    }
}

#[cfg(unix)]
fn id(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn id(_metadata: &Metadata) -> (u64, u64) {
    (0, 0)
}
