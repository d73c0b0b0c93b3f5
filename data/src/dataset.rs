//! Questions with their databases, and what the loaders of all layouts share.
//!
//! Invariant: the database of each question is in `databases`, and question ids are unique.
//! Questions have the order of the files, and in the layouts of Spider and BIRD they are sorted by
//! database first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::file_stamp::{FileStamp, HashedFile};
use crate::{AnswerType, DataError, Question, hash, text};

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
    /// Which file it was, and its state.
    stamp: FileStamp,
}

impl DatabaseFile {
    /// Reads and hashes the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(name: &str, path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let stamp = FileStamp::of(&file.metadata()?)?;
        let (sha256, size_bytes) = hash::open_file_sha256(&mut file)?;
        Ok(Self {
            name: name.to_owned(),
            path: path.to_owned(),
            sha256,
            size_bytes,
            stamp,
        })
    }

    /// Returns what tells later whether the file has changed.
    pub fn hashed(&self) -> HashedFile {
        HashedFile::new(&self.sha256, self.stamp)
    }
}

/// A question that cannot be used, and the reason. It is one line of the file that `--left-out`
/// writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The file of the record, relative to the data folder.
    pub file: String,
    /// The index of the record in its file. The first has index 0.
    pub index: usize,
    /// The line of the record, if records have lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The id of the record, if it has one.
    pub question_id: Option<String>,
    /// The database that the question names.
    pub database_name: String,
    /// Why the question cannot be used.
    pub reason: String,
    /// Whether the record is wrong, so that a check fails: its SQL does not compile, or its fields
    /// contradict each other. A query without rows is not wrong.
    pub is_wrong: bool,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, index, database) = (&self.file, self.index, &self.database_name);
        write!(f, "{file}[{index}]")?;
        if let Some(line) = self.line {
            write!(f, ", line {line},")?;
        }
        if !database.is_empty() {
            write!(f, " on {database}")?;
        }
        write!(f, ": {}", self.reason)
    }
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
    /// Returns a dataset of one question about a database file. The question has no gold answer, so
    /// the environment calls every answer incorrect.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_question(database: &Path, question_text: &str) -> Result<Self, DataError> {
        let name = database
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let file = DatabaseFile::open(&name, database).map_err(DataError::io(database, "read"))?;
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

/// Returns the selected names, or all without a selection. All of them must be in `known`.
pub(crate) fn select(
    dir: &Path,
    known: &BTreeSet<String>,
    selected: Option<&[String]>,
) -> Result<BTreeSet<String>, DataError> {
    let names = match selected {
        Some([all]) if all == "all" => known.clone(),
        Some(names) => names.iter().cloned().collect(),
        None => known.clone(),
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
    DatabaseFile::open(name, &path).map_err(DataError::io(&path, "read"))
}

/// Reads a file that holds one JSON array.
pub(crate) fn read_array(path: &Path) -> Result<Vec<Value>, DataError> {
    let text = text::read(path)?;
    let problem = |error| {
        format!("not a JSON array: {error}; write one array of records, or fetch the file again")
    };
    serde_json::from_str(&text).map_err(|error| DataError::format(path, problem(error)))
}
