//! Reads what drafting needs of a database file: tables, columns, declared keys and rows.

use rusqlite::Connection;
use rusqlite::types::{Value as SqlValue, ValueRef};

use crate::sql_text::quoted;

/// The largest number of rows of a table that statistics and twins are made of.
const MOST_ROWS: u64 = 20_000;

/// The tables of a database.
#[derive(Debug, Clone, Default)]
pub(super) struct SourceDatabase {
    pub(super) tables: Vec<SourceTable>,
    /// What is no plain table, with the reason.
    pub(super) left_out: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct SourceTable {
    pub(super) name: String,
    pub(super) columns: Vec<SourceColumn>,
    /// Indices of the columns of the declared primary key.
    pub(super) primary_key: Vec<usize>,
    /// Declared foreign keys of one column.
    pub(super) foreign_keys: Vec<SourceForeignKey>,
    pub(super) row_count: u64,
    /// The first rows, at most [`MOST_ROWS`]. Text that is not UTF-8 reads as a BLOB.
    pub(super) rows: Vec<Vec<SqlValue>>,
}

#[derive(Debug, Clone)]
pub(super) struct SourceColumn {
    pub(super) name: String,
    /// The affinity, as a type: it decides how values are compared.
    pub(super) affinity: &'static str,
    /// Whether all rows of the table have different values, and none NULL.
    pub(super) is_unique: bool,
}

#[derive(Debug, Clone)]
pub(super) struct SourceForeignKey {
    pub(super) column: usize,
    pub(super) table: String,
    /// The column that it refers to, or none for the primary key.
    pub(super) to: Option<String>,
}

/// Reads the tables of a database in the order of their names.
pub(super) fn read(connection: &Connection) -> rusqlite::Result<SourceDatabase> {
    let sql = "SELECT name, type FROM pragma_table_list WHERE schema = 'main' \
               AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name";
    let mut statement = connection.prepare(sql)?;
    let listed = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let listed: Vec<(String, String)> = listed.collect::<rusqlite::Result<_>>()?;
    let mut database = SourceDatabase::default();
    for (name, kind) in listed {
        match kind.as_str() {
            "table" => match read_table(connection, &name) {
                Ok(table) => database.tables.push(table),
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

fn read_table(connection: &Connection, name: &str) -> rusqlite::Result<SourceTable> {
    let sql = "SELECT name, type, pk FROM pragma_table_xinfo(?1) WHERE hidden <> 1 ORDER BY cid";
    let mut statement = connection.prepare(sql)?;
    let columns = statement.query_map([name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let columns: Vec<(String, String, i64)> = columns.collect::<rusqlite::Result<_>>()?;
    let mut key: Vec<usize> = (0..columns.len()).filter(|it| columns[*it].2 > 0).collect();
    key.sort_by_key(|index| columns[*index].2);
    let affinities: Vec<&str> = columns.iter().map(|(_, it, _)| affinity(it)).collect();
    let count = format!("SELECT count(*) FROM {}", quoted(name));
    let row_count = connection.query_row(&count, [], |row| row.get::<_, i64>(0))?;
    let names: Vec<String> = columns.into_iter().map(|(name, ..)| name).collect();
    let foreign_keys = read_foreign_keys(connection, name, &names)?;
    let row_count = row_count.unsigned_abs();
    Ok(SourceTable {
        rows: read_rows(connection, name, &names)?,
        columns: read_columns(connection, name, &names, &affinities, row_count)?,
        name: name.to_owned(),
        primary_key: key,
        foreign_keys,
        row_count,
    })
}

fn read_columns(
    connection: &Connection,
    table: &str,
    names: &[String],
    affinities: &[&'static str],
    row_count: u64,
) -> rusqlite::Result<Vec<SourceColumn>> {
    let column = |(name, affinity): (&String, &&'static str)| {
        // DISTINCT skips NULL, so the counts differ if a value is missing.
        let sql = format!(
            "SELECT count(DISTINCT {}) FROM {}",
            quoted(name),
            quoted(table)
        );
        let distinct = connection.query_row(&sql, [], |row| row.get::<_, i64>(0))?;
        Ok(SourceColumn {
            name: name.clone(),
            affinity,
            is_unique: row_count > 0 && distinct.unsigned_abs() == row_count,
        })
    };
    names.iter().zip(affinities).map(column).collect()
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

fn read_rows(
    connection: &Connection,
    table: &str,
    names: &[String],
) -> rusqlite::Result<Vec<Vec<SqlValue>>> {
    let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    let (columns, table) = (names.join(", "), quoted(table));
    let sql = format!("SELECT {columns} FROM {table} LIMIT {MOST_ROWS}");
    let mut statement = connection.prepare(&sql)?;
    let rows = statement.query_map([], |row| {
        (0..names.len())
            .map(|index| row.get_ref(index).map(value))
            .collect()
    })?;
    rows.collect()
}

/// Bytes of a value that are kept. Questions ask about no column with longer texts or with BLOBs,
/// and the rows of such a table would not fit into memory.
const MOST_VALUE_BYTES: usize = 1_024;

fn value(cell: ValueRef<'_>) -> SqlValue {
    let kept = |bytes: &[u8]| bytes[..bytes.len().min(MOST_VALUE_BYTES)].to_vec();
    match cell {
        ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => {
                let most = text.len().min(MOST_VALUE_BYTES);
                let end = (0..=most).rev().find(|&at| text.is_char_boundary(at));
                SqlValue::Text(text[..end.unwrap_or(0)].to_owned())
            }
            Err(_) => SqlValue::Blob(kept(bytes)),
        },
        ValueRef::Null => SqlValue::Null,
        ValueRef::Integer(number) => SqlValue::Integer(number),
        ValueRef::Real(number) => SqlValue::Real(number),
        ValueRef::Blob(bytes) => SqlValue::Blob(kept(bytes)),
    }
}

/// Returns the share of the values of a column that another column has, per mille, or none if
/// there is no value.
pub(super) fn inclusion(
    connection: &Connection,
    (table, column): (&str, &str),
    (parent, key): (&str, &str),
) -> rusqlite::Result<Option<u64>> {
    let [table, column, parent, key] = [table, column, parent, key].map(quoted);
    let sql = format!(
        "SELECT count(*), count(CASE WHEN value IN (SELECT {key} FROM {parent}) THEN 1 END) FROM \
         (SELECT {column} AS value FROM {table} WHERE {column} IS NOT NULL LIMIT {MOST_ROWS})"
    );
    let (all, found) = connection.query_row(&sql, [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
    })?;
    let (all, found) = (all.unsigned_abs(), found.unsigned_abs());
    Ok((all > 0).then(|| found * 1000 / all))
}
