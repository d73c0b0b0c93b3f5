//! Writes compact SQLite files, and copies those of users: complete, and without their log.
//!
//! Invariant: a user's file may be damaged or untrusted. Its copy is whole, and every view of the
//! copy can be read. What its schema runs, such as computed columns and views, has a budget.
//! Counting the rows of tables runs nothing of the schema.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::integrity::{damage_of, limit_reading, needs_application, obstacle, unread_log};
use crate::sql::{GoldDatabase, NOT_UTF8, harden, open_immutable, shadow_tables};
use crate::sql_text::quoted;
use crate::{DataError, folder};

/// The bytes in the header that say whether the file has a write-ahead log.
const LOG_VERSION_AT: u64 = 18;
const WRITE_AHEAD_LOG: u8 = 2;
/// The rows of a view that are read.
const SHOWN_ROWS: usize = 5;

/// What a copied file holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CopiedDatabase {
    pub(crate) tables: usize,
    pub(crate) views: usize,
    pub(crate) rows: u64,
    /// Tables that agents cannot query.
    pub(crate) virtual_tables: Vec<String>,
    /// The views that cannot be read and that the copy lacks, a sentence each.
    pub(crate) unreadable_views: Vec<String>,
}

/// Writes a database to a new file. The bytes depend only on the content and on SQLite's version.
///
/// # Errors
/// The path is not UTF-8, or SQLite cannot write there.
pub(crate) fn write(connection: &Connection, path: &Path) -> Result<(), DataError> {
    connection
        .execute("VACUUM INTO ?1", [folder::utf8(path)?])
        .map(|_| ())
        .map_err(DataError::sqlite(path))
}

/// Copies the database at `source`, with what its write-ahead log holds, to a new file. The
/// source is only read; SQLite may leave its index `-shm` beside a write-ahead log.
///
/// # Errors
/// The source is damaged, has no table, or cannot be read.
pub(crate) fn copy(source: &Path, target: &Path) -> Result<CopiedDatabase, DataError> {
    let mut connection = open(source)?;
    if let Some(found) = damage_of(&mut connection, source).first() {
        return Err(refusal(source, found));
    }
    // Copying runs the `CREATE` statements of the file.
    harden(&connection).map_err(DataError::sqlite(source))?;
    write(&connection, target).map_err(|error| match error {
        DataError::Sqlite { cause, .. } if needs_application(&cause.to_string()) => {
            refusal(source, &cause.to_string())
        }
        error => error,
    })?;
    drop(connection);
    let unreadable_views = take_out_unreadable_views(target)?;
    let mut copied = count(target).map_err(DataError::sqlite(target))?;
    copied.unreadable_views = unreadable_views;
    Ok(copied)
}

/// Returns why a database is refused, with the remedy.
fn refusal(source: &Path, found: &str) -> DataError {
    let problem = match obstacle(found) {
        Some(obstacle) => {
            format!("{obstacle}, or export the tables to CSV files and give these")
        }
        None => format!(
            "the database is damaged or empty: {found}; give a copy that is whole, or repair it \
             with `sqlite3 FILE .recover`"
        ),
    };
    DataError::format(source, problem)
}

/// Drops the views of a copy that agents could not read, and says which and why. A view that uses
/// such a view is dropped as well.
fn take_out_unreadable_views(copy: &Path) -> Result<Vec<String>, DataError> {
    let mut reasons = Vec::new();
    loop {
        let unreadable = unreadable_views(copy)?;
        if unreadable.is_empty() {
            return Ok(reasons);
        }
        let drop_all = || -> rusqlite::Result<()> {
            let connection = Connection::open(copy)?;
            harden(&connection)?;
            for (view, _) in &unreadable {
                connection.execute_batch(&format!("DROP VIEW {}", quoted(view)))?;
            }
            connection.execute_batch("VACUUM")
        };
        drop_all().map_err(DataError::sqlite(copy))?;
        let reason = |(view, reason): &(String, String)| {
            format!("view {view} is left out: it cannot be read ({reason})")
        };
        reasons.extend(unreadable.iter().map(reason));
    }
}

/// Returns the views that cannot be counted or shown within the budget of a query, with reasons. If
/// there are views whose declarations are not UTF-8, returns only these.
fn unreadable_views(path: &Path) -> Result<Vec<(String, String)>, DataError> {
    let views = || -> rusqlite::Result<Vec<(String, bool)>> {
        let connection = open_immutable(path)?;
        let sql = "SELECT name, sql FROM sqlite_master WHERE type = 'view' ORDER BY rowid";
        let mut statement = connection.prepare(sql)?;
        let views = statement.query_map([], |row| {
            Ok((row.get(0)?, row.get_ref(1)?.as_str().is_ok()))
        })?;
        views.collect()
    };
    let views = views().map_err(DataError::sqlite(path))?;
    // An authorizer of rusqlite panics on their names, also where another view uses them.
    let not_utf8 = views.iter().filter(|(_, is_utf8)| !is_utf8);
    let not_utf8: Vec<_> = not_utf8
        .map(|(view, _)| (view.clone(), "its declaration is not UTF-8".to_owned()))
        .collect();
    if !not_utf8.is_empty() {
        return Ok(not_utf8);
    }
    let database = GoldDatabase::open(path)?;
    let problem = |view: &String| {
        let view = quoted(view);
        let count = database.run(&format!("SELECT count(*) FROM {view}"));
        let shown = || database.run(&format!("SELECT * FROM {view} LIMIT {SHOWN_ROWS}"));
        let reason = count.and_then(|_| shown()).err()?.reason;
        // Agents see such text, with marks in place of what is not UTF-8.
        (reason != NOT_UTF8).then_some(reason)
    };
    let unreadable = views.into_iter().filter_map(|(view, _)| {
        let reason = problem(&view)?;
        Some((view, reason))
    });
    Ok(unreadable.collect())
}

fn open(source: &Path) -> Result<Connection, DataError> {
    let failed = |error: rusqlite::Error| match unread_log(source) {
        Some(log) => DataError::format(
            source,
            format!(
                "cannot be opened with {} ({error}); close the program that writes to it, or run \
                 `sqlite3 FILE \"PRAGMA journal_mode = DELETE\"` on a copy of both files",
                log.display()
            ),
        ),
        None => DataError::format(
            source,
            format!(
                "not a readable SQLite database, or a damaged one ({error}); give another \
                 file"
            ),
        ),
    };
    // SQLite would create a log beside the file, which the folder may not allow.
    if is_in_log_mode(source)? && unread_log(source).is_none() {
        return open_immutable(source).map_err(failed);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(source, flags).map_err(failed)?;
    limit_reading(&mut connection, source).map_err(failed)?;
    // The first read opens the log. No limit of steps ends a count.
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_master)";
    connection.query_row(sql, [], |_| Ok(())).map_err(failed)?;
    Ok(connection)
}

fn is_in_log_mode(path: &Path) -> Result<bool, DataError> {
    use std::os::unix::fs::FileExt as _;
    let mut version = [0; 1];
    let file = std::fs::File::open(path).map_err(DataError::io(path, "read"))?;
    let read = file.read_at(&mut version, LOG_VERSION_AT);
    read.map_err(DataError::io(path, "read"))?;
    Ok(version[0] == WRITE_AHEAD_LOG)
}

fn count(path: &Path) -> rusqlite::Result<CopiedDatabase> {
    let connection = open_immutable(path)?;
    // Agents do not see them either.
    let shadows = shadow_tables(&connection)?;
    let mut statement = connection.prepare(
        "SELECT name, type = 'view', rootpage = 0 FROM sqlite_master WHERE type IN ('table', \
         'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid",
    )?;
    let relations = statement.query_map([], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, bool>(1)?,
            row.get::<_, bool>(2)?,
        ))
    })?;
    let mut copied = CopiedDatabase::default();
    for relation in relations {
        match relation? {
            (_, true, _) => copied.views += 1,
            (name, _, true) => copied.virtual_tables.push(name),
            (name, ..) if shadows.contains(&name) => {}
            (name, _, _) => {
                let sql = format!("SELECT count(*) FROM {}", quoted(&name));
                let rows: i64 = connection.query_row(&sql, [], |row| row.get(0))?;
                copied.tables += 1;
                copied.rows += rows.unsigned_abs();
            }
        }
    }
    Ok(copied)
}
