//! The result of a question's gold SQL, and the verdict on an answer to it.
//!
//! Invariant: worked out on the SQL threads, in the same sandbox and under the same limits as the agent's queries, and
//! kept from then on. What was cut short, or ended by the wall clock, is not a result and is never kept. Gold rows never leave the node.

use std::sync::OnceLock;

use data::Question;
use serde_json::Value;

use crate::{
    error::EnvError,
    progress::Profile,
    sandbox::{Failure, Sandbox},
    verifier::{Gold, verify_answer},
};

/// The result of the gold SQL.
pub(crate) struct GoldRows {
    /// `None` where the gold SQL fails; no query then makes progress.
    pub(crate) profile: Option<Profile<'static>>,
    /// All rows, for lists and tables; `None` where there are more than are read.
    pub(crate) rows: Option<Vec<Vec<Value>>>,
}

impl GoldRows {
    /// The rows kept in `kept`, or else those of a run. Threads that run it at the same time find the same.
    ///
    /// # Errors
    /// The run hits the wall clock.
    pub(crate) fn of<'a>(
        question: &Question,
        kept: &'a OnceLock<Self>,
        sandbox: &Sandbox,
    ) -> Result<&'a Self, EnvError> {
        if let Some(rows) = kept.get() {
            return Ok(rows);
        }
        let rows = Self::run(question, sandbox)?;
        Ok(kept.get_or_init(|| rows))
    }

    fn run(question: &Question, sandbox: &Sandbox) -> Result<Self, EnvError> {
        match sandbox.query(&question.gold_sql).rows {
            Ok(rows) => Ok(Self {
                profile: Some(Profile::new(&rows).into_owned()),
                rows: rows.complete.then(|| {
                    rows.rows
                        .iter()
                        .map(|row| row.iter().map(Value::from).collect())
                        .collect()
                }),
            }),
            Err(error) if error.failure == Failure::CutShort => Err(EnvError::Internal(
                "the pool runs what was cut short again and drops this".to_owned(),
            )),
            Err(error) if error.failure == Failure::WallClock => Err(EnvError::WallClock {
                query: format!("the gold SQL of question {:?}", question.question_id),
                seconds: sandbox.wall_clock_seconds(),
            }),
            Err(error) => {
                tracing::warn!(
                    question_id = question.question_id,
                    gold_sql = question.gold_sql,
                    error = error.message,
                    "gold SQL fails; its question shows no progress"
                );
                Ok(Self {
                    profile: None,
                    rows: None,
                })
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
