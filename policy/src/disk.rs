//! Durable writes: files and folders that are whole or absent after a crash.
//!
//! Each write goes to a temporary name in the same folder, is synced (`fsync`), is renamed, and then the folder is
//! synced, because a rename reaches the disk with the folder that holds the name. Errors name the path.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write as _},
    path::{Path, PathBuf},
};

/// A file or folder could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}", path = path.display())]
pub struct DiskError {
    /// What was attempted, as a verb.
    pub action: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// The system's answer.
    pub source: io::Error,
}

/// Adds what was attempted and the path to an I/O error.
pub trait AtPath<T> {
    /// Names `path`, on which `action` failed.
    ///
    /// # Errors
    /// The error of `self` with its path.
    fn at(self, action: &'static str, path: &Path) -> Result<T, DiskError>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, DiskError> {
        self.map_err(|source| DiskError {
            action,
            path: path.to_owned(),
            source,
        })
    }
}

/// Writes or replaces a file. A reader sees the old content or the new one, never a part.
///
/// # Errors
/// The disk is full or fails; a file that was there before is then unchanged.
pub fn write(path: &Path, content: &[u8]) -> Result<(), DiskError> {
    let partial = beside(path, "partial");
    File::create(&partial)
        .and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        })
        .at("write", &partial)?;
    fs::rename(&partial, path).at("put in place", path)?;
    sync_parent(path)
}

/// Puts the folder `new` at `path` after syncing all that it holds. A folder that is there already is renamed to
/// `aside` first and removed afterwards, so that a crash between the two renames leaves it there.
///
/// # Errors
/// The disk fails, or the folders are not on one file system.
pub fn replace_folder(path: &Path, new: &Path, aside: &Path) -> Result<(), DiskError> {
    sync_tree(new)?;
    // Without `path`, `aside` may be all that a crash left of the folder before: it goes last.
    if path.exists() {
        remove_folder(aside)?;
        fs::rename(path, aside).at("put aside", path)?;
    }
    fs::rename(new, path).at("put in place", path)?;
    sync_parent(path)?;
    remove_folder(aside)
}

/// Removes a folder and all that it holds, if it is there.
///
/// # Errors
/// The folder cannot be removed.
pub fn remove_folder(path: &Path) -> Result<(), DiskError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).at("remove", path),
        _ => Ok(()),
    }
}

/// Syncs the folder that holds the name `path`, which a new file or folder needs to survive a crash.
///
/// # Errors
/// The folder cannot be opened or synced.
pub fn sync_parent(path: &Path) -> Result<(), DiskError> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    sync(parent.unwrap_or(Path::new(".")))
}

/// Returns the hidden name `.NAME.suffix` in the same folder.
#[must_use]
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(path.file_name().unwrap_or_default());
    hidden.push(".");
    hidden.push(suffix);
    path.with_file_name(hidden)
}

/// Syncs a file's bytes, or a folder's names.
fn sync(path: &Path) -> Result<(), DiskError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .at("sync", path)
}

fn sync_tree(folder: &Path) -> Result<(), DiskError> {
    for entry in fs::read_dir(folder).at("read", folder)? {
        let path = entry.at("read", folder)?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            sync(&path)?;
        }
    }
    sync(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_written_and_replaced_and_nothing_stays_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("LATEST");
        for content in [b"one".as_slice(), b"two"] {
            write(&path, content).unwrap();
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        assert_eq!(names(folder.path()), ["LATEST"]);
        let fault = write(&folder.path().join("none/x"), b"").unwrap_err();
        let fault = fault.to_string();
        assert!(fault.starts_with("cannot write "), "{fault}");
    }

    #[test]
    fn a_folder_takes_the_place_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let (new, aside) = (beside(&path, "partial"), beside(&path, "old"));
        for content in ["one", "two"] {
            fs::create_dir_all(new.join("inner")).unwrap();
            fs::write(new.join("inner/file"), content).unwrap();
            // What a crash left behind is in nobody's way.
            fs::create_dir_all(&aside).unwrap();
            replace_folder(&path, &new, &aside).unwrap();
            let found = fs::read_to_string(path.join("inner/file")).unwrap();
            assert_eq!(found, content);
        }
        assert_eq!(names(folder.path()), ["model"]);
    }
}
