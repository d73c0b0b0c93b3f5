//! Carries out an action: by the schema, by SQL, or by the verifier.

use std::sync::Arc;

use data::AnswerType;

use super::EnvironmentState;
use crate::{
    catalog::CatalogEntry,
    episode::{self, Action, ActionOutcome, EpisodeState, ParsedAction, Transition},
    error::EnvError,
    gold::{GoldRows, is_correct},
    metrics::{self, QueryCost},
    open_database::OpenDatabase,
    progress::ResultSummary,
    sandbox::{Failure, WorkBudget},
};

/// Longest answer, in bytes, that may be checked where quick work is done: no budget bounds the
/// check of a longer one.
const QUICK_ANSWER_BYTES: usize = 16 << 10;

impl EnvironmentState {
    /// Carries out an action of the episode in `token`, whose state is `state`.
    pub(super) async fn run_action(
        &self,
        entry: &CatalogEntry,
        token: &[u8],
        state: &EpisodeState,
        action: &Action,
    ) -> Result<Transition, EnvError> {
        let schema = &entry.database.schema;
        let parsed = episode::parse(action, schema, self.settings.argument_bytes);
        let outcome = match &parsed {
            ParsedAction::Describe(table) => {
                ActionOutcome::Text(schema.tables[*table].description.clone())
            }
            ParsedAction::Sample(table) => {
                ActionOutcome::Text(schema.tables[*table].sample.clone())
            }
            ParsedAction::Query(sql) => self.query(entry, token, sql).await?,
            ParsedAction::Answer(answer) => {
                ActionOutcome::Verified(self.is_correct(entry, answer).await?)
            }
            ParsedAction::Invalid(error) => ActionOutcome::Error(error.clone()),
        };
        Ok(episode::apply(state, action, &parsed, outcome))
    }

    async fn query(
        &self,
        entry: &CatalogEntry,
        token: &[u8],
        sql: &str,
    ) -> Result<ActionOutcome, EnvError> {
        let (owned_sql, limits) = (sql.to_owned(), self.settings.result);
        let (question, gold) = (Arc::clone(&entry.question), Arc::clone(&entry.gold));
        let work = move |open: &OpenDatabase| {
            let run = open.sandbox.query(&owned_sql)?;
            let cost = QueryCost::from(&run);
            let rows = match run.rows {
                Ok(rows) => rows,
                Err(error) => {
                    let fault = open.fault(&error);
                    return Ok((cost, fault.map_or(Err(error), |fault| Ok(Err(fault)))));
                }
            };
            if let Err(changed) = open.check_if_due() {
                return Ok((cost, Ok(Err(changed))));
            }
            let gold = GoldRows::get_or_run(&question, &gold, open)?;
            let outcome = gold.map(|gold| {
                let level = gold
                    .summary
                    .as_ref()
                    .map_or(0, |gold| ResultSummary::new(&rows).level(gold));
                let text = rows.render(&limits);
                ActionOutcome::Rows { text, level }
            });
            Ok((cost, Ok(outcome)))
        };
        let database = Arc::clone(&entry.database);
        let (cost, outcome) = self.pool.run(WorkBudget::Quick, database, work).await?;
        // Not where it runs: it runs twice if it, or the gold SQL after it, is long.
        metrics::query_run(&cost);
        match outcome {
            Ok(outcome) => outcome,
            Err(error)
                if error.failure == Failure::WallClock
                    && self.wall_clock_hits.insert(token, sql) =>
            {
                Err(EnvError::WallClock {
                    query: "the query".to_owned(),
                    seconds: self.settings.sql.wall_clock_seconds,
                })
            }
            Err(error) => Ok(ActionOutcome::Error(error.message)),
        }
    }

    /// Checks an answer. Short scalars are checked here. SQL threads check lists and tables, which
    /// need the gold rows, and long answers, which take time.
    async fn is_correct(&self, entry: &CatalogEntry, answer: &str) -> Result<bool, EnvError> {
        let needs_rows = matches!(
            entry.question.answer_type,
            AnswerType::List | AnswerType::Table
        );
        let budget = match answer.len() {
            ..=QUICK_ANSWER_BYTES => WorkBudget::Quick,
            _ => WorkBudget::Full,
        };
        if !needs_rows && budget == WorkBudget::Quick {
            return Ok(is_correct(&entry.question, None, answer, false));
        }
        let (question, gold, answer) = (
            Arc::clone(&entry.question),
            Arc::clone(&entry.gold),
            answer.to_owned(),
        );
        let ordered_tables = self.settings.ordered_tables;
        let work = move |open: &OpenDatabase| {
            if !needs_rows {
                return Ok(Ok(is_correct(&question, None, &answer, false)));
            }
            let gold = GoldRows::get_or_run(&question, &gold, open)?;
            Ok(gold
                .map(|gold| is_correct(&question, gold.rows.as_deref(), &answer, ordered_tables)))
        };
        self.pool
            .run(budget, Arc::clone(&entry.database), work)
            .await?
    }
}
