//! Demonstrators of mixed habits: some look before they answer, some guess, some slip and recover.
//!
//! They imitate people and logs, which is what pretrained models have read; a demonstrator that slips writes what it read, not
//! what it knows. Which habit an episode shows is drawn by its coordinates.

use std::sync::Arc;

use policy::Coordinates;
use proto::v1::{Action, Observation};
use serde::{Deserialize, Serialize};

use crate::{
    dice::Dice,
    policies::Script,
    scripts::{HastyPolicy, Look, Solution, Solutions, next_look},
    seen::{copied, described_columns},
    sql_slips::{misnamed, wrong_variants},
    tool_call::action,
};

// Which of an episode's draws decides what; draws of other scripts have other numbers.
const HASTE: u32 = 0;
const SLIP: u32 = 1;
const ERROR: u32 = 2;
const SLIP_KIND: u32 = 3;

/// How often a demonstrator falls into which habit. Shares are of all episodes, except the slips: of the careful ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Habits {
    /// Answers without a query.
    pub hasty_share: f64,
    /// Runs a subtly wrong query and answers its result.
    pub wrong_query_share: f64,
    /// Names a table that is not there, reads the error, and recovers.
    pub error_share: f64,
}

impl Default for Habits {
    /// The oracle's habits: none.
    fn default() -> Self {
        Self {
            hasty_share: 0.0,
            wrong_query_share: 0.0,
            error_share: 0.0,
        }
    }
}

impl Habits {
    /// Half careful, half hasty, with slips among the careful.
    #[must_use]
    pub fn mixed() -> Self {
        Self {
            hasty_share: 0.5,
            wrong_query_share: 0.25,
            error_share: 0.07,
        }
    }
}

/// Solves questions as people of mixed habits do; writes what it read, not what it knows.
#[derive(Clone, Debug)]
pub struct Demonstrator {
    solutions: Arc<Solutions>,
    habits: Habits,
}

impl Demonstrator {
    /// A demonstrator; each episode's habit is drawn by its coordinates.
    #[must_use]
    pub fn new(solutions: Arc<Solutions>, habits: Habits) -> Self {
        Self { solutions, habits }
    }
}

impl Script for Demonstrator {
    fn act(
        &self,
        question_id: &str,
        observation: &Observation,
        coordinates: Coordinates,
    ) -> Action {
        let dice = Dice::of_episode(coordinates);
        if dice.unit(HASTE) < self.habits.hasty_share {
            return HastyPolicy(self.solutions.clone()).act(question_id, observation, coordinates);
        }
        let Some(solution) = self.solutions.get(question_id) else {
            return action("ANSWER", "");
        };
        let errs = dice.unit(ERROR) < self.habits.error_share;
        let slips = dice.unit(SLIP) < self.habits.wrong_query_share;
        match next_look(solution, observation, usize::from(errs)) {
            Look::Describe(table) => action("DESCRIBE", table),
            Look::Query(0) if errs => action("QUERY", misnamed(&solution.sql, &solution.tables)),
            Look::Query(_) if slips => action("QUERY", slip(solution, observation, dice)),
            Look::Query(_) => action("QUERY", &*solution.sql),
            // The slip failed: the error shows it, and the right query follows.
            Look::Answer if !observation.error.is_empty() && observation.budget_remaining > 1 => {
                action("QUERY", &*solution.sql)
            }
            Look::Answer if slips => action("ANSWER", copied(&observation.result)),
            Look::Answer => action("ANSWER", &*solution.answer),
        }
    }
}

fn slip(solution: &Solution, observation: &Observation, dice: Dice) -> String {
    let variants = wrong_variants(&solution.sql, &described_columns(observation));
    if variants.is_empty() {
        solution.sql.clone()
    } else {
        dice.pick(SLIP_KIND, &variants).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripts::tests::{episode, kinds, seen, solutions};

    #[test]
    fn an_error_is_made_once_and_mended() {
        let habits = Habits {
            error_share: 1.0,
            ..Habits::default()
        };
        let script = Demonstrator::new(solutions(), habits);
        let acts = kinds(
            &script,
            "q1",
            &[
                seen(0, "", ""),
                seen(1, "x", ""),
                seen(2, "", "SQL error: no such table: books"),
                seen(3, "1. 812", ""),
            ],
        );
        assert_eq!(
            acts[1],
            action("QUERY", "SELECT MAX(pages) FROM books WHERE pages > 10")
        );
        assert_eq!(
            acts[2],
            action("QUERY", "SELECT MAX(pages) FROM book WHERE pages > 10")
        );
        assert_eq!(acts[3], action("ANSWER", "812"));
    }

    #[test]
    fn a_slip_is_answered_as_read_and_a_failed_one_is_mended() {
        let habits = Habits {
            wrong_query_share: 1.0,
            ..Habits::default()
        };
        let script = Demonstrator::new(solutions(), habits);
        let query = script.act("q1", &seen(1, "x", ""), episode(0));
        assert_eq!(query.action_type, "QUERY");
        assert_ne!(
            query.argument,
            "SELECT MAX(pages) FROM book WHERE pages > 10"
        );
        let answer = script.act("q1", &seen(2, "1. 11.25999", ""), episode(0));
        assert_eq!(answer, action("ANSWER", "11.25"));
        let mended = script.act("q1", &seen(2, "", "SQL error: x"), episode(0));
        assert_eq!(
            mended,
            action("QUERY", "SELECT MAX(pages) FROM book WHERE pages > 10")
        );
    }

    #[test]
    fn habits_come_in_their_shares() {
        let script = Demonstrator::new(solutions(), Habits::mixed());
        let described = seen(1, "Row count: 3", "");
        let hasty = (0..2_000).filter(|member| {
            script.act("q1", &described, episode(*member)).action_type == "ANSWER"
        });
        let share = hasty.count() as f64 / 2_000.0;
        assert!((0.46..0.54).contains(&share), "{share}");
    }
}
