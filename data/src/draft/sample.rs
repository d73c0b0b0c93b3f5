//! Chooses and reads the rows of a table from which drafting infers what the table has.
//!
//! Invariant: of a large table rows are read evenly over its row ids, and the same ones each time.
//! A log has its oldest rows first, which may lack what the others have.

use rusqlite::types::{Value as SqlValue, ValueRef};
use rusqlite::{Connection, params_from_iter};

use crate::sql_text::quoted;

/// Bytes of a value that are kept. Questions show no text of more than 60 characters, which may
/// have 240 bytes, and no BLOB.
const MOST_VALUE_BYTES: usize = 256;

/// Some rows of a table.
#[derive(Debug, Clone)]
pub(super) struct RowSample {
    /// The number of these rows.
    pub(super) rows: u64,
    /// The end of the `SELECT` that has them.
    clause: String,
    /// The parameter of the clause, if it has one: the row ids, as a JSON array.
    row_ids: Option<String>,
}

impl RowSample {
    /// Chooses `most_rows` of more rows: evenly by their ids, or the first ones if they have none.
    pub(super) fn choose(
        connection: &Connection,
        table: &str,
        row_id: Option<&str>,
        (row_count, most_rows): (u64, u64),
    ) -> rusqlite::Result<Self> {
        let Some(row_id) = row_id else {
            return Ok(Self {
                rows: most_rows,
                clause: format!("LIMIT {most_rows}"),
                row_ids: None,
            });
        };
        let sql = format!("SELECT {row_id} FROM {} ORDER BY {row_id}", quoted(table));
        let mut statement = connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        let mut kept: Vec<String> = Vec::new();
        let mut place = 0;
        while let Some(row) = rows.next()? {
            if place == kept.len() as u64 * row_count / most_rows {
                kept.push(row.get::<_, i64>(0)?.to_string());
            }
            place += 1;
        }
        Ok(Self {
            rows: kept.len() as u64,
            clause: format!(
                "WHERE {row_id} IN (SELECT value FROM json_each(?1)) ORDER BY {row_id}"
            ),
            row_ids: Some(format!("[{}]", kept.join(","))),
        })
    }

    /// Returns the end of the `SELECT` of some rows, or of all, and its parameter.
    pub(super) fn clause(sample: Option<&Self>) -> (&str, Option<&String>) {
        match sample {
            Some(sample) => (sample.clause.as_str(), sample.row_ids.as_ref()),
            None => ("", None),
        }
    }
}

/// Returns a name for the row id that no column has.
pub(super) fn row_id_name(columns: &[String]) -> Option<&'static str> {
    let is_free = |name: &&str| !columns.iter().any(|it| it.eq_ignore_ascii_case(name));
    ["rowid", "_rowid_", "oid"].into_iter().find(is_free)
}

/// Reads some rows of a table, or all.
pub(super) fn read_rows(
    connection: &Connection,
    table: &str,
    columns: &[String],
    sample: Option<&RowSample>,
) -> rusqlite::Result<Vec<Vec<SqlValue>>> {
    let names: Vec<String> = columns.iter().map(|name| quoted(name)).collect();
    let (names, table) = (names.join(", "), quoted(table));
    let (clause, row_ids) = RowSample::clause(sample);
    let mut statement = connection.prepare(&format!("SELECT {names} FROM {table} {clause}"))?;
    let rows = statement.query_map(params_from_iter(row_ids), |row| {
        (0..columns.len())
            .map(|index| row.get_ref(index).map(value))
            .collect()
    })?;
    rows.collect()
}

/// Returns a cell with the first bytes of its value.
pub(super) fn value(cell: ValueRef<'_>) -> SqlValue {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of seven in ten row ids.
    fn database(options: &str) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        let schema = format!("CREATE TABLE t (a INTEGER PRIMARY KEY, b) {options}");
        connection.execute_batch(&schema).unwrap();
        let rows = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 100)
            INSERT INTO t SELECT i, 'x' FROM n WHERE i % 10 < 7";
        connection.execute_batch(rows).unwrap();
        connection
    }

    fn sampled(connection: &Connection, row_id: Option<&str>) -> Vec<i64> {
        let columns = ["a".to_owned()];
        let sample = RowSample::choose(connection, "t", row_id, (70, 7)).unwrap();
        assert_eq!(sample.rows, 7);
        let rows = read_rows(connection, "t", &columns, Some(&sample)).unwrap();
        let number = |row: Vec<SqlValue>| match row[0] {
            SqlValue::Integer(number) => number,
            _ => panic!("{row:?}"),
        };
        rows.into_iter().map(number).collect()
    }

    #[test]
    fn rows_are_sampled_evenly_or_from_the_start() {
        let connection = database("");
        let every_tenth = [0, 13, 26, 42, 55, 71, 84];
        assert_eq!(sampled(&connection, Some("rowid")), every_tenth);
        let without = database("WITHOUT ROWID");
        assert_eq!(sampled(&without, None), [0, 1, 2, 3, 4, 5, 6]);
        let columns = ["a".to_owned(), "b".to_owned()];
        let all = read_rows(&connection, "t", &columns, None).unwrap();
        assert_eq!((all.len(), all[0].len()), (70, 2));
    }

    #[test]
    fn a_row_id_has_a_name_that_is_no_column() {
        let name = |columns: &[&str]| {
            let columns: Vec<String> = columns.iter().map(|it| (*it).to_owned()).collect();
            row_id_name(&columns)
        };
        assert_eq!(name(&["id"]), Some("rowid"));
        assert_eq!(name(&["RowId", "id"]), Some("_rowid_"));
        assert_eq!(name(&["oid", "rowid", "_rowid_"]), None);
    }
}
