//! What the rows of a large table have that were not read.

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use super::kind::MOST_CATEGORIES;
use super::sample;
use super::source::SourceTable;
use super::statistics::{ColumnStatistics, is_missing, missing_condition};
use crate::sql_text::quoted;

/// Whether a column of two values has others in the rows that were not read: then it is no flag.
/// Texts that stand for a missing value do not count.
pub(super) fn has_more_values(
    connection: &Connection,
    table: &SourceTable,
    (index, name): (usize, &str),
) -> rusqlite::Result<bool> {
    let values = few_values(table, index, 2).filter(|values| values.len() == 2);
    let Some(values) = values.filter(|_| table.sample.is_some()) else {
        return Ok(false);
    };
    let (name, of) = (quoted(name), quoted(&table.name));
    let missing = missing_condition(&name);
    let sql = format!(
        "SELECT EXISTS (SELECT 1 FROM {of} WHERE {name} NOT IN (?1, ?2) AND NOT {missing})"
    );
    connection.query_row(&sql, params_from_iter(values), |row| row.get(0))
}

/// Returns a NULL and a text that stands for a missing value, if the table has them. A question
/// that lists or negates the values of a column depends on them, also if few rows have one. Other
/// columns, and tables of which all rows were read, are not looked through.
pub(super) fn gaps(
    connection: &Connection,
    table: &SourceTable,
    (index, name): (usize, &str),
) -> rusqlite::Result<Vec<SqlValue>> {
    if table.sample.is_none() || few_values(table, index, MOST_CATEGORIES).is_none() {
        return Ok(Vec::new());
    }
    let (name, of) = (quoted(name), quoted(&table.name));
    let missing = missing_condition(&name);
    let sql = format!(
        "SELECT EXISTS (SELECT 1 FROM {of} WHERE {name} IS NULL), \
         EXISTS (SELECT 1 FROM {of} WHERE {missing})"
    );
    let (has_null, has_blank) =
        connection.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let null = Some(SqlValue::Null).filter(|_| has_null);
    let blank = Some(SqlValue::Text(String::new())).filter(|_| has_blank);
    Ok(null.into_iter().chain(blank).collect())
}

/// Returns a value that is no number or no date, of a column that has only numbers or only dates in
/// the rows that were read. SQL adds such a value up or compares it, and a person would not.
pub(super) fn odd_value(
    connection: &Connection,
    table: &SourceTable,
    (index, name): (usize, &str),
) -> rusqlite::Result<Option<SqlValue>> {
    if table.sample.is_none() {
        return Ok(None);
    }
    let (name, of) = (quoted(name), quoted(&table.name));
    let statistics = ColumnStatistics::count(table.rows.iter().map(|row| &row[index]));
    let Some(is_odd) = statistics.odd_condition(&name) else {
        return Ok(None);
    };
    let sql = format!("SELECT {name} FROM {of} WHERE {is_odd} LIMIT 1");
    let cell = connection.query_row(&sql, [], |row| row.get_ref(0).map(sample::value));
    cell.optional()
}

/// Returns the values of a column in the rows that were read, each once and without missing ones,
/// if there are at most `most`.
fn few_values(table: &SourceTable, column: usize, most: usize) -> Option<Vec<&SqlValue>> {
    let mut values: Vec<&SqlValue> = Vec::new();
    for value in table.rows.iter().map(|row| &row[column]) {
        let is_known = match value {
            SqlValue::Null => false,
            SqlValue::Text(text) => !is_missing(text),
            _ => true,
        };
        if is_known && !values.contains(&value) {
            values.push(value);
        }
        if values.len() > most {
            return None;
        }
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::super::source::read_at_most;
    use super::*;

    /// Returns the table of a database that the SQL makes, with the tenth part of 1000 rows.
    fn sampled(sql: &str) -> SourceTable {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(sql).unwrap();
        let mut read = read_at_most(&connection, 100, 1_000_000).unwrap();
        let table = read.tables.remove(0);
        assert_eq!((table.rows.len(), table.row_count), (100, 1000));
        table
    }

    #[test]
    fn missing_texts_are_no_more_values_of_a_flag() {
        let table = sampled(
            "CREATE TABLE t (is_paid TEXT, is_sold TEXT);
             WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 1000)
             INSERT INTO t SELECT iif(i = 995, ' ', iif(i / 10 % 2, 'Y', 'N')),
                CASE i WHEN 995 THEN 'maybe' ELSE substr('YN', i / 10 % 3 + 1, 1) END FROM n;",
        );
        let more = table.columns.iter().map(|it| it.has_more_values);
        assert_eq!(more.collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn gaps_of_few_values_are_sought_in_the_whole_table() {
        let table = sampled(
            "CREATE TABLE t (size TEXT, colour TEXT, is_new INTEGER, name TEXT);
             WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 1000)
             INSERT INTO t SELECT substr('SML', i / 10 % 3 + 1, 1),
                iif(i = 995, ' N/A', iif(i / 10 % 2, 'red', 'blue')),
                iif(i = 995, NULL, i / 10 % 2), iif(i = 995, NULL, 'n' || i) FROM n",
        );
        let gaps: Vec<&[SqlValue]> = table.columns.iter().map(|it| it.gaps.as_slice()).collect();
        let blank = SqlValue::Text(String::new());
        let expected: [&[SqlValue]; 4] = [&[], &[blank], &[SqlValue::Null], &[]];
        assert_eq!(gaps, expected);
    }

    #[test]
    fn odd_values_are_sought_in_the_whole_table() {
        let table = sampled(
            "CREATE TABLE t (price, stock TEXT, day TEXT, age INTEGER, name TEXT);
             WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 1000)
             INSERT INTO t SELECT iif(i = 995, 'n/a', i), iif(i = 995, '', CAST(i AS TEXT)),
                iif(i = 995, '2020-00-00', date('2020-01-01', i || ' days')),
                iif(i = 995, NULL, i), iif(i = 995, '', 'n' || i) FROM n",
        );
        let odd = table.columns.iter().map(|it| it.odd_value.clone());
        let text = |text: &str| Some(SqlValue::Text(text.to_owned()));
        let expected = [text("n/a"), text(""), text("2020-00-00"), None, None];
        assert_eq!(odd.collect::<Vec<_>>(), expected);
    }
}
