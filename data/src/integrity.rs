//! Looks for damage in database files.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, ffi};

use crate::sql::{NAME_NOT_UTF8, check_names, limit_steps, open_immutable};
use crate::{DataError, DatabaseFile, Dataset};

const MOST_LINES: u8 = 5;
/// How a rollback journal starts until its transaction has ended (<https://sqlite.org/fileformat.html>,
/// 3). With `journal_mode = PERSIST` the file stays, and starts with zeros.
const JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
/// SQLite instructions for each byte of a file and its log, and for a file without any. The check
/// computes virtual columns, and the schema may be untrusted.
const STEPS_PER_BYTE: u64 = 16;
const STEPS: u64 = 20_000_000;
/// The longest value of a virtual column. One instruction may take long to compute a longer one.
const MAX_COMPUTED_BYTES: i32 = 1 << 20;
/// What is found if these do not suffice.
const TOO_LONG: &str = "takes too long to check";

/// Returns what is wrong with the files of a dataset, a line each: damaged databases, databases
/// that the environment would read otherwise, and records that are wrong. A line names the file,
/// the record and what to do.
///
/// # Errors
/// A file cannot be opened.
pub fn faults(dataset: &Dataset) -> Result<Vec<String>, DataError> {
    faults_and_damaged(dataset).map(|(faults, _)| faults)
}

/// Returns the faults, and the names of the databases that are damaged.
pub(crate) fn faults_and_damaged(
    dataset: &Dataset,
) -> Result<(Vec<String>, BTreeSet<String>), DataError> {
    let (mut faults, mut damaged) = (Vec::new(), BTreeSet::new());
    for (name, file) in &dataset.databases {
        let (found, is_damaged) = database_faults(file)?;
        faults.extend(found);
        damaged.extend(is_damaged.then(|| name.clone()));
    }
    let wrong = dataset.left_out.iter().filter(|it| it.is_wrong);
    faults.extend(wrong.map(|it| format!("{it}; correct the record, or remove it")));
    Ok((faults, damaged))
}

/// Returns the faults of a database, and whether it is damaged.
fn database_faults(file: &DatabaseFile) -> Result<(Vec<String>, bool), DataError> {
    let (name, path) = (&file.name, file.path.display());
    let mut connection = open_immutable(&file.path).map_err(DataError::sqlite(&file.path))?;
    let damage = damage_of(&mut connection, &file.path);
    // What takes too long to check may be damaged.
    let is_damaged = damage
        .iter()
        .any(|found| found == TOO_LONG || obstacle(found).is_none());
    let mut faults: Vec<String> = damage
        .into_iter()
        .map(|found| match obstacle(&found) {
            Some(obstacle) => format!("{name}: {path}: {obstacle}"),
            None => {
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
    Ok((faults, is_damaged))
}

/// Returns the write-ahead log or the rollback journal beside a database, unless it is empty or
/// its transaction has ended. SQLite keeps it beside the file that a link leads to.
pub fn unread_log(path: &Path) -> Option<PathBuf> {
    let file = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    ["-wal", "-journal"].into_iter().find_map(|suffix| {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        let log = PathBuf::from(name);
        let is_open = match suffix {
            "-journal" => may_be_open(&log),
            _ => log.metadata().is_ok_and(|it| it.len() > 0),
        };
        is_open.then_some(log)
    })
}

/// Returns whether there is a rollback journal whose transaction may not have ended.
fn may_be_open(journal: &Path) -> bool {
    let mut first = Vec::new();
    let head = JOURNAL_MAGIC.len() as u64;
    match File::open(journal).and_then(|file| file.take(head).read_to_end(&mut first)) {
        Ok(_) => first == JOURNAL_MAGIC,
        Err(fault) => fault.kind() != ErrorKind::NotFound,
    }
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

/// Returns whether a finding is no damage: a row has a value that its column does not allow.
fn contradicts_declaration(found: &str) -> bool {
    let kind = found.split_once(" value in ").map_or("", |(kind, _)| kind);
    ["NULL", "NUMERIC", "TEXT"].contains(&kind) || kind.starts_with("non-")
}

/// Returns what is wrong with a database and what to do, unless the finding is damage.
pub(crate) fn obstacle(found: &str) -> Option<String> {
    Some(match found {
        TOO_LONG => {
            format!(
                "the database {found}; make its tables again in a new file, without computed \
                 columns"
            )
        }
        _ if needs_application(found) => format!(
            "its schema needs its own application ({found}); make the table again without that"
        ),
        // SQLite plans queries by the declaration: with NOT NULL, `IS NULL` finds no row.
        _ if contradicts_declaration(found) => format!(
            "rows contradict the declaration of their table ({found}), so queries may have wrong \
             results; correct the rows or the declaration"
        ),
        _ if found.contains(NAME_NOT_UTF8) => format!("{found}; rename it"),
        _ => return None,
    })
}

/// Looks for damage in all pages of an open database, and returns what SQLite finds, a line each.
/// Afterwards the connection has no module of virtual tables, and only serves to copy the database.
pub(crate) fn damage_of(connection: &mut Connection, path: &Path) -> Vec<String> {
    let limited = limit_reading(connection, path);
    let length = limit_computed(connection);
    let checked = limited.and_then(|()| quick_check(connection));
    // The limits are those of this check. Removing them cannot fail on an open connection.
    let _ = connection.progress_handler(0, None::<fn() -> bool>);
    if let Some(bytes) = length {
        let _ = connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, bytes);
    }
    match checked {
        Ok(lines) if lines == ["ok"] => Vec::new(),
        // One finding may have several lines.
        Ok(lines) => lines.iter().map(|line| line.replace('\n', " ")).collect(),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted | ErrorCode::TooBig) => vec![TOO_LONG.to_owned()],
            _ => vec![error.to_string()],
        },
    }
}

/// Limits what reads a database by the size of its files. The first statement on a connection reads
/// the schema, whose pages may form a tree without an end, so this comes before it.
pub(crate) fn limit_reading(connection: &mut Connection, path: &Path) -> rusqlite::Result<()> {
    // A log may hold most of the rows. Its header could state any number of pages, so the sizes of
    // the files count.
    let files = [Some(path.to_owned()), unread_log(path)];
    let sizes = files.iter().flatten().map(|file| file.metadata());
    let bytes: u64 = sizes.map(|it| it.map_or(0, |it| it.len())).sum();
    limit_steps(connection, STEPS + STEPS_PER_BYTE * bytes)
}

/// Limits the length of values if the schema has virtual columns, and returns the limit before.
/// Without such columns the check computes no value, and the tables may store long ones.
fn limit_computed(connection: &Connection) -> Option<i32> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_master AS t, pragma_table_xinfo(t.name) AS c \
               WHERE t.type = 'table' AND t.rootpage > 0 AND c.hidden = 2)";
    // Where the schema cannot be read, the check says why.
    let has_virtual = connection.query_row(sql, [], |row| row.get(0));
    let limit = || {
        connection
            .set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_COMPUTED_BYTES)
            .ok()
    };
    has_virtual.unwrap_or(false).then(limit).flatten()
}

fn quick_check(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // Queries do not depend on CHECK constraints, and rows may be older than these.
    connection.execute_batch("PRAGMA ignore_check_constraints = ON")?;
    drop_modules(connection)?;
    check_names(connection)?;
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

/// Keeps the check from opening virtual tables. It would fail as a whole where one needs something
/// of its application, such as a tokenizer, and agents do not see them.
fn drop_modules(connection: &Connection) -> rusqlite::Result<()> {
    // SAFETY: the handle is open; in place of a list of modules to keep there may be null. Some
    // functions of FTS would use what is freed here, and nothing calls them: they are not
    // deterministic, so generated columns and indexes may not, and CHECK constraints are off.
    let code = unsafe { ffi::sqlite3_drop_modules(connection.handle(), null_mut()) };
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}
