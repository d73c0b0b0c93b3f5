//! Checks the crates and their dependencies against the table of ARCHITECTURE.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use crate::{SourceFile, files, root, sources};

/// Folders outside the crates from which a crate may embed files.
const EMBEDDED: [(&str, &str); 1] = [("bench", "python/benchmarks")];

/// Returns the crates of the table in ARCHITECTURE.md with the crates that each may use.
pub(crate) fn picture() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.split("| crate | holds | may use |").nth(1).unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let cells = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        (cells[0].trim_matches('`').to_owned(), cells[2].to_owned())
    };
    let rows: Vec<(String, String)> = rows.map(cells).collect();
    let crates: BTreeSet<String> = rows.iter().map(|(name, _)| name.clone()).collect();
    let allowed = |text: &str| -> BTreeSet<String> {
        match text {
            "all" => crates.clone(),
            "any but cli" => crates
                .iter()
                .filter(|name| *name != "cli")
                .cloned()
                .collect(),
            names => names
                .split(", ")
                .map(str::to_owned)
                .filter(|name| !name.is_empty())
                .collect(),
        }
    };
    let rows = rows.iter();
    rows.map(|(name, text)| (name.clone(), allowed(text)))
        .collect()
}

fn manifest(folder: &str) -> toml::Table {
    let text = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    text.parse().unwrap()
}

#[test]
fn the_table_has_all_crates() {
    let members = manifest(".")["workspace"]["members"]
        .as_array()
        .unwrap()
        .clone();
    let members = members
        .iter()
        .map(|member| member.as_str().unwrap().to_owned());
    assert!(picture().into_keys().eq(members.collect::<BTreeSet<_>>()));
}

#[test]
fn crates_depend_as_drawn() {
    let picture = picture();
    for (name, allowed) in &picture {
        let manifest = manifest(name);
        for table in ["dependencies", "build-dependencies"] {
            let Some(dependencies) = manifest.get(table) else {
                continue;
            };
            for dependency in dependencies.as_table().unwrap().keys() {
                let is_drawn = !picture.contains_key(dependency) || allowed.contains(dependency);
                assert!(
                    is_drawn,
                    "{name} depends on {dependency}; ARCHITECTURE.md forbids it"
                );
            }
        }
    }
}

/// A crate may embed files of its own folder and of crates that it may use.
#[test]
fn files_are_embedded_as_drawn() {
    for (name, allowed) in picture() {
        let mut sources = sources(&name);
        sources.extend(files(&name, "build.rs"));
        for file in &sources {
            for target in embedded(file) {
                let folder = target.split('/').next().unwrap();
                let is_listed = |(from, to): &(&str, &str)| *from == name && target.starts_with(to);
                let is_drawn =
                    folder == name || allowed.contains(folder) || EMBEDDED.iter().any(is_listed);
                assert!(is_drawn, "{} embeds {target}", file.path);
            }
        }
    }
}

/// Returns the paths, relative to the root, of the files outside its folder that a file embeds.
fn embedded(file: &SourceFile) -> Vec<String> {
    let code = file.code();
    let literals = code.split('"').skip(1).step_by(2);
    let outside = literals.filter(|literal| literal.starts_with("../"));
    let folder = Path::new(&file.path).parent().unwrap();
    let paths = outside.map(|literal| without_dots(&folder.join(literal)));
    paths
        .map(|path| path.to_str().unwrap().to_owned())
        .collect()
}

fn without_dots(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(result.pop()),
            component => result.push(component),
        }
    }
    result
}

#[test]
fn embedded_files_are_found() {
    let file = SourceFile {
        path: "policy/src/lib.rs".to_owned(),
        text: "const A: &[u8] = include_bytes!(concat!(\"../../data/x/\", $name));".to_owned(),
    };
    assert_eq!(embedded(&file), ["data/x"]);
}

/// The learner handles tokens only: it has no means to render or tokenize text.
#[test]
fn the_learner_reads_and_writes_no_text() {
    for file in sources("learner") {
        for banned in ["Chat", ".chat", "tokenizer", "Template", ".render("] {
            assert!(
                !file.text.contains(banned),
                "{} mentions {banned}",
                file.path
            );
        }
    }
}
