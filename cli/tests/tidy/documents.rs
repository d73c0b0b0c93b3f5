//! Checks what documents name: files, folders and tests exist.

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
            // Commands of the README make these folders.
            let made = ["data/build", "runs/", "target/"];
            let is_made = made.iter().any(|folder| path.starts_with(folder));
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

/// Returns the settings in the first column of the table that maps them to TRL's. A name without a
/// section has that of the name before it.
fn mapped_settings(text: &str) -> Vec<String> {
    let table = text.split("| `sqlenv train` | TRL").nth(1).unwrap();
    let rows = table.lines().skip(1).take_while(|row| row.starts_with('|'));
    let cells = rows.map(|row| row.split('|').nth(1).unwrap());
    let code = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let mut section = "";
    let mut settings = Vec::new();
    for name in code.map(|code| code.split('=').next().unwrap()) {
        match name.rsplit_once('.') {
            Some((of, _)) => {
                section = of;
                settings.push(name.to_owned());
            }
            None => settings.push(format!("{section}.{name}")),
        }
    }
    settings
}

#[test]
fn settings_that_are_mapped_to_trl_exist() {
    let readme = files("python", "README.md").remove(0);
    let settings = files("docs", "settings.md").remove(0);
    let mapped = mapped_settings(&readme.text);
    assert!(mapped.len() > 40, "{mapped:?}");
    let exists = |name: &String| settings.text.contains(&format!("| `{name}` |"));
    // The default of a setting and the setting of the whole program are in the column too.
    let is_other = |name: &String| name.ends_with(".constant") || name.ends_with(".seed");
    let missing: Vec<_> = mapped
        .iter()
        .filter(|name| !exists(name) && !is_other(name))
        .collect();
    assert!(missing.is_empty(), "no such setting: {missing:#?}");
}

/// Returns the names of tests in the table cells of `docs/robustness.md`.
fn tests_named(text: &str) -> Vec<&str> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    let code = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    code.collect()
}

#[test]
fn tests_in_the_table_of_robustness_exist() {
    let document = files("docs", "robustness.md").remove(0);
    let named = tests_named(&document.text);
    assert!(named.len() > 40, "{named:?}");
    let sources = files(".", ".rs");
    let exists = |test: &&str| {
        let function = format!("fn {test}(");
        sources.iter().any(|file| file.text.contains(&function))
    };
    let missing: Vec<_> = named.into_iter().filter(|test| !exists(test)).collect();
    assert!(missing.is_empty(), "no such test: {missing:#?}");
}
