//! Loads SQLEnv's layout: `questions/questions_train.json`, `questions/questions_eval.json` (one of
//! them may be missing) and `databases/<name>/<name>.sqlite`, in the folder itself or in its
//! subfolder `data`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::dataset::{database_file, degenerate_reason, read_array, select};
use crate::{DataError, Dataset, LeftOut, Question};

const FILES: [&str; 2] = ["questions_train.json", "questions_eval.json"];

/// Returns the folder that contains `questions/`, if `dir` has SQLEnv's layout.
pub(crate) fn root(dir: &Path) -> Option<PathBuf> {
    let has_questions = |root: &PathBuf| {
        let questions = root.join("questions");
        FILES.iter().any(|file| questions.join(file).is_file())
    };
    let roots = [dir.to_owned(), dir.join("data")];
    roots.into_iter().find(has_questions)
}

/// Reads the question files of the folder that [`root`] found. Records whose gold answer is empty
/// are left out.
pub(crate) fn open(root: &Path, databases: Option<&[String]>) -> Result<Dataset, DataError> {
    let mut records = Vec::new();
    for file in FILES {
        let file = format!("questions/{file}");
        let path = root.join(&file);
        if path.is_file() {
            let read = read(&path)?.into_iter().enumerate();
            records.extend(read.map(|(index, question)| (file.clone(), index, question)));
        }
    }
    let known = records.iter().map(|(_, _, it)| it.database_name.clone());
    let known: BTreeSet<String> = known.collect();
    let names = select(root, &known, databases, || known.clone())?;
    let mut dataset = Dataset::default();
    for (file, index, question) in records {
        if !names.contains(&question.database_name) {
            continue;
        }
        match degenerate_reason(&question) {
            None => dataset.questions.push(question),
            Some(reason) => dataset.left_out.push(LeftOut {
                file,
                index,
                line: None,
                question_id: Some(question.question_id),
                database_name: question.database_name,
                reason,
                is_wrong: false,
            }),
        }
    }
    for name in names {
        let file = database_file(&root.join("databases"), &name)?;
        dataset.databases.insert(name, file);
    }
    Ok(dataset)
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
