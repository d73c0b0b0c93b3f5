//! Checks the names of public types: one name has one meaning in the whole workspace.

use std::collections::{BTreeMap, BTreeSet};

use crate::{SourceFile, picture::picture, sources};

/// Names that several crates may have, with the reason.
const SHARED: [(&str, &str); 2] = [
    (
        "EpisodeSpec",
        "actor and env state it on the two sides of Reset, and neither may use the other",
    ),
    ("Result", "an alias for the error type of its crate"),
];

/// Returns the public types of a file.
fn public_types(file: &SourceFile) -> Vec<String> {
    let code = file.code();
    let declarations = code.lines().filter_map(|line| line.strip_prefix("pub "));
    let names = declarations.filter_map(|line| {
        let mut words =
            line.split(|character: char| !character.is_alphanumeric() && character != '_');
        let is_type = matches!(
            words.next()?,
            "struct" | "enum" | "trait" | "type" | "union"
        );
        is_type.then(|| words.next().unwrap_or_default().to_owned())
    });
    names.collect()
}

#[test]
fn public_types_have_names_of_their_own() {
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for krate in picture().into_keys() {
        for name in sources(&krate).iter().flat_map(public_types) {
            crates.entry(name).or_default().insert(krate.clone());
        }
    }
    crates.retain(|name, crates| crates.len() > 1 && SHARED.iter().all(|(it, _)| it != name));
    assert!(
        crates.is_empty(),
        "several crates have a public type of one name: {crates:#?}"
    );
}

#[test]
fn public_types_are_found() {
    let file = SourceFile {
        path: String::new(),
        text: "pub struct A<T>(T);\npub(crate) enum B {}\npub enum C {}\n    pub type D = u8;"
            .to_owned(),
    };
    assert_eq!(public_types(&file), ["A", "C"]);
}
