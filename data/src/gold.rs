//! What follows from the gold SQL of a record: its answer, the tables that it reads, its level.

use serde_json::Value;

use crate::error::Refused;
use crate::sql::{GoldDatabase, GoldResult};
use crate::{AnswerType, answer_from_rows};

/// What follows from gold SQL.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Derived {
    pub(crate) answer_type: AnswerType,
    pub(crate) answer: Value,
    pub(crate) tables: Vec<String>,
}

/// Runs the gold SQL.
///
/// # Errors
/// It does not compile, spends its budget, or has no answer that an agent can give.
pub(crate) fn derive(database: &GoldDatabase, gold_sql: &str) -> Result<Derived, Refused> {
    of_result(database.run(gold_sql).map_err(of_gold_sql)?)
}

/// Runs gold SQL that agents must be able to run as well.
///
/// # Errors
/// Fails like [`derive()`], or the gold SQL is over the limits of agents' queries.
pub(crate) fn derive_for_agents(
    database: &GoldDatabase,
    gold_sql: &str,
) -> Result<Derived, Refused> {
    let run = database.run_for_agents(gold_sql);
    let (gold, refusal) = run.map_err(of_gold_sql)?;
    let derived = of_result(gold)?;
    match refusal {
        None => Ok(derived),
        Some(refusal) => Err(Refused::unanswered(format!(
            "the gold SQL is over the limits of agents' queries: {refusal}"
        ))),
    }
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
pub(crate) fn of_gold_sql(mut refused: Refused) -> Refused {
    refused.reason.insert_str(0, "the gold SQL ");
    refused
}

/// Returns the level of a query by SQLEnv's rule: the number of its tables.
pub(crate) fn level(tables: &[String]) -> &'static str {
    match tables.len() {
        0..=2 => "easy",
        3 => "medium",
        _ => "hard",
    }
}
