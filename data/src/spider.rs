//! Loads Spider's layout: `dev.json`, `train_spider.json`, `train_others.json` and
//! `database/<name>/<name>.sqlite`. `tables.json` may be there and is not read.
//!
//! Splits depend only on the hashes of names: one of five databases (rounded down, those with the
//! smallest hash) becomes `eval-unseen`, and 30 in 100 queries on the other databases go to `eval`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::dataset::{read_array, select};
use crate::records::{self, RecordLayout, SqlRecord};
use crate::{DataError, Dataset};

/// The ten Spider databases that SQLEnv uses. They have 676 questions: 623 of Spider's dev file and
/// 53 of its train file.
pub const SQLENV_TEN: [&str; 10] = [
    "car_1",
    "concert_singer",
    "cre_Doc_Template_Mgt",
    "dog_kennels",
    "employee_hire_evaluation",
    "flight_2",
    "pets_1",
    "poker_player",
    "student_assessment",
    "world_1",
];

const FILES: [&str; 3] = ["dev.json", "train_spider.json", "train_others.json"];

#[derive(Deserialize)]
struct SpiderRecord {
    db_id: String,
    question: String,
    query: String,
}

/// Whether the folder has Spider's layout.
pub(crate) fn is_layout(dir: &Path) -> bool {
    dir.join("database").is_dir() || dir.join("tables.json").is_file()
}

/// Reads Spider's questions about the chosen databases and runs their gold SQL.
pub(crate) fn open(dir: &Path, databases: Option<&[String]>) -> Result<Dataset, DataError> {
    let mut by_database = BTreeMap::new();
    for record in read(dir)? {
        let (_, records) = by_database
            .entry(record.database_name.clone())
            .or_insert_with(|| (dir.join("database"), Vec::new()));
        records.push(record);
    }
    let known: BTreeSet<String> = by_database.keys().cloned().collect();
    let ten = || {
        let ten = SQLENV_TEN.map(str::to_owned).into_iter();
        ten.filter(|name| known.contains(name)).collect()
    };
    let names = select(dir, &known, databases, ten)?;
    if names.is_empty() {
        return Err(DataError::Request(format!(
            "{}: none of SQLEnv's ten databases has questions here; choose databases by name, or \
             `all`, with --databases",
            dir.display()
        )));
    }
    by_database.retain(|name, _| names.contains(name));
    let layout = RecordLayout {
        name: "spider",
        unseen: records::unseen_databases("spider", &names),
    };
    records::open(&layout, by_database)
}

fn read(dir: &Path) -> Result<Vec<SqlRecord>, DataError> {
    let paths = FILES.map(|file| (file, dir.join(file)));
    if paths.iter().all(|(_, path)| !path.is_file()) {
        return Err(DataError::format(
            dir,
            "the folder has Spider's layout, but neither dev.json nor train_spider.json nor \
             train_others.json; add one",
        ));
    }
    let mut records = Vec::new();
    for (file, path) in paths.into_iter().filter(|(_, path)| path.is_file()) {
        for (index, value) in read_array(&path)?.into_iter().enumerate() {
            let record = parse(value)
                .map_err(|problem| DataError::format(&path, format!("index {index}: {problem}")))?;
            records.push(SqlRecord {
                file,
                index,
                database_name: record.db_id,
                question_text: record.question,
                gold_sql: record.query,
                difficulty: None,
            });
        }
    }
    Ok(records)
}

fn parse(value: Value) -> Result<SpiderRecord, String> {
    let record: SpiderRecord = serde_json::from_value(value).map_err(|error| {
        format!("{error}; each record needs the texts db_id, question and query")
    })?;
    records::check_filled(&[
        ("db_id", record.db_id.as_str()),
        ("question", record.question.as_str()),
        ("query", record.query.as_str()),
    ])?;
    Ok(record)
}
