//! The result of a question's gold SQL, and the verdict on an answer to it.
//!
//! Invariant: worked out at most once for each question, on the SQL threads, in the same sandbox and under the same
//! limits as the agent's queries. Gold rows never leave the node.

use data::Question;
use serde_json::Value;

use crate::{
    progress::Profile,
    sandbox::Sandbox,
    verifier::{Gold, verify_answer},
};

/// The result of the gold SQL.
pub(crate) struct GoldRows {
    /// `None` where the gold SQL fails; no query then makes progress.
    pub(crate) profile: Option<Profile>,
    /// All rows, for lists and tables; `None` where there are more than are read.
    pub(crate) rows: Option<Vec<Vec<Value>>>,
}

impl GoldRows {
    pub(crate) fn run(sandbox: &Sandbox, gold_sql: &str) -> Self {
        match sandbox.query(gold_sql).rows {
            Ok(rows) => Self {
                profile: Some(Profile::new(&rows)),
                rows: rows.complete.then(|| {
                    rows.rows
                        .iter()
                        .map(|row| row.iter().map(Value::from).collect())
                        .collect()
                }),
            },
            Err(error) => {
                tracing::warn!(
                    gold_sql,
                    error = error.message,
                    "gold SQL fails; its question shows no progress"
                );
                Self {
                    profile: None,
                    rows: None,
                }
            }
        }
    }
}

/// Whether `answer` is right; `rows` are the gold rows, for lists and tables.
pub(crate) fn is_right(question: &Question, rows: Option<&[Vec<Value>]>, answer: &str) -> bool {
    let gold = Gold {
        answer: &question.gold_answer,
        answer_type: question.answer_type,
        rows,
        ordered: false,
    };
    verify_answer(Some(answer), &gold)
}
