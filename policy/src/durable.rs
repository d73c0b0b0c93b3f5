//! Durable writes: files and folders that survive a crash, and folders that are replaced.
//!
//! Invariant: the bytes of a file are synced before its name is relied on, and the parent folder is
//! synced after a rename.

use std::fs::{self, File};
use std::io::{ErrorKind, Result, Write};
use std::path::Path;

/// Writes a file and waits until its bytes are on the disk.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Waits until a file's bytes, or a folder's names, are on the disk.
pub fn sync(path: &Path) -> Result<()> {
    File::open(path)?.sync_all()
}

/// Waits until the name of `path` in its folder is on the disk.
pub fn sync_parent(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    sync(parent.unwrap_or(Path::new(".")))
}

/// Renames the synced folder `new` to `path`, and removes what was there.
///
/// Between the two renames there is no `path`: a crash there leaves its old content at `aside`.
pub fn replace_folder(path: &Path, new: &Path, aside: &Path) -> Result<()> {
    remove_folder(aside)?;
    if path.exists() {
        fs::rename(path, aside)?;
    }
    fs::rename(new, path)?;
    sync_parent(path)?;
    remove_folder(aside)
}

/// Removes a folder if it exists.
pub fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
