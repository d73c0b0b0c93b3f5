//! Decides which queries become questions. The decision depends only on the results of running SQL.
//! Pure.

use rusqlite::types::Value as SqlValue;
use serde_json::Value;

use super::render::RenderedSql;
use crate::sql::GoldDatabase;
use crate::{AnswerType, answer_from_rows, real_text};

const MAX_ANSWER_ROWS: usize = 5;
const MAX_TEXT_CHARS: usize = 60;

/// Why a query is dropped whose answer cannot be written without ambiguity.
pub(crate) const UNCLEAR: &str = "cannot be written clearly";
/// Why a query is dropped whose answer is empty, NULL or zero.
const EMPTY: &str = "empty or zero";

/// The result of an accepted query.
pub(crate) struct AcceptedQuery {
    pub(crate) answer_type: AnswerType,
    pub(crate) answer: Value,
    /// The rows that the answer was made of.
    pub(crate) rows: Vec<Vec<SqlValue>>,
    pub(crate) tables: Vec<String>,
}

/// Runs a query on a database and on its twins, which have other rows, and returns the result if
/// the query makes a good question, or why it is dropped.
///
/// A query is accepted if
/// - it runs within its budget,
/// - its answer is neither empty, NULL nor zero, and has at most five rows that can be written
///   without ambiguity,
/// - the answer is not a literal of the SQL itself,
/// - the answer does not depend on the order of a tie at the LIMIT, and
/// - the answer on one of the twins is different.
pub(crate) fn judge(
    sql: &RenderedSql,
    limit: Option<usize>,
    database: &GoldDatabase,
    twins: &[GoldDatabase],
) -> Result<AcceptedQuery, &'static str> {
    let gold = database
        .run(&sql.text)
        .map_err(|_| "fails or costs too much")?;
    if gold.rows.is_empty() {
        return Err(EMPTY);
    }
    if gold.rows.len() > MAX_ANSWER_ROWS {
        return Err("more than five rows");
    }
    let answer = answer_from_rows(&gold.rows);
    let (answer_type, answer) = answer.map_err(|_| UNCLEAR)?;
    if answer.as_f64() == Some(0.0) {
        return Err(EMPTY);
    }
    let is_clear =
        gold.rows.iter().flatten().all(is_clear) && (!answer.is_array() || is_writable(&gold.rows));
    if !is_clear {
        return Err(UNCLEAR);
    }
    if is_literal_of(&answer, &sql.text) {
        return Err("answer is in the question");
    }
    if has_tie(sql, limit, database) {
        return Err("tie at a limit");
    }
    let differs = |twin: &GoldDatabase| {
        let other = twin.run(&sql.text);
        other.is_ok_and(|other| gold.rows != other.rows)
    };
    if !twins.iter().any(differs) {
        return Err("does not depend on the data");
    }
    Ok(AcceptedQuery {
        answer_type,
        answer,
        rows: gold.rows,
        tables: gold.tables,
    })
}

fn is_clear(value: &SqlValue) -> bool {
    match value {
        SqlValue::Null | SqlValue::Blob(_) => false,
        SqlValue::Text(text) => !text.trim().is_empty() && text.chars().count() <= MAX_TEXT_CHARS,
        SqlValue::Integer(_) | SqlValue::Real(_) => true,
    }
}

fn is_literal_of(answer: &Value, sql: &str) -> bool {
    answer
        .as_str()
        .is_some_and(|text| sql.contains(&format!("'{text}'")))
}

/// Whether the rows can be written as a list or a table: no separator in a value, no long fraction.
fn is_writable(rows: &[Vec<SqlValue>]) -> bool {
    rows.iter().flatten().all(|value| match value {
        SqlValue::Text(text) => !text.contains([',', '|', '\n', '"', '\'', '[']),
        SqlValue::Real(number) => real_text(*number)
            .split_once('.')
            .is_some_and(|(_, decimals)| decimals.len() <= 2),
        _ => true,
    })
}

/// Whether the order of a tie decides which rows are in the answer, or in which order.
pub(crate) fn has_tie(sql: &RenderedSql, limit: Option<usize>, database: &GoldDatabase) -> bool {
    let (Some(keys), Some(limit)) = (&sql.sort_keys, limit) else {
        return false;
    };
    // A tie inside the limit counts, too: it leaves the order of the answer open.
    let Ok(gold) = database.run(keys) else {
        return true;
    };
    gold.rows[..gold.rows.len().min(limit + 1)]
        .windows(2)
        .any(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(rows: &str) -> GoldDatabase {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection
            .execute_batch(&format!(
                "CREATE TABLE t (name TEXT, n INTEGER, x REAL); INSERT INTO t VALUES {rows}"
            ))
            .unwrap();
        GoldDatabase::guard(connection).unwrap()
    }

    fn is_accepted(sql: &str, order: Option<&str>, limit: Option<usize>, rows: &str) -> bool {
        let sql = RenderedSql {
            text: sql.to_owned(),
            sort_keys: order.map(|key| format!("SELECT {key} FROM t ORDER BY {key} DESC")),
        };
        let twin = database("('z', 99, 9.5), ('y', 98, 8.5)");
        judge(&sql, limit, &database(rows), &[twin]).is_ok()
    }

    #[test]
    fn a_query_is_accepted_only_for_a_clear_answer() {
        let rows = "('a', 1, 0.5), ('b', 2, 0.1), ('c', 2, NULL), (NULL, 5, 0.25), ('p|q', 6, 0.125), ('f', 7, 1)";
        let cases = [
            ("SELECT count(*) FROM t", true, "a count"),
            ("SELECT count(*) FROM t WHERE n > 100", false, "zero"),
            ("SELECT n FROM t WHERE name = 'nobody'", false, "no row"),
            ("SELECT name FROM t WHERE n = 5", false, "NULL"),
            (
                "SELECT name FROM t WHERE name = 'a'",
                false,
                "the answer stands in the SQL",
            ),
            ("SELECT 5", false, "the same on the twin"),
            ("SELECT n FROM t", false, "six rows"),
            ("SELECT n FROM t WHERE n < 5", true, "a list"),
            ("SELECT name, n FROM t WHERE n < 3", true, "a table"),
            (
                "SELECT name, n FROM t WHERE n > 5",
                false,
                "a separator in a cell",
            ),
            ("SELECT name FROM t WHERE n > 4", false, "NULL in a list"),
            (
                "SELECT x FROM t WHERE n > 4",
                false,
                "three decimals in a list",
            ),
            ("SELECT nothing FROM t", false, "no such column"),
            (
                "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT max(i) FROM c",
                false,
                "endless",
            ),
        ];
        for (sql, expected, why) in cases {
            assert_eq!(is_accepted(sql, None, None, rows), expected, "{why}: {sql}");
        }
    }

    #[test]
    fn a_tie_at_the_limit_is_refused() {
        let rows = "('a', 3, 0), ('b', 2, 0), ('c', 2, 0), ('d', 1, 0)";
        for (limit, expected) in [(1, true), (2, false), (3, false)] {
            let sql = format!("SELECT name FROM t ORDER BY n DESC LIMIT {limit}");
            assert_eq!(
                is_accepted(&sql, Some("n"), Some(limit), rows),
                expected,
                "LIMIT {limit}"
            );
        }
    }
}
