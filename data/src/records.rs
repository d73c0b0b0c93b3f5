//! Makes a dataset of records that have question, SQL and database: Spider's and BIRD's.
//!
//! Gold answers come from running the gold SQL. A question without an answer is left out with the
//! reason. All wordings of a query belong to the same split, also if they spell it with other white
//! space: the first spelling decides.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::dataset::{database_file, read_array};
use crate::error::Refused;
use crate::gold::{Derived, derive, level};
use crate::sql::GoldDatabase;
use crate::sql_text::{case_folded_form, query_key};
use crate::{DataError, Dataset, LeftOut, Question, hash};

const EVAL_PERCENT: u64 = 30;
const DATABASES_PER_UNSEEN: usize = 5;

/// The fields of a record that count.
#[derive(Deserialize)]
struct RecordFields {
    db_id: String,
    question: String,
    /// Spider also has the syntax tree of the query, as `sql`.
    #[serde(alias = "SQL")]
    query: String,
    #[serde(default)]
    evidence: String,
    difficulty: Option<String>,
}

/// A record of a question file.
pub(crate) struct SqlRecord {
    file: &'static str,
    index: usize,
    pub(crate) database_name: String,
    question_text: String,
    gold_sql: String,
    /// The level, if the file has one.
    difficulty: Option<String>,
}

/// Reads the records of the file with this name in a folder.
///
/// # Errors
/// The file cannot be read, or a record lacks a field or has an empty one. The error names it.
pub(crate) fn read(dir: &Path, file: &'static str) -> Result<Vec<SqlRecord>, DataError> {
    let path = dir.join(file);
    let record = |(index, value): (usize, Value)| -> Result<SqlRecord, DataError> {
        let refuse =
            |problem: String| DataError::format(&path, format!("index {index}: {problem}"));
        let fields: RecordFields = serde_json::from_value(value).map_err(|error| {
            refuse(format!(
                "{error}; each record needs the texts db_id, question and query (BIRD: SQL)"
            ))
        })?;
        let texts = [
            ("db_id", &fields.db_id),
            ("question", &fields.question),
            ("query (BIRD: SQL)", &fields.query),
        ];
        if let Some((field, _)) = texts.iter().find(|(_, text)| text.trim().is_empty()) {
            return Err(refuse(format!(
                "the field {field} is empty; write it, or remove the record"
            )));
        }
        Ok(SqlRecord {
            file,
            index,
            question_text: with_evidence(&fields.question, &fields.evidence),
            database_name: fields.db_id,
            gold_sql: fields.query,
            difficulty: fields.difficulty.filter(|it| !it.trim().is_empty()),
        })
    };
    read_array(&path)?
        .into_iter()
        .enumerate()
        .map(record)
        .collect()
}

/// Returns the question with its evidence, as agents see it.
pub(crate) fn with_evidence(question: &str, evidence: &str) -> String {
    match evidence.trim() {
        "" => question.to_owned(),
        evidence => format!("{} Hint: {evidence}", question.trim_end()),
    }
}

/// How the records of a layout become questions.
pub(crate) struct RecordLayout {
    /// The part of hashes that keeps the splits of layouts apart: `spider`, `bird`.
    pub(crate) name: &'static str,
    /// The databases whose questions are all `eval-unseen`.
    pub(crate) unseen: BTreeSet<String>,
}

impl RecordLayout {
    /// Returns the split of a query on a database.
    fn split_of(&self, database_name: &str, query: &str) -> &'static str {
        let is_eval = || {
            let layout = format!("{}-eval", self.name);
            hash::percentile(&[&layout, database_name, query]) < EVAL_PERCENT
        };
        match self.unseen.contains(database_name) {
            true => "eval-unseen",
            false if is_eval() => "eval",
            false => "train",
        }
    }
}

/// Returns one in five of the databases, rounded down: those whose names have the smallest hash.
pub(crate) fn unseen_databases(layout: &str, names: &BTreeSet<String>) -> BTreeSet<String> {
    let mut by_hash: Vec<&String> = names.iter().collect();
    by_hash.sort_by_key(|name| hash::name_hash(&[&format!("{layout}-unseen"), name]));
    let unseen = by_hash.into_iter().take(names.len() / DATABASES_PER_UNSEEN);
    unseen.cloned().collect()
}

/// Opens the databases of the records, each in its folder, and answers the questions.
pub(crate) fn open(
    layout: &RecordLayout,
    by_database: BTreeMap<String, (PathBuf, Vec<SqlRecord>)>,
) -> Result<Dataset, DataError> {
    let mut dataset = Dataset::default();
    for (name, (folder, records)) in by_database {
        let file = database_file(&folder, &name)?;
        let database = GoldDatabase::open(&file.path)?;
        dataset.databases.insert(name.clone(), file);
        let mut indices = BTreeMap::new();
        let mut spellings = BTreeMap::new();
        for record in records {
            let spelling = spellings.entry(query_key(&record.gold_sql));
            let query = spelling.or_insert_with(|| case_folded_form(&record.gold_sql));
            let split = layout.split_of(&name, query);
            match derive(&database, &record.gold_sql) {
                Ok(derived) => {
                    let question = question(record, derived, split, &mut indices);
                    dataset.questions.push(question);
                }
                Err(refused) => dataset.left_out.push(left_out(record, refused)),
            }
        }
    }
    Ok(dataset)
}

fn left_out(record: SqlRecord, refused: Refused) -> LeftOut {
    LeftOut {
        file: record.file.to_owned(),
        index: record.index,
        line: None,
        question_id: None,
        database_name: record.database_name,
        reason: refused.reason,
        is_wrong: refused.is_wrong,
    }
}

fn question(
    record: SqlRecord,
    derived: Derived,
    split: &'static str,
    indices: &mut BTreeMap<&'static str, usize>,
) -> Question {
    let index = indices.entry(split).or_default();
    let question_id = format!("{}_{split}_{index:03}", record.database_name);
    *index += 1;
    let difficulty = record.difficulty;
    Question {
        question_id,
        question_text: record.question_text,
        database_name: record.database_name,
        gold_sql: record.gold_sql,
        gold_answer: derived.answer,
        answer_type: derived.answer_type,
        difficulty: difficulty.unwrap_or_else(|| level(&derived.tables).to_owned()),
        tables_involved: derived.tables,
        split: split.to_owned(),
    }
}
