//! Reads what drafting needs of a database file: tables, columns, declared keys and rows.
//!
//! Invariant: the memory is bounded, whatever the tables have, and no expression of the schema is
//! evaluated.

use std::borrow::Cow;
use std::collections::BTreeSet;

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, ErrorCode, params_from_iter};

use super::sample::{RowSample, read_rows, row_id_name};
use super::unread;
use crate::sql_text::quoted;

/// The largest number of rows of a table that statistics and twins are made of.
const MOST_ROWS: u64 = 20_000;
/// The largest number of cells of all tables together. With the three twins they take some hundred
/// megabytes, or two gigabytes if all are long texts.
const MOST_CELLS: u64 = 2_000_000;

/// The tables of a database.
#[derive(Debug, Clone, Default)]
pub(super) struct SourceDatabase {
    pub(super) tables: Vec<SourceTable>,
    /// What is no plain table and no stored column, with the reason.
    pub(super) left_out: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct SourceTable {
    pub(super) name: String,
    pub(super) columns: Vec<SourceColumn>,
    /// Indices of the columns of the declared primary key.
    pub(super) primary_key: Vec<usize>,
    /// Declared foreign keys of one column.
    pub(super) foreign_keys: Vec<SourceForeignKey>,
    pub(super) row_count: u64,
    /// The rows, or some of them. Text that is not UTF-8 reads as a BLOB.
    pub(super) rows: Vec<Vec<SqlValue>>,
    /// Which rows were read, if not all.
    pub(super) sample: Option<RowSample>,
}

impl SourceTable {
    /// Returns what follows a statement about the values of a column if not all were read.
    pub(super) fn sample_note(&self) -> String {
        match &self.sample {
            None => String::new(),
            Some(sample) => {
                format!(
                    " in the rows that were read ({} of {})",
                    sample.rows, self.row_count
                )
            }
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct SourceColumn {
    pub(super) name: String,
    /// The affinity, as a type: it decides how values are compared.
    pub(super) affinity: &'static str,
    /// Whether all rows of the table have different values, and none NULL. BLOBs count as equal.
    pub(super) is_unique: bool,
    /// Whether the rows that were read have two values, and others have more.
    pub(super) has_more_values: bool,
    /// A NULL and a text that stands for a missing value, if the table has them, of a column of few
    /// values. Empty if all rows were read.
    pub(super) gaps: Vec<SqlValue>,
    /// A value that is no number or no date, if the rows that were read have only numbers or only
    /// dates, and others have such a value.
    pub(super) odd_value: Option<SqlValue>,
}

#[derive(Debug, Clone)]
pub(super) struct SourceForeignKey {
    pub(super) column: usize,
    pub(super) table: String,
    /// The column that it refers to, or none for the primary key.
    pub(super) to: Option<String>,
}

/// A table or another relation, as SQLite lists it.
struct ListedTable {
    name: String,
    kind: String,
    columns: u64,
    has_row_ids: bool,
}

/// Reads the tables of a database in the order of their names.
///
/// # Errors
/// The machine has no space or memory, or the database cannot be read at all. A table that cannot
/// be read is left out.
pub(super) fn read(connection: &Connection) -> rusqlite::Result<SourceDatabase> {
    read_at_most(connection, MOST_ROWS, MOST_CELLS)
}

/// Reads so many rows of each table, and so many cells of all together.
pub(super) fn read_at_most(
    connection: &Connection,
    most_rows: u64,
    most_cells: u64,
) -> rusqlite::Result<SourceDatabase> {
    let listed = listed_tables(connection)?;
    let plain = listed.iter().filter(|table| table.kind == "table");
    let columns: u64 = plain.map(|table| table.columns).sum();
    let most_rows = (most_cells / columns.max(1)).clamp(1, most_rows);
    let mut database = SourceDatabase::default();
    for table in listed {
        let (name, kind) = (&table.name, table.kind.as_str());
        match kind {
            "table" => match read_table(connection, &table, most_rows, &mut database.left_out) {
                Ok(table) => database.tables.push(table),
                Err(error) if is_of_machine(&error) => return Err(error),
                Err(error) => {
                    let reason = format!("table {name} is left out: it cannot be read ({error})");
                    database.left_out.push(reason);
                }
            },
            "shadow" => {}
            kind => {
                let reason =
                    format!("{kind} {name} is left out: only plain tables are asked about");
                database.left_out.push(reason);
            }
        }
    }
    Ok(database)
}

fn listed_tables(connection: &Connection) -> rusqlite::Result<Vec<ListedTable>> {
    let sql = "SELECT name, type, ncol, wr FROM pragma_table_list WHERE schema = 'main' \
               AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name";
    let mut statement = connection.prepare(sql)?;
    let listed = statement.query_map([], |row| {
        Ok(ListedTable {
            name: row.get(0)?,
            kind: row.get(1)?,
            columns: row.get::<_, i64>(2)?.unsigned_abs(),
            has_row_ids: !row.get::<_, bool>(3)?,
        })
    })?;
    listed.collect()
}

/// Whether an error is about the machine and not about a table. Another table would fail as well.
fn is_of_machine(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory)
    )
}

/// A column's name, declared type and place in the primary key.
type StoredColumn = (String, String, i64);

/// Returns the columns whose values are stored, and the names of all columns. A virtual generated
/// column is evaluated whenever it is read, whatever that costs.
fn stored_columns(
    connection: &Connection,
    table: &str,
    left_out: &mut Vec<String>,
) -> rusqlite::Result<(Vec<StoredColumn>, Vec<String>)> {
    let sql = "SELECT name, type, pk, hidden = 2 FROM pragma_table_xinfo(?1) WHERE hidden <> 1 \
               ORDER BY cid";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([table])?;
    let (mut columns, mut all_names) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        all_names.push(name.clone());
        match row.get::<_, bool>(3)? {
            true => left_out.push(format!("{table}.{name} is computed; it is not asked about")),
            false => columns.push((name, row.get(1)?, row.get(2)?)),
        }
    }
    Ok((columns, all_names))
}

fn read_table(
    connection: &Connection,
    listed: &ListedTable,
    most_rows: u64,
    left_out: &mut Vec<String>,
) -> rusqlite::Result<SourceTable> {
    let name = &listed.name;
    let (columns, all_names) = stored_columns(connection, name, left_out)?;
    let mut key: Vec<usize> = (0..columns.len()).filter(|it| columns[*it].2 > 0).collect();
    key.sort_by_key(|index| columns[*index].2);
    let affinities: Vec<&str> = columns.iter().map(|(_, it, _)| affinity(it)).collect();
    let count = format!("SELECT count(*) FROM {}", quoted(name));
    let row_count = connection.query_row(&count, [], |row| row.get::<_, i64>(0))?;
    let names: Vec<String> = columns.into_iter().map(|(name, ..)| name).collect();
    let mut table = SourceTable {
        name: name.clone(),
        primary_key: key,
        foreign_keys: read_foreign_keys(connection, name, &names)?,
        row_count: row_count.unsigned_abs(),
        ..SourceTable::default()
    };
    if table.row_count > most_rows {
        let row_id = listed
            .has_row_ids
            .then(|| row_id_name(&all_names))
            .flatten();
        let sample = RowSample::choose(connection, name, row_id, (table.row_count, most_rows))?;
        table.sample = Some(sample);
    }
    table.rows = read_rows(connection, name, &names, table.sample.as_ref())?;
    table.columns = read_columns(connection, &table, &names, &affinities)?;
    Ok(table)
}

fn read_columns(
    connection: &Connection,
    table: &SourceTable,
    names: &[String],
    affinities: &[&'static str],
) -> rusqlite::Result<Vec<SourceColumn>> {
    let column = |(index, name): (usize, &String)| {
        Ok(SourceColumn {
            name: name.clone(),
            affinity: affinities[index],
            is_unique: has_different_values(table, index) && is_unique(connection, table, name)?,
            has_more_values: unread::has_more_values(connection, table, (index, name))?,
            gaps: unread::gaps(connection, table, (index, name))?,
            odd_value: unread::odd_value(connection, table, (index, name))?,
        })
    };
    names.iter().enumerate().map(column).collect()
}

/// Whether the rows that were read have different values of a column. Only then they are counted in
/// the whole table, which may take a temporary file.
fn has_different_values(table: &SourceTable, column: usize) -> bool {
    let mut seen = BTreeSet::new();
    table.rows.iter().all(|row| {
        let text = match &row[column] {
            SqlValue::Null | SqlValue::Blob(_) => return false,
            SqlValue::Integer(number) => Cow::Owned(number.to_string()),
            SqlValue::Real(number) => Cow::Owned(number.to_string()),
            SqlValue::Text(text) => Cow::Borrowed(text.as_str()),
        };
        seen.insert(text)
    })
}

fn is_unique(connection: &Connection, table: &SourceTable, name: &str) -> rusqlite::Result<bool> {
    // DISTINCT skips NULL, so the counts differ if a value is missing.
    let (name, of) = (quoted(name), quoted(&table.name));
    let sql = format!("SELECT count(DISTINCT {name}) FROM {of}");
    let distinct = connection.query_row(&sql, [], |row| row.get::<_, i64>(0))?;
    Ok(table.row_count > 0 && distinct.unsigned_abs() == table.row_count)
}

/// Returns the affinity of a declared type, by SQLite's rules.
fn affinity(declared: &str) -> &'static str {
    let declared = declared.to_uppercase();
    let has = |parts: &[&str]| parts.iter().any(|part| declared.contains(part));
    match () {
        () if has(&["INT"]) => "INTEGER",
        () if has(&["CHAR", "CLOB", "TEXT"]) => "TEXT",
        () if declared.is_empty() || has(&["BLOB"]) => "BLOB",
        () if has(&["REAL", "FLOA", "DOUB"]) => "REAL",
        () => "NUMERIC",
    }
}

fn read_foreign_keys(
    connection: &Connection,
    table: &str,
    names: &[String],
) -> rusqlite::Result<Vec<SourceForeignKey>> {
    let sql = "SELECT id, \"table\", \"from\", \"to\" FROM pragma_foreign_key_list(?1) \
               ORDER BY id DESC, seq";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([table], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })?;
    let rows: Vec<(i64, String, String, Option<String>)> = rows.collect::<rusqlite::Result<_>>()?;
    let is_single = |id: i64| rows.iter().filter(|row| row.0 == id).count() == 1;
    let single = rows.iter().filter(|row| is_single(row.0));
    let keys = single.filter_map(|(_, parent, from, to)| {
        let column = names.iter().position(|it| it.eq_ignore_ascii_case(from))?;
        Some(SourceForeignKey {
            column,
            table: parent.clone(),
            to: to.clone(),
        })
    });
    Ok(keys.collect())
}

/// Returns the share of the values of a column that the key of another table has, per mille, or
/// none if there is no value. They are the values of the rows that were read.
pub(super) fn inclusion(
    connection: &Connection,
    (table, column): (&SourceTable, usize),
    (parent, key): (&SourceTable, usize),
) -> rusqlite::Result<Option<u64>> {
    let [column, key] = [&table.columns[column], &parent.columns[key]].map(|it| quoted(&it.name));
    let (clause, row_ids) = RowSample::clause(table.sample.as_ref());
    let (table, parent) = (quoted(&table.name), quoted(&parent.name));
    let sql = format!(
        "SELECT count(*), count(CASE WHEN value IN (SELECT {key} FROM {parent}) THEN 1 END) FROM \
         (SELECT {column} AS value FROM {table} {clause}) WHERE value IS NOT NULL"
    );
    let (all, found) = connection.query_row(&sql, params_from_iter(row_ids), |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
    })?;
    let (all, found) = (all.unsigned_abs(), found.unsigned_abs());
    Ok((all > 0).then(|| found * 1000 / all))
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    /// A thousand rows. The later half refers to no day, and one row is neither late nor not.
    const LOG: &str =
        "CREATE TABLE days (id INTEGER PRIMARY KEY); INSERT INTO days VALUES (1), (2);
        CREATE TABLE log (rowid TEXT, at INTEGER, day INTEGER, is_late INTEGER, is_new INTEGER);
        WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 1000)
        INSERT INTO log SELECT 'r', i, CASE WHEN i < 500 THEN 1 ELSE 3 END,
            CASE i WHEN 995 THEN 2 ELSE i / 10 % 2 END, i / 10 % 2 FROM n;";

    fn database(sql: &str) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(sql).unwrap();
        connection
    }

    #[test]
    fn a_virtual_column_is_not_taken_for_row_ids() {
        let connection = database(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, rowid TEXT AS ('x' || id));
             WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 1000)
             INSERT INTO t SELECT i FROM n",
        );
        let read = read_at_most(&connection, 100, 1_000_000).unwrap();
        assert_eq!(read.tables[0].rows.len(), 100);
        assert_eq!(read.tables[0].rows[1], [SqlValue::Integer(10)]);
    }

    #[test]
    fn a_large_table_is_read_evenly() {
        let connection = database(LOG);
        let read = read_at_most(&connection, 100, 1_000_000).unwrap();
        let [days, log] = read.tables.as_slice() else {
            panic!("{:?}", read.left_out)
        };
        let at = log.rows.iter().map(|row| row[1].clone());
        let expected = (0..100).map(|place| SqlValue::Integer(10 * place));
        assert!(at.eq(expected), "{:?}", log.rows);
        assert_eq!(log.row_count, 1000);
        assert_eq!(
            log.sample_note(),
            " in the rows that were read (100 of 1000)"
        );
        let more = log.columns.iter().map(|it| it.has_more_values);
        assert_eq!(more.collect::<Vec<_>>(), [false, false, false, true, false]);
        let share = inclusion(&connection, (log, 2), (days, 0)).unwrap();
        assert_eq!(share, Some(500), "not that of the first rows");
        assert!(days.sample.is_none() && days.sample_note().is_empty());
    }

    #[test]
    fn all_tables_together_have_a_bounded_number_of_cells() {
        let connection = database(LOG);
        let read = read_at_most(&connection, 100, 60).unwrap();
        let rows: Vec<usize> = read.tables.iter().map(|it| it.rows.len()).collect();
        assert_eq!(rows, [2, 10], "60 cells of 6 columns");
    }

    #[test]
    fn a_column_that_could_be_a_key_is_counted_in_the_whole_table() {
        let connection = database(
            "CREATE TABLE t (id INTEGER, gap TEXT, twice REAL, late INTEGER, photo BLOB);
             WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 100)
             INSERT INTO t SELECT i, iif(i = 0, NULL, i), i / 10, iif(i = 99, 98, i),
                 CAST(i AS BLOB) FROM n;
             CREATE TABLE u (a)",
        );
        let read = read_at_most(&connection, 50, 1000).unwrap();
        let unique = read.tables[0].columns.iter().map(|it| it.is_unique);
        let expected = [true, false, false, false, false];
        assert_eq!(unique.collect::<Vec<_>>(), expected);
        assert!(!read.tables[1].columns[0].is_unique, "there is no row");
    }

    #[test]
    fn faults_of_the_machine_are_no_faults_of_a_table() {
        for (code, expected) in [
            (ffi::SQLITE_FULL, true),
            (ffi::SQLITE_IOERR, true),
            (ffi::SQLITE_NOMEM, true),
            (ffi::SQLITE_ERROR, false),
            (ffi::SQLITE_CORRUPT, false),
            (ffi::SQLITE_TOOBIG, false),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(is_of_machine(&error), expected, "{error}");
        }
    }
}
