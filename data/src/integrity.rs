//! Looks for damage in database files.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::sql::open_immutable;
use crate::{DataError, DatabaseFile, Dataset};

const MOST_LINES: u8 = 5;
/// SQLite instructions for each byte of a file, and for a file without any. Constraints of a schema
/// are checked as well, and they may be a stranger's.
const STEPS_PER_BYTE: u64 = 16;
const STEPS: u64 = 20_000_000;
const STEPS_PER_CALL: i32 = 10_000;

/// Returns what is wrong with the files of a dataset, a line each: damaged databases, databases
/// that the environment would read otherwise, and records that are wrong. A line names the file,
/// the record and what to do.
///
/// # Errors
/// A file cannot be opened.
pub fn faults(dataset: &Dataset) -> Result<Vec<String>, DataError> {
    let mut faults = Vec::new();
    for file in dataset.databases.values() {
        faults.extend(database_faults(file)?);
    }
    let wrong = dataset.left_out.iter().filter(|it| it.is_wrong);
    faults.extend(wrong.map(|it| format!("{it}; correct the record, or remove it")));
    Ok(faults)
}

fn database_faults(file: &DatabaseFile) -> Result<Vec<String>, DataError> {
    let (name, path) = (&file.name, file.path.display());
    let mut faults: Vec<String> = damage(&file.path)?
        .into_iter()
        .map(|found| match needs_application(&found) {
            true => format!(
                "{name}: the schema of {path} needs its own application: {found}; make the table \
                 again without that"
            ),
            false => {
                format!("{name}: the file is damaged: {found}; restore {path} from a copy of it")
            }
        })
        .collect();
    if let Some(log) = unread_log(&file.path) {
        faults.push(format!(
            "{name}: {} holds changes that are not in the database, and the environment does not \
             read them; run `sqlite3 {path} \"PRAGMA journal_mode = DELETE\"`",
            log.display()
        ));
    }
    Ok(faults)
}

/// Returns the write-ahead log or the rollback journal beside a database, unless it is empty.
pub(crate) fn unread_log(path: &Path) -> Option<PathBuf> {
    ["-wal", "-journal"].into_iter().find_map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let log = PathBuf::from(name);
        log.metadata().is_ok_and(|it| it.len() > 0).then_some(log)
    })
}

/// Looks for damage in all pages of a database file, and returns what SQLite finds, a line each.
///
/// # Errors
/// The file cannot be opened.
fn damage(path: &Path) -> Result<Vec<String>, DataError> {
    let mut connection = open_immutable(path).map_err(DataError::sqlite(path))?;
    let size_bytes = path.metadata().map_err(DataError::io(path, "read"))?.len();
    Ok(damage_of(&mut connection, size_bytes))
}

/// Returns whether a finding is no damage: the schema uses a collation or a function that the
/// application of the database adds to SQLite.
pub(crate) fn needs_application(found: &str) -> bool {
    let missing = [
        "no such collation sequence",
        "unknown function",
        "no such function",
    ];
    missing.iter().any(|it| found.contains(it))
}

/// Looks for damage in all pages of an open database of this size.
pub(crate) fn damage_of(connection: &mut Connection, size_bytes: u64) -> Vec<String> {
    let checked = quick_check(connection, STEPS + STEPS_PER_BYTE * size_bytes);
    // The budget is that of this check. Removing the handler cannot fail on an open connection.
    let _ = connection.progress_handler(0, None::<fn() -> bool>);
    match checked {
        Ok(lines) if lines == ["ok"] => Vec::new(),
        // One finding may have several lines.
        Ok(lines) => lines.iter().map(|line| line.replace('\n', " ")).collect(),
        Err(error) => vec![error.to_string()],
    }
}

fn quick_check(connection: &mut Connection, budget: u64) -> rusqlite::Result<Vec<String>> {
    let mut steps = 0;
    let is_spent = move || {
        steps += STEPS_PER_CALL as u64;
        steps > budget
    };
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.progress_handler(STEPS_PER_CALL, Some(is_spent))?;
    let mut statement = connection.prepare(&format!("PRAGMA quick_check({MOST_LINES})"))?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    let lines = lines.collect::<rusqlite::Result<Vec<_>>>()?;
    let tables = "SELECT count(*) FROM sqlite_master WHERE type IN ('table', 'view')";
    let tables: i64 = connection.query_row(tables, [], |row| row.get(0))?;
    Ok(match tables {
        0 => vec!["it has no table".to_owned()],
        _ => lines,
    })
}
