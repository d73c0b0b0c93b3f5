//! Demonstrators: some episodes query before they answer, some guess, some make a mistake and
//! correct it.
//!
//! They imitate people and logs, which pretrained models have read. A demonstrator that runs a
//! wrong query submits what the query returned, not the gold answer. The coordinates of an episode
//! decide which kind it is.

use std::sync::Arc;

use actor::tool_call::action;
use data::{Question, answer_text};
use policy::Coordinates;
use proto::v1::{Action, Observation};

use crate::{
    draws::Draws,
    hasty::hasty_action,
    observation::{answer_from_result, described_columns, table_names, table_with_column},
    oracle::{CarefulStep, EpisodeProgress, careful_step},
    scripted_policy::ActionPolicy,
    solutions::Solutions,
    sql_mistakes::{with_wrong_column_names, with_wrong_table_name, wrong_variants},
    tidy_sql::tidy_gold_sql,
    unnamed_column::unnamed_column,
};

// What each of an episode's draws decides. The guess of a hasty episode uses another number.
const HASTY_DRAW: u32 = 0;
const WRONG_QUERY_DRAW: u32 = 1;
const ERROR_DRAW: u32 = 2;
const VARIANT_DRAW: u32 = 3;
const DETOUR_DRAW: u32 = 5;
const DETOUR_TABLE_DRAW: u32 = 6;
const ERROR_KIND_DRAW: u32 = 7;

/// The share of errors that name a missing column. The others name a missing table, in FROM or
/// before a column.
const COLUMN_ERROR_SHARE: f64 = 0.6;

/// The shares of the kinds of episodes. By default all are careful and without mistakes, as the
/// oracle's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DemonstratorMix {
    /// Share of all episodes that answer without a query.
    pub hasty_share: f64,
    /// Share of the careful episodes that run a subtly wrong query and submit its result.
    pub wrong_query_share: f64,
    /// Share of the careful episodes that name a missing table or column, read the error and
    /// correct it.
    pub error_share: f64,
    /// Share of the careful episodes that first describe a table that the question does not need.
    pub detour_share: f64,
    /// Whether careful episodes look at rows before they query a column that the question does not
    /// name.
    pub looks_at_rows: bool,
}

impl DemonstratorMix {
    /// Returns a mix of half careful and half hasty episodes, with mistakes among the careful ones.
    pub fn mixed() -> Self {
        Self {
            hasty_share: 0.5,
            wrong_query_share: 0.25,
            error_share: 0.07,
            detour_share: 0.0,
            looks_at_rows: false,
        }
    }
}

/// Solves questions carefully, hastily or with mistakes.
#[derive(Clone, Debug)]
pub struct Demonstrator {
    solutions: Arc<Solutions>,
    mix: DemonstratorMix,
}

impl Demonstrator {
    /// Creates a demonstrator. The coordinates of each episode draw its kind from the mix.
    pub fn new(solutions: Arc<Solutions>, mix: DemonstratorMix) -> Self {
        Self { solutions, mix }
    }

    /// Returns the table that this episode describes first although the question does not need it.
    fn detour<'a>(
        &self,
        question: &Question,
        observation: &'a Observation,
        draws: Draws,
    ) -> Option<&'a str> {
        if draws.uniform(DETOUR_DRAW) >= self.mix.detour_share {
            return None;
        }
        let is_needed = |table: &&str| question.tables_involved.iter().any(|name| name == table);
        let mut others = table_names(observation);
        others.retain(|table| !is_needed(table));
        (!others.is_empty()).then(|| *draws.pick(DETOUR_TABLE_DRAW, &others))
    }
}

impl ActionPolicy for Demonstrator {
    fn act(
        &self,
        question_id: &str,
        observation: &Observation,
        coordinates: Coordinates,
    ) -> Action {
        let draws = Draws::of_episode(coordinates);
        let Some(question) = self.solutions.get(question_id) else {
            return action("ANSWER", "");
        };
        if draws.uniform(HASTY_DRAW) < self.mix.hasty_share {
            return hasty_action(&self.solutions, question, observation, draws);
        }
        let errs = draws.uniform(ERROR_DRAW) < self.mix.error_share;
        let is_wrong = draws.uniform(WRONG_QUERY_DRAW) < self.mix.wrong_query_share;
        let gold_sql = || tidy_gold_sql(question, observation);
        let gold_query = || action("QUERY", gold_sql());
        let unnamed = unnamed_column(&question.question_text, &question.gold_sql)
            .filter(|_| self.mix.looks_at_rows);
        let looks = usize::from(unnamed.is_some());
        let mut progress = EpisodeProgress::of(observation);
        if let Some(table) = self.detour(question, observation, draws) {
            if progress.taken == 0 {
                return action("DESCRIBE", table);
            }
            progress.taken -= 1;
        }
        match careful_step(question, progress, looks + usize::from(errs)) {
            CarefulStep::Describe(table) => action("DESCRIBE", table),
            CarefulStep::Query(0) if looks == 1 => {
                let table = unnamed.and_then(|column| table_with_column(observation, column));
                // A table that the budget left out of the descriptions is not looked at.
                table.map_or_else(gold_query, |table| action("SAMPLE", table))
            }
            CarefulStep::Query(query) if errs && query == looks => action(
                "QUERY",
                failing_query(question, &gold_sql(), observation, draws),
            ),
            CarefulStep::Query(_) if is_wrong => {
                action("QUERY", wrong_query(&gold_sql(), observation, draws))
            }
            CarefulStep::Query(_) => gold_query(),
            // The wrong query failed. The demonstrator reads the error and runs the right one.
            CarefulStep::Answer
                if !observation.error.is_empty() && observation.budget_remaining > 1 =>
            {
                gold_query()
            }
            CarefulStep::Answer if is_wrong => {
                action("ANSWER", answer_from_result(&observation.result))
            }
            CarefulStep::Answer => action("ANSWER", answer_text(question)),
        }
    }
}

/// Returns a variant of the gold SQL that names a missing column or table.
fn failing_query(
    question: &Question,
    gold_sql: &str,
    observation: &Observation,
    draws: Draws,
) -> String {
    let columns = described_columns(observation);
    let variants = with_wrong_column_names(gold_sql, &columns, &question.question_text);
    if variants.is_empty() || draws.uniform(ERROR_KIND_DRAW) >= COLUMN_ERROR_SHARE {
        let all = table_names(observation);
        return with_wrong_table_name(gold_sql, &question.tables_involved, &all);
    }
    draws.pick(VARIANT_DRAW, &variants).clone()
}

/// Returns a wrong variant of the gold SQL, or the gold SQL if it has none.
fn wrong_query(gold_sql: &str, observation: &Observation, draws: Draws) -> String {
    let variants = wrong_variants(gold_sql, &described_columns(observation));
    if variants.is_empty() {
        gold_sql.to_owned()
    } else {
        draws.pick(VARIANT_DRAW, &variants).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::tests::{GOLD_SQL, actions, episode, observation, solutions};

    #[test]
    fn an_error_occurs_once_and_is_corrected() {
        let mix = DemonstratorMix {
            error_share: 1.0,
            ..DemonstratorMix::default()
        };
        let demonstrator = Demonstrator::new(solutions(), mix);
        let taken = actions(
            &demonstrator,
            "q1",
            &[
                observation(0, "", ""),
                observation(1, "x", ""),
                observation(2, "", "SQL error: no such table: books"),
                observation(3, "1. 812", ""),
            ],
        );
        assert_eq!(
            taken[1],
            action("QUERY", "SELECT max(pages) FROM books WHERE pages > 10")
        );
        assert_eq!(taken[2], action("QUERY", GOLD_SQL));
        assert_eq!(taken[3], action("ANSWER", "812"));
    }

    #[test]
    fn a_detour_describes_another_table_first() {
        let mix = DemonstratorMix {
            detour_share: 1.0,
            ..DemonstratorMix::default()
        };
        let demonstrator = Demonstrator::new(solutions(), mix);
        let taken = actions(
            &demonstrator,
            "q1",
            &[
                observation(0, "", ""),
                observation(1, "x", ""),
                observation(2, "x", ""),
                observation(3, "1. 812", ""),
            ],
        );
        let wanted = [
            action("DESCRIBE", "author"),
            action("DESCRIBE", "book"),
            action("QUERY", GOLD_SQL),
            action("ANSWER", "812"),
        ];
        assert_eq!(taken, wanted);
    }

    #[test]
    fn a_wrong_query_is_answered_as_read_and_a_failed_one_is_corrected() {
        let mix = DemonstratorMix {
            wrong_query_share: 1.0,
            ..DemonstratorMix::default()
        };
        let demonstrator = Demonstrator::new(solutions(), mix);
        let query = demonstrator.act("q1", &observation(1, "x", ""), episode(0));
        assert_eq!(query.action_type, "QUERY");
        assert_ne!(query.argument, GOLD_SQL);
        let answer = demonstrator.act("q1", &observation(2, "1. 11.25999", ""), episode(0));
        assert_eq!(answer, action("ANSWER", "11.25"));
        let corrected = demonstrator.act("q1", &observation(2, "", "SQL error: x"), episode(0));
        assert_eq!(corrected, action("QUERY", GOLD_SQL));
    }

    #[test]
    fn episodes_come_in_their_shares() {
        let demonstrator = Demonstrator::new(solutions(), DemonstratorMix::mixed());
        let described = observation(1, "Row count: 3", "");
        let hasty = (0..2_000).filter(|member| {
            demonstrator
                .act("q1", &described, episode(*member))
                .action_type
                == "ANSWER"
        });
        let share = hasty.count() as f64 / 2_000.0;
        assert!((0.46..0.54).contains(&share), "{share}");
    }
}
