//! Checks that pure files are deterministic functions of their arguments. A file is pure if its
//! opening comment has the sentence "Pure.", and so are the files in its folder.

use crate::{SourceFile, picture::picture, sources};

/// What a pure file must not use.
const BANNED: [&str; 15] = [
    "getrandom",
    "rand::rng",
    "std::env",
    "std::fs",
    "std::io::stderr",
    "std::io::stdin",
    "std::io::stdout",
    "std::net",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio",
    "tonic",
    "uuid",
];

/// What a pure file may use all the same, and why.
const EXCEPTIONS: [(&str, &str, &str); 1] = [(
    "policy/src/chat_template/mod.rs",
    "std::thread",
    "a template may nest deep, so a thread with a large stack compiles it; the result is the same",
)];

fn is_marked(file: &SourceFile) -> bool {
    let comment = file.text.lines();
    let mut comment = comment.map_while(|line| line.strip_prefix("//!"));
    comment.any(|line| line.split(' ').any(|word| word == "Pure."))
}

/// Returns the path of a file's module, which its folder has as well.
fn module(file: &SourceFile) -> &str {
    let path = file.path.trim_end_matches(".rs");
    path.strip_suffix("/mod").unwrap_or(path)
}

fn is_of(file: &SourceFile, module: &str) -> bool {
    let rest = file.path.strip_prefix(module);
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Returns the banned paths that the code of a file uses. Braces may separate the parts of a path
/// in an import, so there all words count, wherever they stand.
fn impurities(file: &SourceFile) -> Vec<&'static str> {
    let code = file.code();
    let is_separator = |it: char| !it.is_alphanumeric() && it != '_';
    let statements = code.split(';').map(|statement| {
        let words = statement.split(is_separator);
        words.filter(|word| !word.is_empty()).collect()
    });
    let statements: Vec<Vec<&str>> = statements.collect();
    let is_used = |banned: &str| {
        let path: Vec<&str> = banned.split("::").collect();
        statements.iter().any(|words| match words.contains(&"use") {
            true => path.iter().all(|part| words.contains(part)),
            false => words.windows(path.len()).any(|window| window == path),
        })
    };
    let is_exception = |banned: &str| {
        let mut exceptions = EXCEPTIONS.iter();
        exceptions.any(|(of, excepted, _)| *of == file.path && *excepted == banned)
    };
    let banned = BANNED.into_iter();
    banned
        .filter(|path| is_used(path) && !is_exception(path))
        .collect()
}

#[test]
fn pure_files_stay_pure() {
    let (mut checked, mut impure) = (0, Vec::new());
    for krate in picture().into_keys() {
        let sources = sources(&krate);
        let marked = sources.iter().filter(|file| is_marked(file));
        let pure: Vec<&str> = marked.map(module).collect();
        let is_pure = |file: &&SourceFile| pure.iter().any(|module| is_of(file, module));
        for file in sources.iter().filter(is_pure) {
            let paths = impurities(file).into_iter();
            impure.extend(paths.map(|path| format!("{}: {path}", file.path)));
            checked += 1;
        }
    }
    assert!(checked > 80, "only {checked} files are pure");
    assert!(impure.is_empty(), "pure files use {impure:#?}");
}

#[test]
fn a_mark_counts_for_the_folder_of_its_file() {
    let file = |path: &str, text: &str| SourceFile {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let marked = file(
        "x/src/a/mod.rs",
        "//! Adds.\n//! Pure. It is exact.\n\nuse b;",
    );
    assert!(is_marked(&marked));
    for other in ["//! Pure: `a`.\n", "//! Adds.\n\n//! Pure.\n", "// Pure.\n"] {
        assert!(!is_marked(&file("x/src/b.rs", other)), "{other}");
    }
    let is_pure = |path: &str| is_of(&file(path, ""), module(&marked));
    assert!(is_pure("x/src/a.rs") && is_pure("x/src/a/mod.rs") && is_pure("x/src/a/b.rs"));
    assert!(!is_pure("x/src/ab.rs"));
}

#[test]
fn banned_paths_are_found_in_imports_and_expressions() {
    let cases: [(&str, &[&str]); 3] = [
        (
            "use std::{fmt, time::{Duration, Instant}, thread};",
            &["std::thread", "std::time::Instant"],
        ),
        (
            "fn f() { std::env::var(\"A\"); g(std::time::Instant::now()) }",
            &["std::env", "std::time::Instant"],
        ),
        // The words of `std::env` and `rand::rng` are here, and the paths are not.
        (
            "use std::fmt; use a::env; fn f(rng: &mut impl rand::Rng) { std::mem::take(env) }",
            &[],
        ),
    ];
    for (text, expected) in cases {
        let file = SourceFile {
            path: String::new(),
            text: text.to_owned(),
        };
        assert_eq!(impurities(&file), expected, "{text}");
    }
}
