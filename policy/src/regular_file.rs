//! Files of unknown origin, such as those of a model folder that somebody sent.
//!
//! Invariant: only a regular file is opened, and no more is read than the caller allows. A pipe
//! would wait for a writer for ever, and a device has no end.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::path::{Path, PathBuf};

/// Opens a regular file, and returns it with its size.
///
/// # Errors
/// There is no such file, it cannot be opened, or it is a folder, a pipe, a socket or a device.
pub fn open(path: &Path) -> Result<(File, u64)> {
    // Before it is opened: opening a pipe waits for its writer.
    if !path.metadata()?.is_file() {
        let reason = "is no regular file but a folder, a pipe, a socket or a device; put the file \
                      itself there";
        return Err(Error::new(ErrorKind::InvalidInput, reason));
    }
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open`], or the file is larger.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let (file, size) = open(path)?;
    let mut content = Vec::new();
    // The file may be growing, so its size alone bounds nothing.
    if size <= most {
        content.reserve_exact(size as usize);
        file.take(most.saturating_add(1))
            .read_to_end(&mut content)?;
    }
    if size.max(content.len() as u64) > most {
        let reason = format!("is larger than {most} bytes, the most that such a file may have");
        return Err(Error::new(ErrorKind::InvalidData, reason));
    }
    Ok(content)
}

/// Returns where a file of `folder` lies, links followed.
///
/// The cache of Hugging Face keeps the files of `snapshots/REVISION` in `blobs` beside `snapshots`,
/// so links to there are accepted as well.
///
/// # Errors
/// There is no such file, or it is a link to a file outside of the folder.
pub fn inside(folder: &Path, name: impl AsRef<Path>) -> Result<PathBuf> {
    let path = folder.join(name).canonicalize()?;
    let folder = folder.canonicalize()?;
    let snapshots = folder
        .parent()
        .filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|it| it.join("blobs"));
    if path.starts_with(&folder) || blobs.is_some_and(|blobs| path.starts_with(blobs)) {
        return Ok(path);
    }
    let reason = format!(
        "is {}, outside of the folder; copy the file into the folder",
        path.display()
    );
    Err(Error::new(ErrorKind::InvalidInput, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn only_a_regular_file_of_the_size_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"1234").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"1234");
        assert!(read(&path, 3).unwrap_err().to_string().contains("3 bytes"));
        for special in [folder.path(), Path::new("/dev/zero")] {
            let refusal = read(special, 10).unwrap_err().to_string();
            assert!(refusal.contains("no regular file"), "{refusal}");
        }
        let absent = read(&folder.path().join("none"), 1).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_link_may_not_leave_the_folder_but_for_the_blobs_of_hugging_face() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("snapshots/abc");
        let blobs = cache.path().join("blobs");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join("1"), "blob").unwrap();
        fs::write(cache.path().join("secret"), "secret").unwrap();
        symlink("../../blobs/1", folder.join("config.json")).unwrap();
        symlink("config.json", folder.join("again")).unwrap();
        symlink("../../secret", folder.join("LICENSE")).unwrap();
        for name in ["config.json", "again"] {
            assert_eq!(read(&inside(&folder, name).unwrap(), 9).unwrap(), b"blob");
        }
        for name in ["LICENSE", "../../secret"] {
            let refusal = inside(&folder, name).unwrap_err().to_string();
            assert!(refusal.contains("outside of the folder"), "{refusal}");
        }
        let other = cache.path().join("model");
        fs::create_dir(&other).unwrap();
        symlink("../blobs/1", other.join("config.json")).unwrap();
        assert!(inside(&other, "config.json").is_err());
    }
}
