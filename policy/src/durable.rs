//! Durable writes: files and folders that survive a crash, and folders that are replaced.
//!
//! Invariant: the bytes of a file are synced before its name is relied on, and the parent folder is
//! synced after a rename.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;

/// Returns whether a write failed because the disk, or the user's share of it, is full.
pub fn is_full(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

/// Writes a file and waits until its bytes are on the disk.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Appends to a file, or makes it, and waits until the bytes are on the disk.
pub fn append(path: &Path, content: &[u8]) -> Result<()> {
    let is_new = !path.exists();
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(content)?;
    file.sync_data()?;
    if is_new { sync_parent(path) } else { Ok(()) }
}

/// Waits until a file's bytes, or a folder's names, are on the disk.
pub fn sync(path: &Path) -> Result<()> {
    File::open(path)?.sync_all()
}

/// Writes or replaces a file. A reader or a crash sees the old content or the new one, not a part.
pub fn replace_file(path: &Path, content: &[u8]) -> Result<()> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".partial");
    let partial = path.with_file_name(name);
    write(&partial, content)?;
    fs::rename(&partial, path)?;
    sync_parent(path)
}

/// Syncs a folder and everything in it.
pub fn sync_tree(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            sync(&path)?;
        }
    }
    sync(folder)
}

/// Waits until the name of `path` in its folder is on the disk.
pub fn sync_parent(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    sync(parent.unwrap_or(Path::new(".")))
}

/// Renames the synced folder `new` to `path`, and removes what was there.
///
/// Between the two renames there is no `path`: a crash there leaves its old content at `aside`. If
/// the second one fails, the old content is back at `path`.
pub fn replace_folder(path: &Path, new: &Path, aside: &Path) -> Result<()> {
    // Without `path`, a crash between the renames of an earlier call left its content at `aside`:
    // it stays until the new folder is in place.
    let is_there = path.exists();
    if is_there {
        remove_folder(aside)?;
        fs::rename(path, aside)?;
    }
    if let Err(error) = fs::rename(new, path) {
        if is_there {
            let _ = fs::rename(aside, path);
        }
        return Err(error);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_stays_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("LATEST");
        for content in [b"one".as_slice(), b"two"] {
            replace_file(&path, content).unwrap();
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_takes_the_place_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let [path, new, aside] = ["model", "new", "old"].map(|name| folder.path().join(name));
        for content in ["one", "two"] {
            fs::create_dir_all(new.join("inner")).unwrap();
            fs::write(new.join("inner/file"), content).unwrap();
            sync_tree(&new).unwrap();
            // What a crash left behind does not stand in the way.
            fs::create_dir_all(aside.join("inner")).unwrap();
            replace_folder(&path, &new, &aside).unwrap();
            let found = fs::read_to_string(path.join("inner/file")).unwrap();
            assert_eq!(found, content);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
