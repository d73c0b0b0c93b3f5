//! A folder of questions and databases, opened and verified.
//!
//! Invariant: each question's database is in `databases`, ids are unique, and the order of questions is that of the
//! files. The three layouts (own build, Spider, SQLEnv) differ only in how the records are read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{AnswerType, DataError, Question, hash, own, spider, sqlenv_json};

/// An immutable SQLite file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseFile {
    /// The name by which questions refer to it.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    /// Hex SHA-256 of the file at the time of opening.
    pub sha256: String,
    /// Its size.
    pub size_bytes: u64,
}

/// A question that cannot be asked, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Where the record stands: file and index, or its id.
    pub place: String,
    /// The database that it names.
    pub database_name: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Questions with their databases.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// The folder's name, for people.
    pub name: String,
    /// All questions of all splits.
    pub questions: Vec<Question>,
    /// The databases by name; only those that questions may refer to.
    pub databases: BTreeMap<String, DatabaseFile>,
    /// Questions of the files that are not in `questions`.
    pub left_out: Vec<LeftOut>,
}

/// The questions of a layout before its databases are opened.
#[derive(Default)]
pub(crate) struct Records {
    pub(crate) questions: Vec<Question>,
    pub(crate) left_out: Vec<LeftOut>,
    pub(crate) databases: BTreeMap<String, DatabaseFile>,
}

#[derive(Clone, Copy)]
enum Layout {
    Own,
    Spider,
    SqlEnv,
}

impl Dataset {
    /// Opens a folder: an own build (`manifest.json`), Spider (`tables.json`) or SQLEnv (`questions/questions_train.json`).
    ///
    /// `databases` selects databases by name; the one name `all` selects every one. Without a selection Spider opens
    /// the ten databases that SQLEnv uses ([`crate::SQLENV_TEN`]), the other layouts open all.
    ///
    /// # Errors
    /// A folder of no known layout, a malformed record (file, index, field), a database that is missing, broken or not
    /// the one of the manifest, an unknown name in the selection.
    pub fn open(dir: &Path, databases: Option<&[String]>) -> Result<Self, DataError> {
        let records = match layout(dir)? {
            Layout::Own => own::open(dir, databases)?,
            Layout::Spider => spider::open(dir, databases)?,
            Layout::SqlEnv => sqlenv_json::open(dir, databases)?,
        };
        let name = dir.file_name().map_or_else(
            || dir.display().to_string(),
            |name| name.to_string_lossy().into_owned(),
        );
        let Records {
            questions,
            left_out,
            databases,
        } = records;
        let mut ids = BTreeSet::new();
        if let Some(double) = questions
            .iter()
            .find(|question| !ids.insert(&question.question_id))
        {
            let id = &double.question_id;
            return Err(DataError::format(
                dir,
                format!("question_id `{id}` occurs twice; give each question its own id"),
            ));
        }
        if questions.is_empty() {
            let left_out = left_out.len();
            return Err(DataError::format(
                dir,
                format!("no usable question ({left_out} left out); choose other databases"),
            ));
        }
        Ok(Self {
            name,
            questions,
            databases,
            left_out,
        })
    }

    /// The questions of a split; a name without part, `eval-unseen`, also matches its parts, `eval-unseen/domain`.
    pub fn split<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Question> + use<'a> {
        let (whole, prefix) = (name.to_owned(), format!("{name}/"));
        self.questions
            .iter()
            .filter(move |question| question.split == whole || question.split.starts_with(&prefix))
    }

    /// The names of the splits, sorted.
    pub fn split_names(&self) -> Vec<String> {
        let names: BTreeSet<&String> = self
            .questions
            .iter()
            .map(|question| &question.split)
            .collect();
        names.into_iter().cloned().collect()
    }
}

fn layout(dir: &Path) -> Result<Layout, DataError> {
    if !dir.is_dir() {
        return Err(DataError::format(
            dir,
            "no such folder; check the path, or build data with `sqlenv data build`",
        ));
    }
    if dir.join("manifest.json").is_file() {
        return Ok(Layout::Own);
    }
    if dir.join("tables.json").is_file() {
        return Ok(Layout::Spider);
    }
    if sqlenv_json::root(dir).is_some() {
        return Ok(Layout::SqlEnv);
    }
    Err(DataError::format(
        dir,
        "not a data folder: it holds neither manifest.json (own build), nor tables.json (Spider), nor \
         questions/questions_train.json (SQLEnv)",
    ))
}

/// The names chosen out of `known`; `default` when nothing is chosen.
pub(crate) fn select(
    dir: &Path,
    known: &BTreeSet<String>,
    chosen: Option<&[String]>,
    default: impl FnOnce() -> BTreeSet<String>,
) -> Result<BTreeSet<String>, DataError> {
    let names = match chosen {
        None => default(),
        Some([all]) if all == "all" => known.clone(),
        Some(names) => names.iter().cloned().collect(),
    };
    match names.iter().find(|name| !known.contains(*name)) {
        None => Ok(names),
        Some(unknown) => {
            let list = known
                .iter()
                .take(12)
                .cloned()
                .collect::<Vec<_>>()
                .join(", ");
            let more = if known.len() > 12 {
                format!(" and {} more", known.len() - 12)
            } else {
                String::new()
            };
            let dir = dir.display();
            Err(DataError::Request(format!(
                "{dir}: no questions about a database `{unknown}`; there are {list}{more}"
            )))
        }
    }
}

/// Finds and hashes `folder/<name>/<name>.sqlite`.
pub(crate) fn database_file(folder: &Path, name: &str) -> Result<DatabaseFile, DataError> {
    let path = folder.join(name).join(format!("{name}.sqlite"));
    if !path.is_file() {
        return Err(DataError::format(
            &path,
            format!("the database `{name}` is missing; fetch or build the data again"),
        ));
    }
    let (sha256, size_bytes) = hash::file_sha256(&path)?;
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
    serde_json::from_slice(&text).map_err(|error| {
        DataError::format(
            path,
            format!("not a JSON array: {error}; fetch the file again"),
        )
    })
}

/// Splits off the records whose gold answer nobody can give.
pub(crate) fn leave_out_degenerate(questions: Vec<Question>) -> (Vec<Question>, Vec<LeftOut>) {
    let (kept, degenerate): (Vec<_>, Vec<_>) = questions
        .into_iter()
        .partition(|question| !is_degenerate(question));
    let left_out = degenerate.into_iter().map(|question| LeftOut {
        place: question.question_id,
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
    // Files of others keep lists and tables as text now and then; "[]" is one of those.
    let is_empty_text = matches!(question.answer_type, AnswerType::List | AnswerType::Table)
        && question
            .gold_answer
            .as_str()
            .is_some_and(|text| text.trim() == "[]");
    is_blank(&question.gold_answer) || is_empty_text
}
