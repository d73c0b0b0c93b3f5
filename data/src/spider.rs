//! Loads Spider's layout: `tables.json`, `dev.json`, `train_spider.json`,
//! `database/<name>/<name>.sqlite`.
//!
//! Gold answers come from running the gold SQL. A question without an answer is left out with the
//! reason. Splits depend only on the hashes of names: one of five databases (rounded down, those
//! with the smallest hash) becomes `eval-unseen`, and 30 in 100 queries on the other databases go
//! to `eval`. All wordings of a query belong to the same split.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::dataset::{database_file, read_array, select};
use crate::sql::GoldDatabase;
use crate::sql_text::case_folded_form;
use crate::{DataError, Dataset, LeftOut, Question, answer_from_rows, hash};

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

const FILES: [&str; 2] = ["dev.json", "train_spider.json"];
const EVAL_PERCENT: u64 = 30;
const DATABASES_PER_UNSEEN: usize = 5;

#[derive(Deserialize)]
struct SpiderRecord {
    db_id: String,
    question: String,
    query: String,
}

/// Reads Spider's questions about the chosen databases and runs their gold SQL.
pub(crate) fn open(dir: &Path, databases: Option<&[String]>) -> Result<Dataset, DataError> {
    let mut by_database: BTreeMap<String, Vec<(String, SpiderRecord)>> = BTreeMap::new();
    for (location, record) in read(dir)? {
        let records = by_database.entry(record.db_id.clone()).or_default();
        records.push((location, record));
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
             `all`",
            dir.display()
        )));
    }
    let unseen = unseen_databases(&names);
    let mut dataset = Dataset::default();
    by_database.retain(|name, _| names.contains(name));
    for (name, database_records) in by_database {
        let file = database_file(&dir.join("database"), &name)?;
        let database = GoldDatabase::open(&file.path)?;
        dataset.databases.insert(name.clone(), file);
        let mut indices = BTreeMap::new();
        for (location, record) in database_records {
            let split = split_of(&record, unseen.contains(&name));
            match answer(&database, record, split, &mut indices) {
                Ok(question) => dataset.questions.push(question),
                Err(reason) => dataset.left_out.push(LeftOut {
                    record: location,
                    database_name: name.clone(),
                    reason,
                }),
            }
        }
    }
    Ok(dataset)
}

fn read(dir: &Path) -> Result<Vec<(String, SpiderRecord)>, DataError> {
    let paths = FILES.map(|file| (file, dir.join(file)));
    if paths.iter().all(|(_, path)| !path.is_file()) {
        return Err(DataError::format(
            dir,
            "tables.json is here, but neither dev.json nor train_spider.json; add one",
        ));
    }
    let mut records = Vec::new();
    for (file, path) in paths.into_iter().filter(|(_, path)| path.is_file()) {
        for (index, value) in read_array(&path)?.into_iter().enumerate() {
            let record = parse(value)
                .map_err(|problem| DataError::format(&path, format!("index {index}: {problem}")))?;
            records.push((format!("{file}[{index}]"), record));
        }
    }
    Ok(records)
}

fn parse(value: Value) -> Result<SpiderRecord, String> {
    let record: SpiderRecord = serde_json::from_value(value).map_err(|error| {
        format!("{error}; each record needs the texts db_id, question and query")
    })?;
    let fields = [
        ("db_id", &record.db_id),
        ("question", &record.question),
        ("query", &record.query),
    ];
    match fields.iter().find(|(_, text)| text.trim().is_empty()) {
        Some((field, _)) => Err(format!("the field {field} is empty")),
        None => Ok(record),
    }
}

fn unseen_databases(names: &BTreeSet<String>) -> BTreeSet<String> {
    let mut by_hash: Vec<&String> = names.iter().collect();
    by_hash.sort_by_key(|name| hash::name_hash(&["spider-unseen", name]));
    by_hash
        .into_iter()
        .take(names.len() / DATABASES_PER_UNSEEN)
        .cloned()
        .collect()
}

fn split_of(record: &SpiderRecord, is_unseen: bool) -> &'static str {
    let is_eval = || {
        hash::percentile(&[
            "spider-eval",
            &record.db_id,
            &case_folded_form(&record.query),
        ]) < EVAL_PERCENT
    };
    match is_unseen {
        true => "eval-unseen",
        false if is_eval() => "eval",
        false => "train",
    }
}

fn answer(
    database: &GoldDatabase,
    record: SpiderRecord,
    split: &'static str,
    indices: &mut BTreeMap<&'static str, usize>,
) -> Result<Question, String> {
    let gold = database.run(&record.query)?;
    let (answer_type, gold_answer) = answer_from_rows(&gold.rows)?;
    let index = indices.entry(split).or_default();
    let question_id = format!("{}_{split}_{index:03}", record.db_id);
    *index += 1;
    Ok(Question {
        question_id,
        question_text: record.question,
        database_name: record.db_id,
        gold_sql: record.query,
        gold_answer,
        answer_type,
        // SQLEnv's rule: the number of tables.
        difficulty: match gold.tables.len() {
            0..=2 => "easy",
            3 => "medium",
            _ => "hard",
        }
        .to_owned(),
        tables_involved: gold.tables,
        split: split.to_owned(),
    })
}
