//! A question with its gold answer, in the record layout of SQLEnv's question files.
//!
//! Invariant: the verifier of the crate `env` accepts what [`answer_text`] returns. An agent that
//! copies the result of the gold SQL is therefore right.

use rusqlite::types::Value as SqlValue;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One question. The fields have the names of SQLEnv's JSON record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The id, `{database}_{split}_{index}`. It is unique in a dataset.
    pub question_id: String,
    /// The question in English.
    pub question_text: String,
    /// The database that the question is about.
    pub database_name: String,
    /// The SQL whose result is the answer.
    pub gold_sql: String,
    /// A number, a string, an array (list) or an array of arrays (table).
    pub gold_answer: Value,
    /// How an answer is compared with the gold answer.
    pub answer_type: AnswerType,
    /// `easy`, `medium`, `hard` (Spider, SQLEnv) or `level-0` to `level-4` (own data).
    pub difficulty: String,
    /// The tables that the gold SQL reads, in the order of their first use.
    pub tables_involved: Vec<String>,
    /// `train`, `eval`, or `eval-unseen` with an optional part: `eval-unseen/domain`.
    pub split: String,
}

/// How an answer is compared with the gold answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerType {
    /// A whole number, compared exactly.
    Integer,
    /// A number, compared within one per cent.
    Float,
    /// Text, compared without case and extra blanks.
    String,
    /// One column of several rows, compared as a set.
    List,
    /// Rows of several columns.
    Table,
    /// A type that this project does not know, compared as text.
    #[serde(other)]
    Unknown,
}

impl AnswerType {
    /// Returns the name that question files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Float => "float",
            Self::String => "string",
            Self::List => "list",
            Self::Table => "table",
            Self::Unknown => "unknown",
        }
    }
}

/// Converts a query result to a gold answer: one cell becomes a scalar, one column a list, and
/// anything else a table.
///
/// # Errors
/// Returns the reason why the result cannot be a gold answer: it has no row, nothing but NULL or
/// blanks, a cell that JSON cannot represent, or a cell with a separator in a table.
pub fn answer_from_rows(rows: &[Vec<SqlValue>]) -> Result<(AnswerType, Value), String> {
    let cells: Vec<Vec<Value>> = rows
        .iter()
        .map(|row| row.iter().map(json_cell).collect())
        .collect::<Result<_, _>>()?;
    let is_blank =
        |cell: &Value| cell.is_null() || cell.as_str().is_some_and(|text| text.trim().is_empty());
    if cells.is_empty() {
        return Err("the gold SQL returns no row".to_owned());
    }
    if cells.iter().flatten().all(is_blank) {
        return Err("the gold SQL returns nothing but NULL or blanks".to_owned());
    }
    let has_separator = |cell: &Value| cell.as_str().is_some_and(|text| text.contains('|'));
    if cells[0].len() > 1 && cells.iter().flatten().any(has_separator) {
        return Err(
            "a cell of the gold rows holds `|`, which separates cells in an answer".to_owned(),
        );
    }
    Ok(match cells.as_slice() {
        [row] if row.len() == 1 => (scalar_type(&row[0]), row[0].clone()),
        rows if rows[0].len() == 1 => (
            AnswerType::List,
            Value::Array(cells.into_iter().flatten().collect()),
        ),
        _ => (
            AnswerType::Table,
            Value::Array(cells.into_iter().map(Value::Array).collect()),
        ),
    })
}

fn json_cell(cell: &SqlValue) -> Result<Value, String> {
    match cell {
        SqlValue::Null => Ok(Value::Null),
        SqlValue::Integer(number) => Ok(Value::from(*number)),
        SqlValue::Real(number) if number.is_finite() => Ok(Value::from(*number)),
        SqlValue::Real(_) => Err("the gold SQL returns a number that is not finite".to_owned()),
        SqlValue::Text(text) => Ok(Value::from(text.as_str())),
        SqlValue::Blob(_) => Err("the gold SQL returns a BLOB".to_owned()),
    }
}

fn scalar_type(cell: &Value) -> AnswerType {
    match cell {
        Value::Number(number) if number.is_f64() => AnswerType::Float,
        Value::Number(_) => AnswerType::Integer,
        _ => AnswerType::String,
    }
}

/// Returns the gold answer as an agent submits it after it has seen the result of the gold SQL.
///
/// A list is separated by commas, or written as a JSON array if an element contains a comma. A
/// table has one line for each row and ` | ` between cells. A single float is truncated to two
/// decimals, or to three significant digits below 1: it stays a prefix of what the agent sees, and
/// within the verifier's tolerance of one per cent.
pub fn answer_text(question: &Question) -> String {
    text_of_answer(&question.gold_answer, question.answer_type)
}

/// Returns what [`answer_text`] returns for a question with this answer.
pub(crate) fn text_of_answer(answer: &Value, answer_type: AnswerType) -> String {
    let text = match (answer, answer_type) {
        (Value::Array(rows), AnswerType::Table) => {
            rows.iter().map(row_text).collect::<Vec<_>>().join("\n")
        }
        (Value::Array(cells), _) => return list_text(cells),
        (Value::Number(number), AnswerType::Float) => cut_real(number.as_f64().unwrap_or_default()),
        (cell, _) => cell_text(cell),
    };
    if would_be_unwrapped(&text) {
        format!("\"{text}\"")
    } else {
        text
    }
}

fn row_text(row: &Value) -> String {
    match row {
        // A line break would end the row. The verifier treats all white space in cells alike.
        Value::Array(cells) => cells
            .iter()
            .map(cell_text)
            .collect::<Vec<_>>()
            .join(" | ")
            .replace(['\r', '\n'], " "),
        cell => cell_text(cell),
    }
}

fn list_text(cells: &[Value]) -> String {
    let is_plain = |text: &String| {
        !text.is_empty()
            && text.trim() == text
            && !text.contains([',', '"', '\'', '[', '`', '\n'])
            && !would_be_unwrapped(text)
    };
    let texts: Vec<String> = cells.iter().map(cell_text).collect();
    if texts.iter().all(is_plain) {
        texts.join(", ")
    } else {
        Value::from(cells).to_string()
    }
}

fn cell_text(cell: &Value) -> String {
    match cell {
        Value::Null => "NULL".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => real_text(number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

/// Whether the verifier would remove a wrapper (quotes, a code fence, `Answer:`) from the text.
/// Such a text needs another wrapper.
fn would_be_unwrapped(text: &str) -> bool {
    let text = text.trim();
    let quoted = |quote| text.len() > 1 && text.starts_with(quote) && text.ends_with(quote);
    let labelled = text
        .get(..7)
        .is_some_and(|head| head.eq_ignore_ascii_case("answer:"));
    quoted('"') || quoted('\'') || text.starts_with("```") || labelled
}

fn cut_real(number: f64) -> String {
    cut_decimals(&real_text(number)).to_owned()
}

/// Cuts a long decimal number after two decimals, or after three significant digits if it is below
/// 1. Returns every other text as it is, such as a number with an exponent.
pub fn cut_decimals(text: &str) -> &str {
    let Some((whole, decimals)) = text.split_once('.') else {
        return text;
    };
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(digits) || !is_number(decimals) {
        return text;
    }
    let leading_zeros = decimals.len() - decimals.trim_start_matches('0').len();
    let kept = if digits == "0" { leading_zeros + 3 } else { 2 };
    &text[..text.len().min(whole.len() + 1 + kept)]
}

/// Formats a real number as SQLite does: with a point or an exponent, and with the fewest digits
/// that identify it.
pub fn real_text(number: f64) -> String {
    let magnitude = number.abs();
    if magnitude == 0.0 || (1e-4..1e15).contains(&magnitude) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, ""));
    let point = if mantissa.contains('.') { "" } else { ".0" };
    format!(
        "{mantissa}{point}e{:+03}",
        exponent.parse::<i32>().unwrap_or(0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn question(answer: Value, answer_type: AnswerType) -> Question {
        Question {
            question_id: "shop_train_0000".to_owned(),
            question_text: "?".to_owned(),
            database_name: "shop".to_owned(),
            gold_sql: "SELECT 1".to_owned(),
            gold_answer: answer,
            answer_type,
            difficulty: "level-1".to_owned(),
            tables_involved: Vec::new(),
            split: "train".to_owned(),
        }
    }

    #[test]
    fn answers_as_agents_write_them() {
        use AnswerType::{Float, Integer, List, String, Table, Unknown};
        let cases = [
            (json!(42), Integer, "42"),
            (json!(-7), Integer, "-7"),
            (json!(3.149), Float, "3.14"),
            (json!(6646.7699999999995), Float, "6646.76"),
            (json!(12.0), Float, "12.0"),
            (json!(0.10999), Float, "0.109"),
            (json!(0.00123456), Float, "0.00123"),
            (json!(-2.999), Float, "-2.99"),
            (json!("Paris"), String, "Paris"),
            (json!("\"USA\""), String, "\"\"USA\"\""),
            (json!("Answer: yes"), String, "\"Answer: yes\""),
            (json!(["a", "b"]), List, "a, b"),
            (
                json!(["Tampa, FL", "Paris"]),
                List,
                "[\"Tampa, FL\",\"Paris\"]",
            ),
            (json!([1, 2.5]), List, "1, 2.5"),
            (json!([["a", 1], ["b", 2.0]]), Table, "a | 1\nb | 2.0"),
            (json!([["a\nb", null]]), Table, "a b | NULL"),
            (json!("x"), Unknown, "x"),
        ];
        for (answer, answer_type, text) in cases {
            assert_eq!(
                answer_text(&question(answer.clone(), answer_type)),
                text,
                "{answer}"
            );
        }
    }

    #[test]
    fn only_decimals_are_cut() {
        for (text, cut) in [
            ("42", "42"),
            ("3.14159", "3.14"),
            ("-12.0", "-12.0"),
            ("0.0", "0.0"),
            ("-0.0001234567", "-0.000123"),
            ("1.23456e+20", "1.23456e+20"),
            ("-1.23456e-07", "-1.23456e-07"),
            ("1.2.345", "1.2.345"),
            ("1.", "1."),
            (".12345", ".12345"),
            ("a.12345", "a.12345"),
        ] {
            assert_eq!(cut_decimals(text), cut);
        }
    }

    #[test]
    fn results_become_answers_by_their_shape() {
        let text = |text: &str| SqlValue::Text(text.to_owned());
        let cases = [
            (
                vec![vec![SqlValue::Integer(3)]],
                Ok((AnswerType::Integer, json!(3))),
            ),
            (
                vec![vec![SqlValue::Real(3.0)]],
                Ok((AnswerType::Float, json!(3.0))),
            ),
            (vec![vec![text("3")]], Ok((AnswerType::String, json!("3")))),
            (
                vec![vec![text("a")], vec![SqlValue::Null]],
                Ok((AnswerType::List, json!(["a", null]))),
            ),
            (
                vec![vec![text("a"), SqlValue::Integer(1)]],
                Ok((AnswerType::Table, json!([["a", 1]]))),
            ),
            (vec![], Err("the gold SQL returns no row")),
            (
                vec![vec![SqlValue::Null]],
                Err("the gold SQL returns nothing but NULL or blanks"),
            ),
            (
                vec![vec![text("  ")]],
                Err("the gold SQL returns nothing but NULL or blanks"),
            ),
            (
                vec![vec![SqlValue::Blob(vec![1])]],
                Err("the gold SQL returns a BLOB"),
            ),
            (
                vec![vec![SqlValue::Real(f64::INFINITY)]],
                Err("the gold SQL returns a number that is not finite"),
            ),
            (
                vec![vec![text("a|b"), SqlValue::Integer(1)]],
                Err("a cell of the gold rows holds `|`, which separates cells in an answer"),
            ),
        ];
        for (rows, expected) in cases {
            assert_eq!(
                answer_from_rows(&rows),
                expected.map_err(str::to_owned),
                "{rows:?}"
            );
        }
    }

    #[test]
    fn records_read_and_write_the_nine_fields_of_sqlenv() {
        let record = json!({
            "question_id": "car_1_train_000", "question_text": "How many?", "database_name": "car_1",
            "gold_sql": "SELECT count(*) FROM t", "gold_answer": [["a", 1]], "answer_type": "table",
            "difficulty": "easy", "tables_involved": ["t"], "split": "train",
        });
        let question: Question = serde_json::from_value(record.clone()).unwrap();
        assert_eq!(serde_json::to_value(&question).unwrap(), record);
        let unknown: AnswerType = serde_json::from_value(json!("boolean")).unwrap();
        assert_eq!(unknown, AnswerType::Unknown);
    }

    proptest! {
        /// SQLite itself is the oracle.
        #[test]
        fn reals_are_written_as_sqlite_writes_them(cents in -10_000_000_i64..10_000_000) {
            let number = cents as f64 / 100.0;
            let connection = rusqlite::Connection::open_in_memory().unwrap();
            let cast = "SELECT CAST(?1 AS TEXT)";
            let text: String = connection.query_row(cast, [number], |row| row.get(0)).unwrap();
            prop_assert_eq!(real_text(number), text);
        }

        #[test]
        fn a_cut_real_is_a_prefix_within_one_per_cent(
            number in prop_oneof![-1e9..1e9, -1.0..1.0, -1e-3..1e-3],
        ) {
            let full = real_text(number);
            let cut = cut_real(number);
            prop_assert!(full.starts_with(&cut));
            let value: f64 = cut.parse().unwrap();
            prop_assert!((value - number).abs() <= 0.01 * number.abs());
        }

        #[test]
        fn reals_read_back(number in proptest::num::f64::NORMAL) {
            prop_assert_eq!(real_text(number).parse::<f64>().unwrap(), number);
        }
    }
}
