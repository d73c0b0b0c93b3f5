//! A database on disk: its identity and its schema.
//!
//! Invariant: a [`Database`] exists only for a file whose SHA-256 was taken. SQLite reads the file
//! as an immutable one, so `open_database` checks again and again that it was not changed since.
//! `sandbox` runs the agents' statements.

use std::sync::Arc;

use data::{DatabaseFile, HashedFile, sql_text::quoted};
use parking_lot::Mutex;
use rusqlite::{Connection, ffi};

use crate::{
    error::EnvError,
    row_reader::read_rows,
    rows::ResultLimits,
    sandbox::{authorizer::authorize_reads, inspection::inspect},
    schema::{Schema, Table},
    settings::SqlLimits,
};

/// Rows that SAMPLE shows.
const SAMPLE_ROWS: usize = 5;

/// A database file, and what is read of it once.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    pub(crate) file: DatabaseFile,
    hashed: Arc<Mutex<HashedFile>>,
    pub(crate) schema: Schema,
    /// Bytes of the longest row, or a little more.
    pub(crate) longest_row_bytes: u32,
}

impl Database {
    /// Reads the file's schema, row counts, longest row and sample rows.
    pub(crate) fn open(
        file: &DatabaseFile,
        limits: &ResultLimits,
        sql: &SqlLimits,
    ) -> Result<Self, EnvError> {
        let refuse = |reason: String| EnvError::Database {
            name: file.name.clone(),
            path: file.path.clone(),
            reason,
        };
        let (schema, longest_row_bytes) = inspect(&file.path, file.size_bytes, sql, |connection| {
            read_schema(connection, limits)
        })
        .map_err(refuse)?;
        if schema.tables.is_empty() {
            return Err(refuse("has no tables; build or copy it again".to_owned()));
        }
        let database = Self {
            file: file.clone(),
            hashed: Arc::new(Mutex::new(file.hashed())),
            schema,
            longest_row_bytes,
        };
        database.check_unchanged()?;
        Ok(database)
    }

    /// Checks that the file has the content whose hash identifies it. Returns how often it was
    /// found in another state so far.
    ///
    /// # Errors
    /// It has another content, or cannot be read.
    pub(crate) fn check_unchanged(&self) -> Result<u64, EnvError> {
        let DatabaseFile { name, path, .. } = &self.file;
        let (name, path) = (name.clone(), path.clone());
        let mut hashed = self.hashed.lock();
        let before = hashed.changes();
        match hashed.has_same_content(&path) {
            Ok(true) => Ok(hashed.changes()),
            Ok(false) => {
                let changed = EnvError::ChangedDatabase { name, path };
                // A change is logged once.
                if hashed.changes() > before {
                    tracing::error!("{changed}");
                }
                Err(changed)
            }
            Err(error) => Err(EnvError::Database {
                name,
                path,
                reason: format!("cannot be read: {error}; check that the file is still there"),
            }),
        }
    }
}

fn read_schema(
    connection: &mut Connection,
    limits: &ResultLimits,
) -> rusqlite::Result<(Schema, u32)> {
    // Agents cannot query virtual tables, whose module may be missing here, so they do not see
    // where these keep their content.
    let shadows = data::shadow_tables(connection)?;
    let mut names: Vec<(String, bool, bool)> = connection
        .prepare(
            "SELECT name, type = 'table', sql FROM sqlite_master \
             WHERE type IN ('table', 'view') AND NOT (type = 'table' AND rootpage = 0) \
             AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid",
        )?
        .query_map([], |row| {
            let is_utf8 = row.get_ref(2)?.as_str().is_ok();
            Ok((row.get(0)?, row.get(1)?, is_utf8))
        })?
        .collect::<Result<_, _>>()?;
    names.retain(|(name, is_table, _)| !is_table || !shadows.contains(name));
    let (mut tables, mut views) = (Vec::with_capacity(names.len()), Vec::new());
    let mut longest_row_bytes = 0;
    for (place, (name, is_table, is_utf8)) in names.iter().enumerate() {
        if !is_table {
            // rusqlite's authorizer panics on a name in a view that is not UTF-8.
            let columns = match is_utf8 {
                true => columns(connection, name),
                false => Err(not_utf8()),
            };
            views.push((place, name, columns));
            continue;
        }
        let columns = columns(connection, name)?;
        longest_row_bytes = longest_row_bytes.max(longest_row(connection, name, &columns)?);
        tables.push((place, read_table(connection, name, &columns, limits)?));
    }
    // Agents query a view under the authorizer. One that it denies, for instance because it calls
    // random(), would show other rows on each node.
    let all = names.iter().map(|(name, ..)| name.as_str());
    authorize_reads(connection, all, false)?;
    for (place, name, columns) in views {
        match columns.and_then(|columns| read_table(connection, name, &columns, limits)) {
            Ok(table) => tables.push((place, table)),
            // The tables can be asked about all the same.
            Err(error) if is_unusable(&error) => {
                tracing::warn!(view = name, %error, "a view cannot be read, so it is left out");
            }
            Err(error) => return Err(error),
        }
    }
    tables.sort_by_key(|(place, _)| *place);
    let tables = tables.into_iter().map(|(_, table)| table).collect();
    Ok((Schema { tables }, longest_row_bytes))
}

/// Whether a statement is wrong, for instance since a table that it names was changed, or uses what
/// agents may not use. Damage and limits have other codes.
fn is_unusable(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{AuthorizationForStatementDenied, Unknown};
    matches!(
        error.sqlite_error_code(),
        Some(AuthorizationForStatementDenied | Unknown)
    )
}

fn not_utf8() -> rusqlite::Error {
    let error = ffi::Error::new(ffi::SQLITE_ERROR);
    rusqlite::Error::SqliteFailure(error, Some("its SQL is not UTF-8".to_owned()))
}

/// Returns the names and types of the columns.
fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<(String, String)>> {
    connection
        // Generated columns are among them; hidden ones of virtual tables are not.
        .prepare("SELECT name, type FROM pragma_table_xinfo(?1) WHERE hidden <> 1")?
        .query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

fn longest_row(
    connection: &Connection,
    table: &str,
    columns: &[(String, String)],
) -> rusqlite::Result<u32> {
    let names = columns.iter().map(|(name, _)| name.as_str());
    let sql = data::longest_row_sql(table, names);
    connection.query_row(&sql, [], |row| row.get(0))
}

fn read_table(
    connection: &Connection,
    name: &str,
    columns: &[(String, String)],
    limits: &ResultLimits,
) -> rusqlite::Result<Table> {
    let quoted = quoted(name);
    let row_count: i64 =
        connection.query_row(&format!("SELECT count(*) FROM {quoted}"), [], |row| {
            row.get(0)
        })?;
    let mut statement =
        connection.prepare(&format!("SELECT * FROM {quoted} LIMIT {SAMPLE_ROWS}"))?;
    let sample = read_rows(&mut statement, SAMPLE_ROWS, |_| Ok(()))?;
    Ok(Table::new(
        name,
        columns,
        row_count.unsigned_abs(),
        sample.render(limits),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names of the tables that an agent sees of a database which `sql` makes.
    fn tables_of(name: &str, sql: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch(sql).unwrap();
        drop(connection);
        let file = DatabaseFile::open(name, &path).unwrap();
        let (limits, sql) = (ResultLimits::default(), SqlLimits::default());
        let database = Database::open(&file, &limits, &sql).unwrap();
        let names = database.schema.tables.iter().map(|table| &table.name);
        names.cloned().collect()
    }

    #[test]
    fn a_view_that_cannot_be_read_is_left_out() {
        let sql = "CREATE TABLE t (a); CREATE VIEW whole AS SELECT a FROM t;
            CREATE VIEW broken AS SELECT * FROM gone; CREATE VIEW other AS SELECT b FROM t;
            CREATE TABLE u (a); CREATE VIEW both AS SELECT a, c FROM t JOIN u;
            CREATE VIEW all_of_both AS SELECT * FROM t UNION ALL SELECT * FROM u;
            ALTER TABLE t ADD COLUMN c; ALTER TABLE u ADD COLUMN c; ALTER TABLE u ADD COLUMN d;
            CREATE VIEW latin AS SELECT a AS zzz FROM t;
            CREATE VIEW latin_too AS WITH zzz AS (SELECT a FROM t) SELECT a FROM zzz;
            PRAGMA writable_schema = ON;
            UPDATE sqlite_master SET sql = replace(sql, 'zzz', CAST(x'e9' AS TEXT));";
        assert_eq!(tables_of("views", sql), ["t", "whole", "u"]);
    }

    #[test]
    fn what_virtual_tables_keep_in_tables_is_not_shown() {
        let sql = "CREATE TABLE notes (title TEXT); CREATE TABLE found_data (a);
            CREATE TABLE areas_content (a); CREATE VIRTUAL TABLE areas USING rtree(id, low, high);
            CREATE VIRTUAL TABLE search USING fts5(title); INSERT INTO search VALUES ('one two');
            CREATE VIEW found AS SELECT c0 AS title FROM search_content;";
        let names = ["notes", "found_data", "areas_content"];
        assert_eq!(tables_of("notes", sql), names);
    }

    #[test]
    fn a_missing_or_broken_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broken.sqlite");
        std::fs::write(&path, "text").unwrap();
        let file = DatabaseFile::open("broken", &path).unwrap();
        let message = || {
            let (limits, sql) = (ResultLimits::default(), SqlLimits::default());
            Database::open(&file, &limits, &sql)
                .unwrap_err()
                .to_string()
        };
        let broken = message();
        assert!(
            broken.contains("broken.sqlite") && broken.contains("not a readable SQLite database"),
            "{broken}"
        );
        std::fs::remove_file(&path).unwrap();
        assert!(message().contains("broken.sqlite"), "{}", message());
    }
}
