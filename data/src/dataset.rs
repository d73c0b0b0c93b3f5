//! Opens and verifies a folder of questions and databases.
//!
//! Invariant: the database of each question is in `databases`, question ids are unique, and
//! questions have the order of the files. The three layouts (own build, Spider, SQLEnv) differ only
//! in how their records are read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{AnswerType, DataError, Question, hash, own, spider, sqlenv_json};

/// An immutable SQLite file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseFile {
    /// The name that questions use.
    pub name: String,
    /// The path of the file.
    pub path: PathBuf,
    /// The hexadecimal SHA-256 of the file when it was opened.
    pub sha256: String,
    /// The size of the file.
    pub size_bytes: u64,
}

/// A question that cannot be used, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The record: its file and index, or its id.
    pub record: String,
    /// The database that the question names.
    pub database_name: String,
    /// Why the question cannot be used.
    pub reason: String,
}

/// Questions with their databases.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dataset {
    /// The name of the folder, for display.
    pub name: String,
    /// The questions of all splits.
    pub questions: Vec<Question>,
    /// The selected databases, by name.
    pub databases: BTreeMap<String, DatabaseFile>,
    /// The questions of the files that are not in `questions`.
    pub left_out: Vec<LeftOut>,
}

impl Dataset {
    /// Opens a folder: an own build (`manifest.json`), Spider (`tables.json`) or SQLEnv
    /// (`questions/questions_train.json`).
    ///
    /// `databases` selects databases by name. The single name `all` selects every database. Without
    /// a selection Spider opens the ten databases that SQLEnv uses ([`crate::SQLENV_TEN`]), and the
    /// other layouts open all.
    ///
    /// # Errors
    /// Fails if the folder has no known layout, if a record is malformed (the error names file,
    /// index and field), if a database is missing, broken or different from the manifest, or if the
    /// selection names an unknown database.
    pub fn open(dir: &Path, databases: Option<&[String]>) -> Result<Self, DataError> {
        let mut dataset = read_layout(dir, databases)?;
        dataset.name = dir.file_name().map_or_else(
            || dir.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        );
        let mut ids = BTreeSet::new();
        let mut in_order = dataset
            .questions
            .iter()
            .map(|question| &question.question_id);
        if let Some(id) = in_order.find(|id| !ids.insert(*id)) {
            let problem = format!("question_id `{id}` occurs twice; give each question its own id");
            return Err(DataError::format(dir, problem));
        }
        if dataset.questions.is_empty() {
            let left_out = dataset.left_out.len();
            let problem =
                format!("no usable question ({left_out} left out); choose other databases");
            return Err(DataError::format(dir, problem));
        }
        Ok(dataset)
    }

    /// Returns a dataset of one question about a database file. The question has no gold answer, so
    /// the environment calls every answer incorrect.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_question(database: &Path, question_text: &str) -> Result<Self, DataError> {
        let name = database
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let (sha256, size_bytes) =
            hash::file_sha256(database).map_err(DataError::io(database, "read"))?;
        let question = Question {
            question_id: format!("{name}_question"),
            question_text: question_text.to_owned(),
            database_name: name.clone(),
            gold_sql: "SELECT NULL".to_owned(),
            gold_answer: Value::Null,
            answer_type: AnswerType::Unknown,
            difficulty: String::new(),
            tables_involved: Vec::new(),
            split: "own".to_owned(),
        };
        let file = DatabaseFile {
            name: name.clone(),
            path: database.to_owned(),
            sha256,
            size_bytes,
        };
        Ok(Self {
            questions: vec![question],
            databases: BTreeMap::from([(name.clone(), file)]),
            name,
            left_out: Vec::new(),
        })
    }

    /// Returns the questions of a split. A name without part, `eval-unseen`, also matches its
    /// parts, such as `eval-unseen/domain`.
    pub fn split<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Question> + use<'a> {
        let (whole, prefix) = (name.to_owned(), format!("{name}/"));
        self.questions
            .iter()
            .filter(move |question| question.split == whole || question.split.starts_with(&prefix))
    }

    /// Returns the names of the splits, sorted.
    pub fn split_names(&self) -> Vec<String> {
        let names = self.questions.iter().map(|question| &question.split);
        let names: BTreeSet<&String> = names.collect();
        names.into_iter().cloned().collect()
    }
}

/// Reads the folder in the layout that its files show, without a name.
fn read_layout(dir: &Path, databases: Option<&[String]>) -> Result<Dataset, DataError> {
    if !dir.is_dir() {
        return Err(DataError::format(
            dir,
            "no such folder; check the path, or build data with `sqlenv data build`",
        ));
    }
    if dir.join("manifest.json").is_file() {
        return own::open(dir, databases);
    }
    if dir.join("tables.json").is_file() {
        return spider::open(dir, databases);
    }
    if let Some(root) = sqlenv_json::root(dir) {
        return sqlenv_json::open(&root, databases);
    }
    Err(DataError::format(
        dir,
        "not a data folder: it holds neither manifest.json (own build), nor tables.json (Spider), \
         nor questions/questions_train.json (SQLEnv)",
    ))
}

/// Returns the selected names, or `default` without a selection. All of them must be in `known`.
pub(crate) fn select(
    dir: &Path,
    known: &BTreeSet<String>,
    selected: Option<&[String]>,
    default: impl FnOnce() -> BTreeSet<String>,
) -> Result<BTreeSet<String>, DataError> {
    let names = match selected {
        None => default(),
        Some([all]) if all == "all" => known.clone(),
        Some(names) => names.iter().cloned().collect(),
    };
    let Some(unknown) = names.difference(known).next() else {
        return Ok(names);
    };
    let mut list: Vec<String> = known.iter().take(12).cloned().collect();
    if known.len() > list.len() {
        list.push(format!("and {} more", known.len() - list.len()));
    }
    Err(DataError::Request(format!(
        "{}: no questions about a database `{unknown}`; there are {}",
        dir.display(),
        list.join(", ")
    )))
}

/// Finds and hashes `folder/<name>/<name>.sqlite`.
pub(crate) fn database_file(folder: &Path, name: &str) -> Result<DatabaseFile, DataError> {
    // A record may say anything, such as `../other`.
    if Path::new(name).file_name() != Some(name.as_ref()) {
        let problem = format!(
            "a record names the database {name:?}; a database has the name of its folder, without \
             a path"
        );
        return Err(DataError::format(folder, problem));
    }
    let path = folder.join(name).join(format!("{name}.sqlite"));
    if !path.is_file() {
        let problem = format!("the database `{name}` is missing; fetch or build the data again");
        return Err(DataError::format(&path, problem));
    }
    let (sha256, size_bytes) = hash::file_sha256(&path).map_err(DataError::io(&path, "read"))?;
    Ok(DatabaseFile {
        name: name.to_owned(),
        path,
        sha256,
        size_bytes,
    })
}

/// Reads a file that holds one JSON array.
pub(crate) fn read_array(path: &Path) -> Result<Vec<Value>, DataError> {
    let text = std::fs::read(path).map_err(DataError::io(path, "read"))?;
    let problem = |error| format!("not a JSON array: {error}; fetch the file again");
    serde_json::from_slice(&text).map_err(|error| DataError::format(path, problem(error)))
}

/// Separates the records whose gold answer is empty, which no agent can give.
pub(crate) fn leave_out_degenerate(questions: Vec<Question>) -> (Vec<Question>, Vec<LeftOut>) {
    let (kept, degenerate): (Vec<_>, Vec<_>) = questions
        .into_iter()
        .partition(|question| !is_degenerate(question));
    let left_out = degenerate.into_iter().map(|question| LeftOut {
        record: question.question_id,
        database_name: question.database_name,
        reason: "its gold answer is empty or NULL".to_owned(),
    });
    (kept, left_out.collect())
}

fn is_degenerate(question: &Question) -> bool {
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
