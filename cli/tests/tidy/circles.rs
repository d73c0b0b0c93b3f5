//! Import circles: files of a crate that need each other, directly or through others.
//!
//! A path counts for the file that defines its module. A name that a module re-exports counts for
//! the file of the original name. Re-exports themselves are no imports.

use std::collections::{BTreeMap, BTreeSet};

use crate::{SourceFile, imports, picture::picture, sources};

/// The most files that may need each other.
const LARGEST: usize = 4;

/// The modules of a crate.
#[derive(Default)]
struct Modules {
    /// The file of each module path.
    files: BTreeMap<Vec<String>, String>,
    /// The absolute path of each re-exported name, by module and name.
    reexports: BTreeMap<Vec<String>, Vec<String>>,
}

/// Returns the module path of a file: `x/src/a/b.rs` is `a::b`.
fn module_of(path: &str) -> Vec<String> {
    let path = path.split_once("/src/").unwrap().1.trim_end_matches(".rs");
    let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
        module.pop();
    }
    module
}

/// Splits the code into `pub use` statements and the rest.
fn split_reexports(code: &str) -> (Vec<String>, String) {
    let (mut reexports, mut rest) = (Vec::new(), String::new());
    let mut statement: Option<String> = None;
    for line in code.lines() {
        let starts =
            line.starts_with("pub use ") || (line.starts_with("pub(") && line.contains(") use "));
        if starts || statement.is_some() {
            let text = statement.take().unwrap_or_default() + line + "\n";
            match line.trim_end().ends_with(';') {
                true => reexports.push(text),
                false => statement = Some(text),
            }
        } else {
            rest += line;
            rest.push('\n');
        }
    }
    (reexports, rest)
}

impl Modules {
    fn new(files: &[SourceFile]) -> Self {
        let named = files
            .iter()
            .map(|file| (module_of(&file.path), file.path.clone()));
        let mut modules = Self {
            files: named.collect(),
            ..Self::default()
        };
        for file in files {
            let module = module_of(&file.path);
            for statement in split_reexports(&file.code()).0 {
                for path in modules.absolute_paths(&module, &statement) {
                    let name = path.last().unwrap().clone();
                    let key = [&module[..], &[name]].concat();
                    modules.reexports.insert(key, path);
                }
            }
        }
        modules
    }

    /// Returns the paths in `code` that belong to this crate, as absolute module paths.
    fn absolute_paths(&self, module: &[String], code: &str) -> Vec<Vec<String>> {
        let children = self.files.keys();
        let children = children.filter(|it| it.len() == module.len() + 1 && it.starts_with(module));
        let children = children.map(|child| child.last().unwrap().as_str());
        let roots: Vec<&str> = ["crate", "super", "self"]
            .into_iter()
            .chain(children)
            .collect();
        let absolute = |path: Vec<String>| {
            let mut base = module.to_vec();
            let mut rest = path.as_slice();
            while let Some((first, after)) = rest.split_first() {
                match first.as_str() {
                    "crate" => base.clear(),
                    "super" => drop(base.pop()),
                    "self" => {}
                    _ => break,
                }
                rest = after;
            }
            [&base, rest].concat()
        };
        imports::paths(code, &roots)
            .into_iter()
            .map(absolute)
            .collect()
    }

    /// Returns the file that defines the item of an absolute path.
    fn file_of(&self, path: &[String], depth: usize) -> Option<&String> {
        let lengths = (0..=path.len()).rev();
        let known = lengths
            .map(|length| &path[..length])
            .find(|it| self.files.contains_key(*it))?;
        let name = path.get(..known.len() + 1);
        match name.and_then(|name| self.reexports.get(name)) {
            Some(original) if depth < 8 => self.file_of(original, depth + 1),
            _ => self.files.get(known),
        }
    }

    fn imports(&self, file: &SourceFile) -> BTreeSet<String> {
        let module = module_of(&file.path);
        let code = split_reexports(&file.code()).1;
        let paths = self.absolute_paths(&module, &code);
        let files = paths
            .iter()
            .filter_map(|path| self.file_of(path, 0).cloned());
        files.filter(|target| *target != file.path).collect()
    }
}

/// Returns the files that each file imports.
fn edges(files: &[SourceFile]) -> BTreeMap<String, BTreeSet<String>> {
    let modules = Modules::new(files);
    let edges = files
        .iter()
        .map(|file| (file.path.clone(), modules.imports(file)));
    edges.collect()
}

/// Returns the largest sets of files that reach each other.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reach = |start: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start.clone()]);
        while let Some(file) = open.pop() {
            let new = edges[&file]
                .iter()
                .filter(|target| seen.insert((*target).clone()));
            open.extend(new.cloned().collect::<Vec<_>>());
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        edges.keys().map(|file| (file, reach(file))).collect();
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for (file, targets) in &reached {
        let circle = targets
            .iter()
            .filter(|target| reached[target].contains(*file));
        let circle: BTreeSet<String> = circle.cloned().collect();
        if circle.len() > 1 && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

#[test]
fn import_circles_are_small() {
    let mut large = Vec::new();
    for name in picture().keys() {
        let mut files = sources(name);
        // The program's main file uses its library from outside.
        files.retain(|file| !file.path.ends_with("src/main.rs"));
        let edges = edges(&files);
        for circle in circles(&edges).into_iter().filter(|it| it.len() > LARGEST) {
            for file in &circle {
                let targets: Vec<_> = edges[file].intersection(&circle).cloned().collect();
                large.push(format!("{file} imports {}", targets.join(", ")));
            }
        }
    }
    assert!(
        large.is_empty(),
        "too many files need each other: {large:#?}"
    );
}

#[test]
fn a_circle_is_found() {
    let file = |path: &str, text: &str| SourceFile {
        path: format!("x/src/{path}"),
        text: text.to_owned(),
    };
    let files = [
        file("lib.rs", "mod a;\nmod b;\nmod c;\npub use c::Thing;"),
        file("a.rs", "use crate::{b::B, Other};"),
        file("b/mod.rs", "fn f() { d::g() }"),
        file("b/d.rs", "use super::super::c;"),
        file("c.rs", "pub struct Thing; fn f(_: crate::a::A) {}"),
        file("e.rs", "use crate::Thing;"),
    ];
    let expected = ["x/src/a.rs", "x/src/b/d.rs", "x/src/b/mod.rs", "x/src/c.rs"];
    let found = circles(&edges(&files));
    assert_eq!(found, [expected.map(str::to_owned).into()]);
}
