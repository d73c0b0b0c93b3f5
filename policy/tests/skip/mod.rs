//! Reference values that are no part of the project: where they lie, and a loud word where they do not.

use std::{
    io::{Write as _, stderr},
    path::{Path, PathBuf},
};

/// A file or folder of `../shared/golden` beside the workspace; `None`, and a line on stderr, where it is not there.
pub(crate) fn reference(name: &str, what: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/golden")
        .join(name);
    if !path.exists() {
        skipped(what, &format!("{} is not there", path.display()));
        return None;
    }
    Some(path)
}

/// Says so on stderr itself, in one piece: the test harness keeps what a passing test prints.
pub(crate) fn skipped(what: &str, why: &str) {
    // Without a stderr there is nobody to tell.
    let _ = stderr().write_all(format!("SKIPPED: {what}, because {why}\n").as_bytes());
}
