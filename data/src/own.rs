//! Loads a folder of the own layout: `manifest.json`, `questions/<split>.jsonl`,
//! `databases/<name>/<name>.sqlite`.

use std::collections::BTreeSet;
use std::path::Path;

use crate::dataset::{database_file, select};
use crate::{DataError, Dataset, Manifest, Question, text};

/// Reads a folder. Every file that is used must have its hash in the manifest.
pub(crate) fn open(dir: &Path, databases: Option<&[String]>) -> Result<Dataset, DataError> {
    let manifest = Manifest::read(dir)?;
    let known = manifest.databases.iter().map(|it| it.name.clone());
    let known: BTreeSet<String> = known.collect();
    let names = select(dir, &known, databases)?;
    let mut dataset = Dataset::default();
    for name in &names {
        let file = database_file(&dir.join("databases"), name)?;
        let relative = format!("databases/{name}/{name}.sqlite");
        let expected = hash_of(dir, &manifest, &relative)?;
        manifest.verify(&file.path, expected, &file.sha256)?;
        dataset.databases.insert(name.clone(), file);
    }
    let files = manifest.files.iter();
    for (file, sha256) in files.filter(|(file, _)| file.ends_with(".jsonl")) {
        let path = dir.join(file);
        manifest.verify_file(&path, sha256)?;
        let mut questions = read_lines(&path)?;
        if let Some(lost) = questions
            .iter()
            .find(|it| !known.contains(&it.database_name))
        {
            let problem = format!(
                "question `{}` names the database `{}`, which manifest.json does not list; {}",
                lost.question_id,
                lost.database_name,
                manifest.origin.remedy()
            );
            return Err(DataError::format(&path, problem));
        }
        questions.retain(|question| names.contains(&question.database_name));
        dataset.questions.append(&mut questions);
    }
    Ok(dataset)
}

fn hash_of<'a>(dir: &Path, manifest: &'a Manifest, file: &str) -> Result<&'a str, DataError> {
    manifest.files.get(file).map(String::as_str).ok_or_else(|| {
        DataError::format(
            &dir.join(crate::manifest::FILE_NAME),
            format!("files: `{file}` is missing; {}", manifest.origin.remedy()),
        )
    })
}

fn read_lines(path: &Path) -> Result<Vec<Question>, DataError> {
    let text = text::read(path)?;
    let lines = (1..).zip(text.lines());
    let parse = |(number, line)| {
        let problem = |error| format!("line {number}: not a question record: {error}");
        serde_json::from_str(line).map_err(|error| DataError::format(path, problem(error)))
    };
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    lines.map(parse).collect()
}
