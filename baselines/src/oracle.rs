//! The oracle policy, and the order of a careful policy's actions.

use std::sync::Arc;

use actor::tool_call::action;
use data::{Question, answer_text};
use policy::Coordinates;
use proto::v1::{Action, Observation};

use crate::{scripted_policy::ActionPolicy, solutions::Solutions, tidy_sql::tidy_gold_sql};

/// Knows the solutions: it describes each table, runs the gold SQL and submits the gold answer. It
/// answers an unknown question with the empty string.
#[derive(Clone, Debug)]
pub struct OraclePolicy(pub Arc<Solutions>);

impl ActionPolicy for OraclePolicy {
    fn act(
        &self,
        question_id: &str,
        observation: &Observation,
        _coordinates: Coordinates,
    ) -> Action {
        let Some(question) = self.0.get(question_id) else {
            return action("ANSWER", "");
        };
        match careful_step(question, EpisodeProgress::of(observation), 0) {
            CarefulStep::Describe(table) => action("DESCRIBE", table),
            CarefulStep::Query(_) => action("QUERY", tidy_gold_sql(question, observation)),
            CarefulStep::Answer => action("ANSWER", answer_text(question)),
        }
    }
}

/// How far an episode is.
#[derive(Clone, Copy)]
pub(crate) struct EpisodeProgress {
    /// The env steps that were taken.
    pub taken: usize,
    /// The env steps that are left.
    pub left: usize,
}

impl EpisodeProgress {
    /// Returns how far the episode of this observation is.
    pub(crate) fn of(observation: &Observation) -> Self {
        Self {
            taken: observation.step_count as usize,
            left: observation.budget_remaining as usize,
        }
    }
}

/// The next env step of a careful policy.
pub(crate) enum CarefulStep<'a> {
    /// Describe this table.
    Describe(&'a str),
    /// Run the query with this index.
    Query(usize),
    /// Submit the answer.
    Answer,
}

/// Returns the next env step of a careful policy: it describes the tables, queries once and
/// `extra_queries` more times, and answers. If the budget is short, it describes fewer tables.
pub(crate) fn careful_step<'a>(
    question: &'a Question,
    EpisodeProgress { taken, left }: EpisodeProgress,
    extra_queries: usize,
) -> CarefulStep<'a> {
    let budget = taken + left;
    let tables = &question.tables_involved;
    let described = tables.len().min(budget.saturating_sub(2 + extra_queries));
    if left <= 1 {
        CarefulStep::Answer
    } else if taken < described {
        CarefulStep::Describe(&tables[taken])
    } else if taken <= described + extra_queries {
        CarefulStep::Query(taken - described)
    } else {
        CarefulStep::Answer
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use data::AnswerType;

    use super::*;

    pub(crate) const GOLD_SQL: &str = "SELECT max(pages) FROM book WHERE pages > 10";
    const SCHEMA: &str = "Available tables:\n- book\n- author";

    pub(crate) fn solutions() -> Arc<Solutions> {
        let questions = [("q1", "812"), ("q2", "9"), ("q3", "Moby Dick")];
        let question = |(id, answer): (&str, &str)| Question {
            question_id: id.to_owned(),
            question_text: String::new(),
            database_name: "library".to_owned(),
            gold_sql: GOLD_SQL.to_owned(),
            gold_answer: answer.into(),
            answer_type: AnswerType::String,
            difficulty: "easy".to_owned(),
            tables_involved: vec!["book".to_owned()],
            split: "train".to_owned(),
        };
        Arc::new(questions.map(question).iter().collect())
    }

    /// Returns an observation after `taken` of 8 env steps.
    pub(crate) fn observation(taken: u32, result: &str, error: &str) -> Observation {
        Observation {
            schema_info: if taken == 0 {
                SCHEMA.to_owned()
            } else {
                format!("{SCHEMA}\nTable 'book' columns:\n- title: TEXT\n- pages: INTEGER")
            },
            result: result.to_owned(),
            error: error.to_owned(),
            step_count: taken,
            budget_remaining: 8 - taken,
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

    /// Returns the policy's action in each turn.
    pub(crate) fn actions(
        policy: &impl ActionPolicy,
        question: &str,
        observations: &[Observation],
    ) -> Vec<Action> {
        let turn = |turn: usize| Coordinates {
            turn: turn as u32,
            ..episode(0)
        };
        let turns = observations.iter().enumerate();
        turns
            .map(|(index, observation)| policy.act(question, observation, turn(index)))
            .collect()
    }

    #[test]
    fn the_oracle_describes_queries_and_answers() {
        let oracle = OraclePolicy(solutions());
        let taken = actions(
            &oracle,
            "q1",
            &[
                observation(0, "", ""),
                observation(1, "x", ""),
                observation(2, "1. 812", ""),
            ],
        );
        let wanted = [
            action("DESCRIBE", "book"),
            action("QUERY", GOLD_SQL),
            action("ANSWER", "812"),
        ];
        assert_eq!(taken, wanted);
        assert_eq!(
            oracle.act("unknown", &observation(0, "", ""), episode(0)),
            action("ANSWER", "")
        );
    }

    #[test]
    fn a_short_budget_leaves_out_the_describes() {
        let oracle = OraclePolicy(solutions());
        for (budget_remaining, action_type) in [(2, "QUERY"), (1, "ANSWER")] {
            let short = Observation {
                budget_remaining,
                ..observation(0, "", "")
            };
            let action = oracle.act("q1", &short, episode(0));
            assert_eq!(action.action_type, action_type);
        }
    }
}
