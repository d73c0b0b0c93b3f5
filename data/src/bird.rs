//! Loads BIRD's layout: `train.json` with `train_databases/<name>/<name>.sqlite`, `dev.json` (or
//! `mini_dev_sqlite.json`) with `dev_databases/<name>/<name>.sqlite`, or both.
//!
//! With both files, the databases of the dev file are `eval-unseen`. With one, splits follow
//! Spider's rule. The evidence of a record becomes part of its question, since the question alone
//! often cannot be answered.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::dataset::select;
use crate::records::{self, RecordLayout, SqlRecord};
use crate::{DataError, Dataset};

const TRAIN: (&str, &[&str]) = ("train_databases", &["train.json"]);
/// The second file is a part of the first.
const DEV: (&str, &[&str]) = ("dev_databases", &["dev.json", "mini_dev_sqlite.json"]);

/// Whether the folder has BIRD's layout.
pub(crate) fn is_layout(dir: &Path) -> bool {
    [TRAIN, DEV].iter().any(|(it, _)| dir.join(it).is_dir())
}

/// Reads BIRD's questions about the chosen databases and runs their gold SQL.
pub(crate) fn open(dir: &Path, databases: Option<&[String]>) -> Result<Dataset, DataError> {
    let (train, dev) = (read_part(dir, TRAIN)?, read_part(dir, DEV)?);
    let unseen: BTreeSet<String> = dev.keys().cloned().collect();
    let has_both = !train.is_empty() && !dev.is_empty();
    if let Some(name) = unseen.iter().find(|name| train.contains_key(*name)) {
        let problem = format!(
            "the database `{name}` has questions in train.json and in the dev file; keep one of \
             them"
        );
        return Err(DataError::format(dir, problem));
    }
    let mut by_database = train;
    by_database.extend(dev);
    let known: BTreeSet<String> = by_database.keys().cloned().collect();
    let names = select(dir, &known, databases)?;
    by_database.retain(|name, _| names.contains(name));
    let layout = RecordLayout {
        name: "bird",
        unseen: match has_both {
            true => unseen,
            false => records::unseen_databases("bird", &names),
        },
    };
    records::open(&layout, by_database)
}

type ByDatabase = BTreeMap<String, (PathBuf, Vec<SqlRecord>)>;

/// Reads the questions about the databases in one of BIRD's folders, if it is there.
fn read_part(dir: &Path, part: (&str, &[&'static str])) -> Result<ByDatabase, DataError> {
    let (folder, files) = part;
    let mut by_database = ByDatabase::new();
    if !dir.join(folder).is_dir() {
        return Ok(by_database);
    }
    let Some(file) = files.iter().find(|file| dir.join(file).is_file()) else {
        let problem = format!(
            "the folder has BIRD's {folder}, but not {}; add it",
            files.join(" or ")
        );
        return Err(DataError::format(dir, problem));
    };
    for record in records::read(dir, file)? {
        let (_, records) = by_database
            .entry(record.database_name.clone())
            .or_insert_with(|| (dir.join(folder), Vec::new()));
        records.push(record);
    }
    Ok(by_database)
}
