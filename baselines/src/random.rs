//! The random policy, and how a policy guesses an answer.

use actor::tool_call::action;
use data::sql_text::quoted;
use policy::Coordinates;
use proto::v1::{Action, Observation};

use crate::{
    draws::Draws,
    observation::{result_rows, table_names},
    scripted_policy::ActionPolicy,
};

/// The number of the draw that chooses a guess.
pub(crate) const GUESS_DRAW: u32 = 4;

/// Takes random actions on the tables it sees. It is the lower bound of every comparison.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomPolicy;

impl ActionPolicy for RandomPolicy {
    fn act(
        &self,
        _question_id: &str,
        observation: &Observation,
        coordinates: Coordinates,
    ) -> Action {
        let draws = Draws::of_turn(coordinates);
        let tables = table_names(observation);
        if tables.is_empty() || observation.budget_remaining <= 1 {
            return action("ANSWER", guess(draws, observation));
        }
        let table = *draws.pick(0, &tables);
        let name = quoted(table);
        match draws.below(1, 5) {
            0 => action("DESCRIBE", table),
            1 => action("SAMPLE", table),
            2 => action("QUERY", format!("SELECT COUNT(*) FROM {name}")),
            3 => action("QUERY", format!("SELECT * FROM {name} LIMIT 5")),
            _ => action("ANSWER", guess(draws, observation)),
        }
    }
}

/// Returns a row of the newest result, or the row count, or 0.
pub(crate) fn guess(draws: Draws, observation: &Observation) -> String {
    let rows = result_rows(&observation.result);
    if !rows.is_empty() {
        return draws.pick(GUESS_DRAW, &rows).clone();
    }
    let mut lines = observation.result.lines();
    let row_count = lines.find_map(|line| line.strip_prefix("Row count: "));
    row_count.unwrap_or("0").to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::oracle::tests::{episode, observation};

    #[test]
    fn the_random_policy_repeats_its_actions_and_ends() {
        let last = Observation {
            budget_remaining: 1,
            ..observation(0, "1. a | b\n2. c | d", "")
        };
        let first = observation(0, "", "");
        let mut action_types = BTreeSet::new();
        for member in 0..100 {
            let chosen = RandomPolicy.act("q1", &first, episode(member));
            assert_eq!(chosen, RandomPolicy.act("q1", &first, episode(member)));
            action_types.insert(chosen.action_type);
            let end = RandomPolicy.act("q1", &last, episode(member));
            assert_eq!(end.action_type, "ANSWER");
            assert!(["a | b", "c | d"].contains(&end.argument.as_str()));
        }
        assert_eq!(action_types.len(), 4);
    }
}
