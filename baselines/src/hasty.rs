//! The hasty policy: it answers without a query.

use std::sync::Arc;

use actor::{
    policy::Coordinates,
    proto::v1::{Action, Observation},
    tool_call::action,
};

use crate::{
    draws::Draws,
    random::{GUESS_DRAW, guess},
    scripted_policy::ActionPolicy,
    solutions::{Solution, Solutions},
};

/// Describes one table and guesses an answer of the right kind without querying the database.
#[derive(Clone, Debug)]
pub struct HastyPolicy(pub Arc<Solutions>);

impl ActionPolicy for HastyPolicy {
    fn act(
        &self,
        question_id: &str,
        observation: &Observation,
        coordinates: Coordinates,
    ) -> Action {
        let draws = Draws::of_episode(coordinates);
        let Some(solution) = self.0.get(question_id) else {
            return action("ANSWER", "");
        };
        match solution.tables.first() {
            Some(table) if observation.step_count == 0 && observation.budget_remaining > 1 => {
                action("DESCRIBE", table)
            }
            _ => action(
                "ANSWER",
                self.plausible_answer(solution, observation, draws),
            ),
        }
    }
}

impl HastyPolicy {
    /// Returns the answer to another question on the same database that is of the same kind, or else
    /// a guess from the newest observation.
    fn plausible_answer(
        &self,
        solution: &Solution,
        observation: &Observation,
        draws: Draws,
    ) -> String {
        let kind = AnswerKind::of(&solution.answer);
        let answers = self.0.answers_on(&solution.database_name);
        let similar: Vec<&str> = answers
            .filter(|answer| *answer != solution.answer && AnswerKind::of(answer) == kind)
            .collect();
        if similar.is_empty() {
            guess(draws, observation)
        } else {
            (*draws.pick(GUESS_DRAW, &similar)).to_owned()
        }
    }
}

/// The kind of an answer, as far as the question alone reveals it.
#[derive(PartialEq)]
enum AnswerKind {
    Number,
    Text,
    Several,
}

impl AnswerKind {
    fn of(answer: &str) -> Self {
        if answer.parse::<f64>().is_ok() {
            Self::Number
        } else if answer.contains([',', '|', '\n']) {
            Self::Several
        } else {
            Self::Text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::tests::{actions, observation, solutions};

    #[test]
    fn the_guess_is_of_the_right_kind_but_not_the_gold_answer() {
        let hasty = HastyPolicy(solutions());
        let observations = [observation(0, "", ""), observation(1, "Row count: 3", "")];
        let number = actions(&hasty, "q1", &observations);
        assert_eq!(number, [action("DESCRIBE", "book"), action("ANSWER", "9")]);
        let text = actions(&hasty, "q3", &observations);
        assert_eq!(text[1], action("ANSWER", "3"));
    }
}
