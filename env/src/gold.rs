//! The result of a question's gold SQL, and whether an answer to the question is correct.
//!
//! Invariant: gold SQL runs on the SQL threads, in the same sandbox and under the same limits as
//! the agent's queries. Its result is kept. A run that spent the quick budget, hit the wall clock
//! or met a fault of the file has no result, so nothing is kept. Gold rows never leave the
//! environment.

use std::sync::OnceLock;

use data::{Question, sql_text::is_ordered};
use serde_json::Value;

use crate::{
    error::EnvError,
    open_database::OpenDatabase,
    progress::ResultSummary,
    rows::Cell,
    sandbox::{Failure, QueryError, QuickBudgetSpent},
    verifier::{RowOrder, verify_answer},
};

/// The result of the gold SQL.
pub(crate) struct GoldRows {
    /// `None` if the gold SQL fails. No query then makes progress.
    pub(crate) summary: Option<ResultSummary<'static>>,
    /// All rows, for lists and tables. `None` if there are more than are read.
    pub(crate) rows: Option<Vec<Vec<Value>>>,
}

impl GoldRows {
    /// Returns the rows in `kept`, or runs the gold SQL and keeps its rows. Threads that run it at
    /// the same time get equal rows. The inner error is that the run hits the wall clock, or that
    /// the file changed or cannot be read.
    ///
    /// # Errors
    /// The sandbox is quick, and the gold SQL needs more.
    pub(crate) fn get_or_run<'a>(
        question: &Question,
        kept: &'a OnceLock<Self>,
        open: &OpenDatabase,
    ) -> Result<Result<&'a Self, EnvError>, QuickBudgetSpent> {
        if let Some(rows) = kept.get() {
            return Ok(Ok(rows));
        }
        let rows = Self::run(question, open)?.and_then(|rows| open.check().map(|()| rows));
        if let Ok(rows) = &rows
            && let Some(here) = rows.other_result(question)
        {
            tracing::warn!(
                question_id = question.question_id,
                gold_sql = question.gold_sql,
                recorded = %question.gold_answer,
                here,
                "gold SQL has another result here than is recorded, so an agent that runs it is \
                 wrong; add an ORDER BY, or leave the question out"
            );
        }
        Ok(rows.map(|rows| kept.get_or_init(|| rows)))
    }

    fn run(
        question: &Question,
        open: &OpenDatabase,
    ) -> Result<Result<Self, EnvError>, QuickBudgetSpent> {
        let rows = match open.sandbox.query(&question.gold_sql)?.rows {
            Ok(rows) => Ok(Self {
                summary: Some(ResultSummary::new(&rows).into_owned()),
                rows: rows.complete.then(|| {
                    let values = |row: &Vec<Cell>| row.iter().map(Value::from).collect();
                    rows.rows.iter().map(values).collect()
                }),
            }),
            Err(error) if error.failure == Failure::WallClock => Err(EnvError::WallClock {
                query: format!("the gold SQL of question {:?}", question.question_id),
                seconds: open.sandbox.wall_clock_seconds(),
            }),
            Err(error) => match open.fault(&error) {
                Some(fault) => Err(fault),
                None => Ok(Self::of_failed(question, &error)),
            },
        };
        Ok(rows)
    }

    fn of_failed(question: &Question, error: &QueryError) -> Self {
        tracing::warn!(
            question_id = question.question_id,
            gold_sql = question.gold_sql,
            error = error.message,
            "gold SQL fails; queries on its question earn no progress reward"
        );
        Self {
            summary: None,
            rows: None,
        }
    }

    /// Returns the result of the gold SQL if the recorded answer is one value, and not the result.
    /// The order of rows may differ, on which `LIMIT` without `ORDER BY` depends: SQLite may choose
    /// another index where the sandbox has functions of its own.
    fn other_result(&self, question: &Question) -> Option<String> {
        use data::AnswerType::{Float, Integer, String};
        let rows = self.rows.as_deref()?;
        let has_one = matches!(question.answer_type, Integer | Float | String);
        let recorded = data::answer_text(question);
        if !has_one || question.gold_answer.is_null() || recorded.trim().is_empty() {
            return None;
        }
        let [row] = rows else {
            return Some(format!("{} rows", rows.len()));
        };
        let [cell] = row.as_slice() else {
            return Some(format!("{} columns", row.len()));
        };
        let answer = cell
            .as_str()
            .map_or_else(|| cell.to_string(), str::to_owned);
        (!is_correct(question, None, &answer, false)).then_some(answer)
    }
}

/// Returns whether `answer` is correct. `rows` are the gold rows, for lists and tables. With
/// `ordered_tables` the rows of a table must have the order that the gold SQL asks for, if it does.
pub(crate) fn is_correct(
    question: &Question,
    rows: Option<&[Vec<Value>]>,
    answer: &str,
    ordered_tables: bool,
) -> bool {
    let order = match ordered_tables && is_ordered(&question.gold_sql) {
        true => RowOrder::Gold,
        false => RowOrder::Any,
    };
    let (gold, answer_type) = (&question.gold_answer, question.answer_type);
    verify_answer(answer, gold, answer_type, rows, order)
}

#[cfg(test)]
mod tests {
    use data::AnswerType;
    use serde_json::json;

    use super::*;

    #[test]
    fn another_result_than_the_record_is_noticed() {
        for (answer_type, recorded, here, is_other) in [
            (AnswerType::Integer, json!(50), json!(30), true),
            (AnswerType::Integer, json!(50), json!(50), false),
            (AnswerType::Float, json!(3.5), json!(3.5), false),
            (AnswerType::String, json!("Lima"), json!("Quito"), true),
            (AnswerType::String, json!("Lima"), json!("Lima"), false),
            (AnswerType::List, json!([1]), json!(2), false),
            (AnswerType::String, Value::Null, Value::Null, false),
        ] {
            let question = Question {
                question_id: "q".to_owned(),
                question_text: String::new(),
                database_name: String::new(),
                gold_sql: String::new(),
                gold_answer: recorded.clone(),
                answer_type,
                difficulty: String::new(),
                tables_involved: Vec::new(),
                split: "train".to_owned(),
            };
            let gold = GoldRows {
                summary: None,
                rows: Some(vec![vec![here.clone()]]),
            };
            let other = gold.other_result(&question);
            assert_eq!(other.is_some(), is_other, "{recorded} {here}");
            let none = GoldRows {
                summary: None,
                rows: Some(Vec::new()),
            };
            let is_value = answer_type != AnswerType::List && !recorded.is_null();
            let other = none.other_result(&question);
            assert_eq!(other.is_some(), is_value, "{recorded} and no row");
        }
    }
}
