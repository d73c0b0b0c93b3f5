//! Policies that follow one rule: the random baseline, the oracle, and the one who guesses.
//!
//! Invariant: each action is a pure function of the question, the newest observation and the coordinates; there is no state
//! between turns. Solutions come from the caller; the environment's observations never hold them.

use std::{collections::BTreeMap, sync::Arc};

use policy::Coordinates;
use proto::v1::{Action, Observation};

use crate::{
    dice::Dice,
    policies::Script,
    seen::{rows, tables},
    tool_call::action,
};

/// The draw that chooses a guess.
const GUESS: u32 = 4;

/// How one question is solved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The database; guesses are drawn from its answers.
    pub database_name: String,
    /// Tables to describe, in order.
    pub tables: Vec<String>,
    /// The gold SQL.
    pub sql: String,
    /// The answer as a model would write it.
    pub answer: String,
}

/// Solutions by question id.
#[derive(Clone, Debug, Default)]
pub struct Solutions {
    by_question: BTreeMap<String, Solution>,
    answers_by_database: BTreeMap<String, Vec<String>>,
}

impl FromIterator<(String, Solution)> for Solutions {
    fn from_iter<I: IntoIterator<Item = (String, Solution)>>(solutions: I) -> Self {
        let by_question: BTreeMap<_, _> = solutions.into_iter().collect();
        let mut answers_by_database: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for solution in by_question.values() {
            let answers = answers_by_database
                .entry(solution.database_name.clone())
                .or_default();
            answers.push(solution.answer.clone());
        }
        Self {
            by_question,
            answers_by_database,
        }
    }
}

impl Solutions {
    pub(crate) fn get(&self, question_id: &str) -> Option<&Solution> {
        self.by_question.get(question_id)
    }
}

/// Plays by chance over the tables it sees: the floor of every comparison.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomPolicy;

impl Script for RandomPolicy {
    fn act(
        &self,
        _question_id: &str,
        observation: &Observation,
        coordinates: Coordinates,
    ) -> Action {
        let dice = Dice(coordinates);
        let tables = tables(observation);
        if tables.is_empty() || observation.budget_remaining <= 1 {
            return action("ANSWER", guess(dice, observation));
        }
        let table = *dice.pick(0, &tables);
        match dice.below(1, 5) {
            0 => action("DESCRIBE", table),
            1 => action("SAMPLE", table),
            2 => action("QUERY", format!("SELECT COUNT(*) FROM {}", quoted(table))),
            3 => action("QUERY", format!("SELECT * FROM {} LIMIT 5", quoted(table))),
            _ => action("ANSWER", guess(dice, observation)),
        }
    }
}

/// Knows the gold: describes each table, queries, answers. A question it does not know it answers with nothing.
#[derive(Clone, Debug)]
pub struct OraclePolicy(pub Arc<Solutions>);

impl Script for OraclePolicy {
    fn act(
        &self,
        question_id: &str,
        observation: &Observation,
        _coordinates: Coordinates,
    ) -> Action {
        let Some(solution) = self.0.get(question_id) else {
            return action("ANSWER", "");
        };
        match next_look(solution, observation, 0) {
            Look::Describe(table) => action("DESCRIBE", table),
            Look::Query(_) => action("QUERY", &*solution.sql),
            Look::Answer => action("ANSWER", &*solution.answer),
        }
    }
}

/// Describes one table and guesses an answer of the right kind without asking the database.
#[derive(Clone, Debug)]
pub struct HastyPolicy(pub Arc<Solutions>);

impl Script for HastyPolicy {
    fn act(
        &self,
        question_id: &str,
        observation: &Observation,
        coordinates: Coordinates,
    ) -> Action {
        let dice = Dice::of_episode(coordinates);
        let Some(solution) = self.0.get(question_id) else {
            return action("ANSWER", "");
        };
        match solution.tables.first() {
            Some(table) if observation.step_count == 0 && observation.budget_remaining > 1 => {
                action("DESCRIBE", table)
            }
            _ => action("ANSWER", self.plausible_answer(solution, observation, dice)),
        }
    }
}

impl HastyPolicy {
    /// The answer to another question on the same database that looks alike; else what was last seen.
    fn plausible_answer(
        &self,
        solution: &Solution,
        observation: &Observation,
        dice: Dice,
    ) -> String {
        let answers = self.0.answers_by_database.get(&solution.database_name);
        let alike: Vec<&String> = answers
            .into_iter()
            .flatten()
            .filter(|answer| {
                **answer != solution.answer && Shape::of(answer) == Shape::of(&solution.answer)
            })
            .collect();
        if alike.is_empty() {
            guess(dice, observation)
        } else {
            (*dice.pick(GUESS, &alike)).clone()
        }
    }
}

/// What a careful player does next.
pub(crate) enum Look<'a> {
    Describe(&'a str),
    /// The how-manieth query.
    Query(usize),
    Answer,
}

/// The steps of a careful player by the steps made: describe the tables, query (`extra_queries` more than once), answer.
/// A short budget leaves out the first ones.
pub(crate) fn next_look<'a>(
    solution: &'a Solution,
    observation: &Observation,
    extra_queries: usize,
) -> Look<'a> {
    let made = observation.step_count as usize;
    let budget = made + observation.budget_remaining as usize;
    let tables = solution
        .tables
        .len()
        .min(budget.saturating_sub(2 + extra_queries));
    if observation.budget_remaining <= 1 {
        Look::Answer
    } else if made < tables {
        Look::Describe(&solution.tables[made])
    } else if made <= tables + extra_queries {
        Look::Query(made - tables)
    } else {
        Look::Answer
    }
}

/// A row that was last seen, or the row count, or 0.
fn guess(dice: Dice, observation: &Observation) -> String {
    let rows = rows(&observation.result);
    let row_count = || {
        observation
            .result
            .lines()
            .find_map(|line| line.strip_prefix("Row count: "))
    };
    if rows.is_empty() {
        row_count().unwrap_or("0").to_owned()
    } else {
        (*dice.pick(GUESS, &rows)).to_owned()
    }
}

fn quoted(table: &str) -> String {
    format!("\"{}\"", table.replace('"', "\"\""))
}

/// The kind of an answer, as a guesser can tell it from the question.
#[derive(PartialEq)]
enum Shape {
    Number,
    Text,
    Several,
}

impl Shape {
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
pub(crate) mod tests {
    use super::*;

    const SCHEMA: &str = "Available tables:\n- book\n- author";

    pub(crate) fn solutions() -> Arc<Solutions> {
        let solution = |answer: &str| Solution {
            database_name: "library".to_owned(),
            tables: vec!["book".to_owned()],
            sql: "SELECT MAX(pages) FROM book WHERE pages > 10".to_owned(),
            answer: answer.to_owned(),
        };
        let solutions = [("q1", "812"), ("q2", "9"), ("q3", "Moby Dick")];
        Arc::new(
            solutions
                .map(|(id, answer)| (id.to_owned(), solution(answer)))
                .into_iter()
                .collect(),
        )
    }

    /// An observation after `made` of 8 steps.
    pub(crate) fn seen(made: u32, result: &str, error: &str) -> Observation {
        Observation {
            schema_info: if made == 0 {
                SCHEMA.to_owned()
            } else {
                format!("{SCHEMA}\nTable 'book' columns:\n- title: TEXT\n- pages: INTEGER")
            },
            result: result.to_owned(),
            error: error.to_owned(),
            step_count: made,
            budget_remaining: 8 - made,
            ..Observation::default()
        }
    }

    pub(crate) fn episode(member: u32) -> Coordinates {
        Coordinates {
            run_seed: 7,
            member,
            ..Coordinates::default()
        }
    }

    pub(crate) fn kinds(
        script: &impl Script,
        question: &str,
        observations: &[Observation],
    ) -> Vec<Action> {
        let turn = |turn: usize| Coordinates {
            turn: turn as u32,
            ..episode(0)
        };
        let acts = observations.iter().enumerate();
        acts.map(|(index, observation)| script.act(question, observation, turn(index)))
            .collect()
    }

    #[test]
    fn the_oracle_describes_queries_and_answers() {
        let oracle = OraclePolicy(solutions());
        let acts = kinds(
            &oracle,
            "q1",
            &[seen(0, "", ""), seen(1, "x", ""), seen(2, "1. 812", "")],
        );
        let wanted = [
            action("DESCRIBE", "book"),
            action("QUERY", "SELECT MAX(pages) FROM book WHERE pages > 10"),
            action("ANSWER", "812"),
        ];
        assert_eq!(acts, wanted);
        assert_eq!(
            oracle.act("unknown", &seen(0, "", ""), episode(0)),
            action("ANSWER", "")
        );
    }

    #[test]
    fn a_short_budget_leaves_out_the_describes() {
        let oracle = OraclePolicy(solutions());
        let two_left = Observation {
            budget_remaining: 2,
            ..seen(0, "", "")
        };
        assert_eq!(oracle.act("q1", &two_left, episode(0)).action_type, "QUERY");
        let one_left = Observation {
            budget_remaining: 1,
            ..seen(0, "", "")
        };
        assert_eq!(
            oracle.act("q1", &one_left, episode(0)).action_type,
            "ANSWER"
        );
    }

    #[test]
    fn the_hasty_guess_is_alike_but_not_known() {
        let hasty = HastyPolicy(solutions());
        let acts = kinds(
            &hasty,
            "q1",
            &[seen(0, "", ""), seen(1, "Row count: 3", "")],
        );
        assert_eq!(acts, [action("DESCRIBE", "book"), action("ANSWER", "9")]);
        let acts = kinds(
            &hasty,
            "q3",
            &[seen(0, "", ""), seen(1, "Row count: 3", "")],
        );
        assert_eq!(acts[1], action("ANSWER", "3"));
    }

    #[test]
    fn the_random_policy_repeats_itself_and_ends() {
        let last = Observation {
            budget_remaining: 1,
            ..seen(0, "1. a | b\n2. c | d", "")
        };
        let mut kinds = std::collections::BTreeSet::new();
        for member in 0..100 {
            let act = RandomPolicy.act("q1", &seen(0, "", ""), episode(member));
            assert_eq!(
                act,
                RandomPolicy.act("q1", &seen(0, "", ""), episode(member))
            );
            kinds.insert(act.action_type);
            let end = RandomPolicy.act("q1", &last, episode(member));
            assert_eq!(end.action_type, "ANSWER");
            assert!(["a | b", "c | d"].contains(&end.argument.as_str()));
        }
        assert_eq!(kinds.len(), 4);
    }
}
