//! The folder of a build on disk: locked while it is written, drafted beside its place, and put there by renaming.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::DataError;

pub(super) fn write_file(path: &Path, text: &str) -> Result<(), DataError> {
    std::fs::write(path, text).map_err(DataError::io(path, "write"))
}

pub(super) fn create_folder(path: &Path) -> Result<(), DataError> {
    std::fs::create_dir_all(path).map_err(DataError::io(path, "create"))
}

pub(super) fn is_empty_folder(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}"))
}

/// Waits until no other process builds into `out`; released when the file is dropped.
pub(super) fn lock(out: &Path) -> Result<File, DataError> {
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
    let file = File::create(&path).map_err(DataError::io(&path, "create"))?;
    file.lock().map_err(DataError::io(&path, "lock"))?;
    Ok(file)
}

pub(super) fn remove(path: &Path) -> Result<(), DataError> {
    match std::fs::remove_dir_all(path) {
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
        std::fs::rename(out, &old).map_err(DataError::io(out, "replace"))?;
    }
    std::fs::rename(draft, out).map_err(DataError::io(out, "create"))?;
    remove(&old)
}
