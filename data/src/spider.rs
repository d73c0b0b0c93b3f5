//! Loads Spider's layout: `dev.json`, `train_spider.json`, `train_others.json` and
//! `database/<name>/<name>.sqlite`. `tables.json` may be there and is not read.
//!
//! Splits depend only on the hashes of names: one of five databases (rounded down, those with the
//! smallest hash) becomes `eval-unseen`, and 30 in 100 queries on the other databases go to `eval`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::dataset::select;
use crate::records::{self, RecordLayout, SqlRecord};
use crate::{DataError, Dataset};

/// The ten Spider databases that SQLEnv uses. They have 676 questions: 623 of Spider's dev file and
/// 53 of its train file.
const SQLENV_TEN: [&str; 10] = [
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
    let names: BTreeSet<String> = match databases {
        None => {
            let ten = SQLENV_TEN.map(str::to_owned).into_iter();
            ten.filter(|name| known.contains(name)).collect()
        }
        Some(_) => select(dir, &known, databases)?,
    };
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
    let files = FILES.into_iter().filter(|file| dir.join(file).is_file());
    let records: Vec<Vec<SqlRecord>> = files
        .map(|file| records::read(dir, file))
        .collect::<Result<_, _>>()?;
    if records.is_empty() {
        return Err(DataError::format(
            dir,
            "the folder has Spider's layout, but neither dev.json nor train_spider.json nor \
             train_others.json; add one",
        ));
    }
    Ok(records.into_iter().flatten().collect())
}
