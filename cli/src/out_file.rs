//! Files that a command writes at its end. They are tried before it begins: the work of hours is
//! not lost to a mistyped path.

use std::{
    fs::{self, OpenOptions},
    path::{Path, absolute},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

/// Checks that the files of two options can be written, and that one does not replace the other.
pub(crate) fn check_two(outputs: [(&str, Option<&Path>); 2]) -> Result<()> {
    if let [(option, Some(path)), (other, Some(second))] = outputs {
        let is_same = absolute(path)? == absolute(second)?;
        ensure!(
            !is_same || is_special(path),
            "{option} and {other} name the same file {}; give each another",
            path.display()
        );
    }
    let mut paths = outputs.into_iter().filter_map(|(_, path)| path);
    paths.try_for_each(check)
}

/// Checks that `path` can be written. What is there stays.
pub(crate) fn check(path: &Path) -> Result<()> {
    let context = || format!("cannot write {}; choose another file", path.display());
    // To open a pipe waits for its reader.
    if is_special(path) {
        return Ok(());
    }
    let is_new = !path.exists();
    let mut options = OpenOptions::new();
    let opened = options.create(true).append(true).open(path);
    opened.with_context(context)?;
    if is_new {
        // A link to a file that does not exist is the user's, and only the file is new.
        let made = path.canonicalize().with_context(context)?;
        fs::remove_file(made).with_context(context)?;
    }
    Ok(())
}

/// Returns whether a path is that of a device or a pipe.
pub(crate) fn is_special(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|it| !it.is_file() && !it.is_dir())
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

    #[test]
    fn a_check_keeps_a_link_to_a_file_that_does_not_exist() {
        let dir = tempfile::tempdir().unwrap();
        let [link, file] = ["link", "file"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        check(&link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), file);
        assert!(!file.exists());
    }

    #[test]
    fn two_options_have_two_files() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two, same] = ["one", "two", "./one"].map(|name| dir.path().join(name));
        let [one, two, same] = [&one, &two, &same].map(|it| Some(it.as_path()));
        let null = Some(Path::new("/dev/null"));
        let check = |first, second| check_two([("--json", first), ("--html", second)]);
        for (first, second) in [(one, two), (one, None), (None, None), (null, null)] {
            check(first, second).unwrap();
        }
        for second in [one, same] {
            let error = check(one, second).unwrap_err().to_string();
            assert!(
                error.contains("--json and --html name the same file"),
                "{error}"
            );
        }
    }
}
