//! What must outlive a crash: files and folders put on the disk, and folders replaced.
//!
//! Invariant: a file's bytes are synced before its name is relied on, and the folder that holds the name after.

use std::{
    fs::{self, File},
    path::Path,
};

use crate::error::{AtPath, Result};

/// Syncs a file's bytes, or a folder's names.
pub(crate) fn sync(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .at("sync", path)
}

/// Syncs the folder in which `path` has its name.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    sync(parent.unwrap_or(Path::new(".")))
}

/// Syncs all files and folders under `folder`, and `folder`.
pub(crate) fn sync_tree(folder: &Path) -> Result<()> {
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

/// Puts the synced folder `new` in the place of `path`; what was there stands at `aside` until then.
pub(crate) fn replace(path: &Path, new: &Path, aside: &Path) -> Result<()> {
    if path.exists() {
        remove(aside)?;
        fs::rename(path, aside).at("put aside", path)?;
    }
    fs::rename(new, path).at("put in place", path)?;
    sync_parent(path)?;
    remove(aside)
}

/// Removes a folder, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(fault) if fault.kind() != std::io::ErrorKind::NotFound => Err(fault).at("remove", path),
        _ => Ok(()),
    }
}
