//! The layout of an own build: `manifest.json`, `questions/<split>.jsonl`, `databases/<name>/<name>.sqlite`.

use std::collections::BTreeSet;
use std::path::Path;

use crate::dataset::{Records, database_file, select};
use crate::manifest::{Manifest, verify_file};
use crate::{DataError, Question};

/// Reads an own build; every file that is used must have the hash of the manifest.
pub(crate) fn open(dir: &Path, databases: Option<&[String]>) -> Result<Records, DataError> {
    let manifest = Manifest::read(dir)?;
    let known: BTreeSet<String> = manifest
        .databases
        .iter()
        .map(|database| database.name.clone())
        .collect();
    let names = select(dir, &known, databases, || known.clone())?;
    let mut records = Records::default();
    for name in &names {
        let file = database_file(&dir.join("databases"), name)?;
        verify_file(
            &file.path,
            hash_of(dir, &manifest, &format!("databases/{name}/{name}.sqlite"))?,
        )?;
        records.databases.insert(name.clone(), file);
    }
    for (file, sha256) in manifest
        .files
        .iter()
        .filter(|(file, _)| file.ends_with(".jsonl"))
    {
        let path = dir.join(file);
        verify_file(&path, sha256)?;
        records.questions.extend(
            read_lines(&path)?
                .into_iter()
                .filter(|question| names.contains(&question.database_name)),
        );
    }
    Ok(records)
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
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            serde_json::from_str(line).map_err(|error| {
                DataError::format(
                    path,
                    format!("line {}: not a question record: {error}", index + 1),
                )
            })
        })
        .collect()
}
