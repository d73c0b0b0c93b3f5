//! Files that a command writes at its end. They are tried before it begins: the work of hours is
//! not lost to a mistyped path.

use std::{
    fs::{self, OpenOptions},
    path::Path,
};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// Checks that `path` can be written. What is there stays.
pub(crate) fn check(path: &Path) -> Result<()> {
    let context = || format!("cannot write {}; choose another file", path.display());
    // To open a pipe waits for its reader.
    let is_special = path
        .metadata()
        .is_ok_and(|it| !it.is_file() && !it.is_dir());
    if is_special {
        return Ok(());
    }
    let is_new = !path.exists();
    let mut options = OpenOptions::new();
    let opened = options.create(true).append(true).open(path);
    opened.with_context(context)?;
    if is_new {
        fs::remove_file(path).with_context(context)?;
    }
    Ok(())
}

/// Writes a file.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a value as indented JSON.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write(path, serde_json::to_string_pretty(value)? + "\n")
}

/// Writes each value as one line of JSON.
pub(crate) fn write_json_lines<T: Serialize>(
    path: &Path,
    values: impl IntoIterator<Item = T>,
) -> Result<()> {
    let mut text = String::new();
    for value in values {
        text += &serde_json::to_string(&value)?;
        text.push('\n');
    }
    write(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let [new, old] = ["new", "old"].map(|name| dir.path().join(name));
        fs::write(&old, "kept").unwrap();
        check(&new).unwrap();
        check(&old).unwrap();
        assert!(!new.exists());
        assert_eq!(fs::read_to_string(&old).unwrap(), "kept");
        for wrong in [dir.path(), &old.join("below"), Path::new("/proc/none")] {
            let error = check(wrong).unwrap_err().to_string();
            assert!(error.contains("choose another file"), "{error}");
        }
        check(Path::new("/dev/null")).unwrap();
    }
}
