//! Loads an own build: `manifest.json`, `questions/<split>.jsonl`,
//! `databases/<name>/<name>.sqlite`.

use std::collections::BTreeSet;
use std::path::Path;

use crate::dataset::{database_file, select};
use crate::manifest::{Manifest, verify_file};
use crate::{DataError, Dataset, Question};

/// Reads an own build. Every file that is used must have its hash in the manifest.
pub(crate) fn open(dir: &Path, databases: Option<&[String]>) -> Result<Dataset, DataError> {
    let manifest = Manifest::read(dir)?;
    let known = manifest.databases.iter().map(|it| it.name.clone());
    let known: BTreeSet<String> = known.collect();
    let names = select(dir, &known, databases, || known.clone())?;
    let mut dataset = Dataset::default();
    for name in &names {
        let file = database_file(&dir.join("databases"), name)?;
        let relative = format!("databases/{name}/{name}.sqlite");
        verify_file(&file.path, hash_of(dir, &manifest, &relative)?)?;
        dataset.databases.insert(name.clone(), file);
    }
    let files = manifest.files.iter();
    for (file, sha256) in files.filter(|(file, _)| file.ends_with(".jsonl")) {
        let path = dir.join(file);
        verify_file(&path, sha256)?;
        let mut questions = read_lines(&path)?;
        questions.retain(|question| names.contains(&question.database_name));
        dataset.questions.append(&mut questions);
    }
    Ok(dataset)
}

fn hash_of<'a>(dir: &Path, manifest: &'a Manifest, file: &str) -> Result<&'a str, DataError> {
    manifest.files.get(file).map(String::as_str).ok_or_else(|| {
        DataError::format(
            &dir.join(crate::manifest::FILE_NAME),
            format!("files: `{file}` is missing; build the data again"),
        )
    })
}

fn read_lines(path: &Path) -> Result<Vec<Question>, DataError> {
    let text = std::fs::read_to_string(path).map_err(DataError::io(path, "read"))?;
    let lines = (1..).zip(text.lines());
    let parse = |(number, line)| {
        let problem = |error| format!("line {number}: not a question record: {error}");
        serde_json::from_str(line).map_err(|error| DataError::format(path, problem(error)))
    };
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    lines.map(parse).collect()
}
