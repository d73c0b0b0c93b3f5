//! Loads SQLEnv's layout: `questions/questions_train.json`, `questions/questions_eval.json` and
//! `databases/<name>/<name>.sqlite`, in the folder itself or in its subfolder `data`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::dataset::{database_file, leave_out_degenerate, read_array, select};
use crate::{DataError, Dataset, Question};

const FILES: [&str; 2] = ["questions_train.json", "questions_eval.json"];

/// Returns the folder that contains `questions/`, if `dir` has SQLEnv's layout.
pub(crate) fn root(dir: &Path) -> Option<PathBuf> {
    [dir.to_owned(), dir.join("data")]
        .into_iter()
        .find(|root| root.join("questions").join(FILES[0]).is_file())
}

/// Reads both question files of the folder that [`root`] found. Records whose gold answer is empty
/// are left out.
pub(crate) fn open(root: &Path, databases: Option<&[String]>) -> Result<Dataset, DataError> {
    let mut questions = Vec::new();
    for file in FILES {
        questions.extend(read(&root.join("questions").join(file))?);
    }
    let known = questions.iter().map(|it| it.database_name.clone());
    let known: BTreeSet<String> = known.collect();
    let names = select(root, &known, databases, || known.clone())?;
    questions.retain(|question| names.contains(&question.database_name));
    let (questions, left_out) = leave_out_degenerate(questions);
    let files = names
        .iter()
        .map(|name| Ok((name.clone(), database_file(&root.join("databases"), name)?)));
    Ok(Dataset {
        questions,
        left_out,
        databases: files.collect::<Result<_, DataError>>()?,
        ..Dataset::default()
    })
}

fn read(path: &Path) -> Result<Vec<Question>, DataError> {
    let parse = |(index, record)| {
        let problem =
            |error| format!("index {index}: {error}; each record needs SQLEnv's nine fields");
        serde_json::from_value(record).map_err(|error| DataError::format(path, problem(error)))
    };
    let records = read_array(path)?;
    records.into_iter().enumerate().map(parse).collect()
}
