//! Checks paths in documents: the files and folders that they name exist.

use crate::{SourceFile, files, root};

/// Returns the paths in inline code that begin with a folder of the repository.
fn paths(file: &SourceFile) -> Vec<String> {
    let code = file.text.split('`').skip(1).step_by(2);
    let is_path = |text: &&str| {
        let folder = text.split('/').next().unwrap();
        let is_plain = |it: char| it.is_alphanumeric() || "/_-.".contains(it);
        text.contains('/') && text.chars().all(is_plain) && root().join(folder).is_dir()
    };
    code.filter(is_path).map(str::to_owned).collect()
}

#[test]
fn paths_in_documents_exist() {
    let mut missing = Vec::new();
    for file in files(".", ".md") {
        for path in paths(&file) {
            let is_made = path.starts_with("data/build") || path.starts_with("target/");
            if !is_made && !path.starts_with('/') && !root().join(&path).exists() {
                missing.push(format!("{}: {path}", file.path));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "documents name missing files: {missing:#?}"
    );
}

#[test]
fn paths_are_found() {
    let file = SourceFile {
        path: String::new(),
        text: "Read `cli/src/main.rs`, run `cargo test -p cli`, see `a/b`.".to_owned(),
    };
    assert_eq!(paths(&file), ["cli/src/main.rs"]);
}
