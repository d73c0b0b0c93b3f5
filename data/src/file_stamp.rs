//! Tells whether a file still has the content that was hashed, and reads it again only if it may
//! have changed.

use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::SystemTime,
};

use crate::hash::open_file_sha256;

/// Which file a path names, and the state that a write to it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    size_bytes: u64,
    modified: SystemTime,
    /// Device and number of the file.
    id: (u64, u64),
}

/// A file that was hashed, and the states in which it was found since.
#[derive(Clone, Debug)]
pub struct HashedFile {
    sha256: String,
    /// The last state with the content that was hashed.
    same: FileStamp,
    /// The state with other content, if that is how it was found last.
    other: Option<FileStamp>,
    changes: u64,
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

impl HashedFile {
    pub(crate) fn new(sha256: &str, same: FileStamp) -> Self {
        Self {
            sha256: sha256.to_owned(),
            same,
            other: None,
            changes: 0,
        }
    }

    /// Returns how often the file was found in another state than before. If the number grows, what
    /// was read meanwhile may be of a file that was only half written, also if the content is the
    /// same again.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns whether the file at `path` has the content that was hashed. Reads it only if its
    /// state is not the last one: copies, and file systems that number files anew, change the state
    /// and not the content.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn has_same_content(&mut self, path: &Path) -> io::Result<bool> {
        let found = FileStamp::of(&path.metadata()?)?;
        if found == self.other.unwrap_or(self.same) {
            return Ok(self.other.is_none());
        }
        self.changes += 1;
        // If it changes before it is read, its state is another one at the next comparison.
        let is_same = open_file_sha256(&mut File::open(path)?)?.0 == self.sha256;
        if is_same {
            (self.same, self.other) = (found, None);
        } else {
            self.other = Some(found);
        }
        Ok(is_same)
    }
}

/// Returns what tells a file from the others of the machine.
pub(crate) fn id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}
