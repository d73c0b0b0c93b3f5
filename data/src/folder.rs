//! The folder of a build, an import or a draft: it is locked while it is written, written beside
//! its path, synced, and renamed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::file_stamp::id;

pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), DataError> {
    fs::write(path, text).map_err(DataError::io(path, "write"))
}

pub(crate) fn create_folder(path: &Path) -> Result<(), DataError> {
    fs::create_dir_all(path).map_err(DataError::io(path, "create"))
}

pub(crate) fn is_empty_folder(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

pub(crate) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{suffix}"));
    path.with_file_name(name)
}

/// Returns a path as text, because SQLite writes to no other.
pub(crate) fn utf8(path: &Path) -> Result<&str, DataError> {
    path.to_str()
        .ok_or_else(|| DataError::format(path, "the path is not UTF-8; choose another folder"))
}

/// Returns where a folder is that may be given as a link, so that the link is not replaced.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    match path.is_symlink() {
        true => fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
        false => path.to_owned(),
    }
}

/// An exclusive lock on writing a folder. Dropping it releases the lock.
pub(crate) struct FolderLock {
    path: PathBuf,
    _file: File,
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // The file is removed before the lock is released. A file that stays does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Waits until no other process writes the folder `out`.
pub(crate) fn lock(out: &Path) -> Result<FolderLock, DataError> {
    if out.file_name().is_none() {
        return Err(DataError::format(
            out,
            "not a name for a data folder; choose one such as data/build",
        ));
    }
    let out = resolved(out);
    utf8(&out)?;
    let path = sibling(&out, "lock");
    if let Some(parent) = path.parent() {
        create_folder(parent)?;
    }
    loop {
        // A link would have its target made or locked, wherever that is.
        if path.is_symlink() {
            let problem = "is a link; remove it, and check who made it";
            return Err(DataError::format(&path, problem));
        }
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(DataError::io(&path, "create"))?;
        file.lock().map_err(DataError::io(&path, "lock"))?;
        if is_at(&file, &path).map_err(DataError::io(&path, "lock"))? {
            return Ok(FolderLock { path, _file: file });
        }
    }
}

/// Whether `file` is still the file at `path`. A process that releases the lock removes the file,
/// and a lock on a removed file excludes nobody.
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok(id(&own) == id(&there)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn remove(path: &Path) -> Result<(), DataError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DataError::io(path, "remove")(error))
        }
        _ => Ok(()),
    }
}

/// Waits until the bytes of a file, or the names in a folder, are on the disk.
fn sync(path: &Path) -> Result<(), DataError> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(DataError::io(path, "write"))
}

/// Syncs a folder and everything in it.
pub(crate) fn sync_tree(folder: &Path) -> Result<(), DataError> {
    for entry in fs::read_dir(folder).map_err(DataError::io(folder, "read"))? {
        let path = entry.map_err(DataError::io(folder, "read"))?.path();
        match path.is_dir() {
            true => sync_tree(&path)?,
            false => sync(&path)?,
        }
    }
    sync(folder)
}

/// Renames a finished and synced folder to `out`, and removes the earlier one. If that fails, the
/// earlier one is renamed back.
///
/// Between the two renames there is no `out`: a crash there leaves the earlier folder beside it at
/// `.NAME.old`, and so does a rename back that fails.
pub(crate) fn replace(finished: &Path, out: &Path) -> Result<(), DataError> {
    let old = sibling(out, "old");
    let has_earlier = out.exists();
    // Without `out`, an earlier call may have left its content at `old`: it stays until the
    // finished folder is in place.
    if has_earlier {
        remove(&old)?;
        fs::rename(out, &old).map_err(DataError::io(out, "replace"))?;
    }
    if let Err(error) = fs::rename(finished, out) {
        if has_earlier {
            // The first error is the one to report.
            let _ = fs::rename(&old, out);
        }
        return Err(DataError::io(out, "create")(error));
    }
    // Until the new name is on the disk, the earlier folder may be the only one after a power loss.
    let parent = out.parent().filter(|it| !it.as_os_str().is_empty());
    sync(parent.unwrap_or(Path::new(".")))?;
    remove(&old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_folder_that_cannot_be_replaced_stays() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("data");
        fs::create_dir(&out).unwrap();
        fs::write(out.join("manifest.json"), "{}").unwrap();
        let error = replace(&dir.path().join("missing"), &out).unwrap_err();
        assert!(error.to_string().contains("data: cannot create"), "{error}");
        assert!(out.join("manifest.json").is_file());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_crash_between_the_renames_left_stays_until_a_folder_is_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let [out, old, finished] = ["data", ".data.old", "new"].map(|name| dir.path().join(name));
        fs::create_dir(&old).unwrap();
        fs::write(old.join("manifest.json"), "{}").unwrap();
        replace(&finished, &out).unwrap_err();
        assert!(old.join("manifest.json").is_file() && !out.exists());
        fs::create_dir(&finished).unwrap();
        replace(&finished, &out).unwrap();
        assert!(out.is_dir());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// As text both names are the same: one folder would replace what is kept of the other.
    #[test]
    fn a_name_that_is_not_utf8_is_refused_and_shares_no_sibling() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = [b"\xfe", b"\xff"].map(|name| dir.path().join(OsStr::from_bytes(name)));
        assert_ne!(sibling(&one, "old"), sibling(&other, "old"));
        let error = lock(&one).err().unwrap().to_string();
        assert!(error.contains("the path is not UTF-8; choose"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// Threads take and release the lock, and each removes the file. At no time do two threads have
    /// it.
    #[test]
    fn the_lock_is_exclusive_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("data");
        let holders = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = lock(&out).unwrap();
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
