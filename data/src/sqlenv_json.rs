//! SQLEnv's layout: `questions/questions_train.json` and `questions_eval.json`, `databases/<name>/<name>.sqlite`,
//! both either in the folder itself or in its `data` folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::dataset::{Records, database_file, leave_out_degenerate, read_array, select};
use crate::{DataError, Question};

const FILES: [&str; 2] = ["questions_train.json", "questions_eval.json"];

/// The folder that holds `questions/`, if this is SQLEnv's layout.
pub(crate) fn root(dir: &Path) -> Option<PathBuf> {
    [dir.to_owned(), dir.join("data")]
        .into_iter()
        .find(|root| root.join("questions").join(FILES[0]).is_file())
}

/// Reads both question files; records whose gold answer is empty are left out.
pub(crate) fn open(dir: &Path, databases: Option<&[String]>) -> Result<Records, DataError> {
    let root = root(dir).unwrap_or_else(|| dir.to_owned());
    let mut questions = Vec::new();
    for file in FILES {
        questions.extend(read(&root.join("questions").join(file))?);
    }
    let known: BTreeSet<String> = questions
        .iter()
        .map(|question| question.database_name.clone())
        .collect();
    let names = select(dir, &known, databases, || known.clone())?;
    questions.retain(|question| names.contains(&question.database_name));
    let (questions, left_out) = leave_out_degenerate(questions);
    let files = names
        .iter()
        .map(|name| Ok((name.clone(), database_file(&root.join("databases"), name)?)));
    Ok(Records {
        questions,
        left_out,
        databases: files.collect::<Result<_, DataError>>()?,
    })
}

fn read(path: &Path) -> Result<Vec<Question>, DataError> {
    read_array(path)?
        .into_iter()
        .enumerate()
        .map(|(index, record)| {
            serde_json::from_value(record).map_err(|error| {
                DataError::format(
                    path,
                    format!("index {index}: {error}; each record needs SQLEnv's nine fields"),
                )
            })
        })
        .collect()
}
