//! The folder of a build on disk: locked while it is written, drafted beside its place, and put there by renaming.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::DataError;

pub(super) fn write_file(path: &Path, text: &str) -> Result<(), DataError> {
    fs::write(path, text).map_err(DataError::io(path, "write"))
}

pub(super) fn create_folder(path: &Path) -> Result<(), DataError> {
    fs::create_dir_all(path).map_err(DataError::io(path, "create"))
}

pub(super) fn is_empty_folder(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}"))
}

/// The sole right to build into a folder, given back on drop.
pub(super) struct Lock {
    path: PathBuf,
    _held: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while it is still held; a file that stays does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Waits until no other process builds into `out`.
pub(super) fn lock(out: &Path) -> Result<Lock, DataError> {
    if out.file_name().is_none() {
        return Err(DataError::format(
            out,
            "not a name for a folder of data; choose one such as data/build",
        ));
    }
    let path = sibling(out, "lock");
    if let Some(parent) = path.parent() {
        create_folder(parent)?;
    }
    loop {
        let held = File::create(&path).map_err(DataError::io(&path, "create"))?;
        held.lock().map_err(DataError::io(&path, "lock"))?;
        if is_at(&held, &path).map_err(DataError::io(&path, "lock"))? {
            return Ok(Lock { path, _held: held });
        }
    }
}

/// Whether `file` is still the one at `path`. Its last holder removes it: a lock on a file that is gone keeps nobody out.
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn remove(path: &Path) -> Result<(), DataError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DataError::io(path, "remove")(error))
        }
        _ => Ok(()),
    }
}

pub(super) fn replace(draft: &Path, out: &Path) -> Result<(), DataError> {
    let old = sibling(out, "old");
    remove(&old)?;
    if out.exists() {
        fs::rename(out, &old).map_err(DataError::io(out, "replace"))?;
    }
    fs::rename(draft, out).map_err(DataError::io(out, "create"))?;
    remove(&old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Holders come and go, each removing the file; at no time are there two.
    #[test]
    fn one_holds_the_lock_and_nothing_is_left_of_it() {
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
