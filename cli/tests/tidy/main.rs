//! Checks dependencies and pure files against ARCHITECTURE.md, the width of lines, and that the
//! files, tests and settings exist that documents name.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails as the test does"
)]

mod documents;
mod picture;
mod pure;
mod width;

use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.unwrap().to_owned()
}

/// A file of the repository.
struct SourceFile {
    /// The path relative to the root.
    path: String,
    text: String,
}

impl SourceFile {
    /// Returns the text without comments and without the tests at the end of the file.
    fn code(&self) -> String {
        let tests = ["mod tests {", "pub(crate) mod tests {"];
        let begins = tests.map(|it| self.text.find(&format!("#[cfg(test)]\n{it}")));
        let end = begins.into_iter().flatten().min();
        let lines = self.text[..end.unwrap_or(self.text.len())].lines();
        let lines = lines.map(|line| line.split("//").next().unwrap());
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Reads all files in `folder` whose names end with `suffix`, sorted by path.
fn files(folder: &str, suffix: &str) -> Vec<SourceFile> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                let is_foreign = ["target", "node_modules", "venv", "runs"].contains(&&*name);
                if !is_foreign && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if name.ends_with(suffix) {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root()).unwrap();
                let path = path.to_str().unwrap().to_owned();
                found.push(SourceFile { path, text });
            }
        }
    }
    found.sort_by(|left, right| left.path.cmp(&right.path));
    found
}

/// Reads the sources of a crate, without its tests.
fn sources(krate: &str) -> Vec<SourceFile> {
    let mut files = files(&format!("{krate}/src"), ".rs");
    files.retain(|file| !file.path.ends_with("/tests.rs") && !file.path.contains("/tests/"));
    files
}
