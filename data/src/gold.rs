//! What follows from the gold SQL of a record: its answer, the tables that it reads, its level.

use serde_json::Value;

use crate::sql::{GoldDatabase, GoldResult};
use crate::{AnswerType, answer_from_rows};

/// What follows from gold SQL.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Derived {
    pub(crate) answer_type: AnswerType,
    pub(crate) answer: Value,
    pub(crate) tables: Vec<String>,
}

/// Why a record cannot become a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: String,
    /// Whether the record is wrong: see [`crate::LeftOut`].
    pub(crate) is_wrong: bool,
}

impl Refused {
    pub(crate) fn wrong(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            is_wrong: true,
        }
    }

    fn unanswered(reason: String) -> Self {
        Self {
            reason,
            is_wrong: false,
        }
    }
}

/// Runs the gold SQL.
///
/// # Errors
/// It does not compile, spends its budget, or has no answer that an agent can give.
pub(crate) fn derive(database: &GoldDatabase, gold_sql: &str) -> Result<Derived, Refused> {
    compile(database, gold_sql)?;
    let gold = database.run(gold_sql).map_err(of_gold_sql);
    of_result(gold.map_err(Refused::unanswered)?)
}

/// Runs gold SQL that agents must be able to run as well.
///
/// # Errors
/// Fails like [`derive()`], or the gold SQL is over the limits of agents' queries.
pub(crate) fn derive_for_agents(
    database: &GoldDatabase,
    gold_sql: &str,
) -> Result<Derived, Refused> {
    compile(database, gold_sql)?;
    let run = database.run_for_agents(gold_sql).map_err(of_gold_sql);
    let (gold, refusal) = run.map_err(Refused::unanswered)?;
    let derived = of_result(gold)?;
    match refusal {
        None => Ok(derived),
        Some(refusal) => Err(Refused::unanswered(format!(
            "the gold SQL is over the limits of agents' queries: {refusal}"
        ))),
    }
}

fn compile(database: &GoldDatabase, gold_sql: &str) -> Result<(), Refused> {
    let compiled = database.compile(gold_sql).map_err(of_gold_sql);
    compiled.map_err(Refused::wrong)
}

fn of_result(gold: GoldResult) -> Result<Derived, Refused> {
    let (answer_type, answer) = answer_from_rows(&gold.rows).map_err(Refused::unanswered)?;
    Ok(Derived {
        answer_type,
        answer,
        tables: gold.tables,
    })
}

/// Gives a subject to what [`GoldDatabase`] says about a query.
pub(crate) fn of_gold_sql(mut reason: String) -> String {
    reason.insert_str(0, "the gold SQL ");
    reason
}

/// Returns the level of a query by SQLEnv's rule: the number of its tables.
pub(crate) fn level(tables: &[String]) -> &'static str {
    match tables.len() {
        0..=2 => "easy",
        3 => "medium",
        _ => "hard",
    }
}
