//! Hasty episodes: they answer without a query.

use actor::tool_call::action;
use data::{Question, answer_text};
use proto::v1::{Action, Observation};

use crate::{
    draws::Draws,
    random::{GUESS_DRAW, guess},
    solutions::Solutions,
};

/// Returns the next action of a hasty episode: it describes one table and guesses an answer of the
/// right kind without querying the database.
pub(crate) fn hasty_action(
    solutions: &Solutions,
    question: &Question,
    observation: &Observation,
    draws: Draws,
) -> Action {
    match question.tables_involved.first() {
        Some(table) if observation.step_count == 0 && observation.budget_remaining > 1 => {
            action("DESCRIBE", table)
        }
        _ => {
            let answer = plausible_answer(solutions, question, observation, draws);
            action("ANSWER", answer)
        }
    }
}

/// Returns the answer to another question on the same database that is of the same kind, or else a
/// guess from the newest observation.
fn plausible_answer(
    solutions: &Solutions,
    question: &Question,
    observation: &Observation,
    draws: Draws,
) -> String {
    let gold = answer_text(question);
    let answers = solutions.answers_on(&question.database_name);
    let similar: Vec<&String> = answers
        .iter()
        .filter(|answer| **answer != gold && AnswerKind::of(answer) == AnswerKind::of(&gold))
        .collect();
    if similar.is_empty() {
        guess(draws, observation)
    } else {
        (*draws.pick(GUESS_DRAW, &similar)).clone()
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
    use crate::oracle::tests::{episode, observation, solutions};

    #[test]
    fn the_guess_is_of_the_right_kind_but_not_the_gold_answer() {
        let solutions = solutions();
        let act = |question_id, observation| {
            let question = solutions.get(question_id).unwrap();
            let draws = Draws::of_episode(episode(0));
            hasty_action(&solutions, question, &observation, draws)
        };
        assert_eq!(
            act("q1", observation(0, "", "")),
            action("DESCRIBE", "book")
        );
        let described = observation(1, "Row count: 3", "");
        assert_eq!(act("q1", described.clone()), action("ANSWER", "9"));
        assert_eq!(act("q3", described), action("ANSWER", "3"));
    }
}
