//! Loads SQLEnv's layout: `questions/questions_train.json`, `questions/questions_eval.json` (one of
//! them may be missing) and `databases/<name>/<name>.sqlite`, in the folder itself or in its
//! subfolder `data`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::dataset::{database_file, read_array, select};
use crate::{AnswerType, DataError, Dataset, LeftOut, Question};

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
    let names = select(root, &known, databases)?;
    let mut dataset = Dataset::default();
    for (file, index, question) in records {
        if !names.contains(&question.database_name) {
            continue;
        }
        match has_no_answer(&question) {
            false => dataset.questions.push(question),
            true => dataset.left_out.push(LeftOut {
                file,
                index,
                line: None,
                question_id: Some(question.question_id),
                database_name: question.database_name,
                reason: "its gold answer is empty or NULL".to_owned(),
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

/// Whether the gold answer is empty, so that no agent can give it.
fn has_no_answer(question: &Question) -> bool {
    fn is_blank(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::String(text) => text.trim().is_empty(),
            Value::Array(cells) => cells.iter().all(is_blank),
            _ => false,
        }
    }
    // Foreign files sometimes store lists and tables as text, such as "[]".
    let is_empty_text = matches!(question.answer_type, AnswerType::List | AnswerType::Table)
        && question
            .gold_answer
            .as_str()
            .is_some_and(|text| text.trim() == "[]");
    is_blank(&question.gold_answer) || is_empty_text
}
