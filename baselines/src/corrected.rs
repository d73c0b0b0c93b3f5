//! Episodes of a model that an expert corrects: DAgger (Ross et al. 2011, arXiv:1011.0686).
//!
//! Demonstrations show a model only the states that an expert reaches. After a mistake of its own
//! the model is in a state that it has never seen, and it often repeats the mistake. Here the model
//! acts until its last action has visibly failed, and the expert takes that turn. Only the expert's
//! turns are to be learned.

use std::sync::Arc;

use actor::{ActorError, Completion, Policy, TurnView, tool_call};
use async_trait::async_trait;
use data::Question;
use policy::Chat;
use proto::v1::{Action, Observation, Segment, Trajectory};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    observation::is_described, scripted_policy::completion_of, solutions::Solutions,
    tidy_sql::tidy_gold_sql,
};

/// The mask of a token that is neither to be learned nor given: a model sampled it.
const NOT_LEARNED: u8 = 2;

/// A model whose visible failures an expert corrects.
pub struct CorrectedPolicy<P> {
    model: P,
    chat: Arc<Chat>,
    solutions: Arc<Solutions>,
}

impl<P: Policy> CorrectedPolicy<P> {
    /// Creates the policy. The model's policy version must not be 0, which is the expert's.
    pub fn new(model: P, chat: Arc<Chat>, solutions: Arc<Solutions>) -> Self {
        Self {
            model,
            chat,
            solutions,
        }
    }
}

#[async_trait]
impl<P: Policy> Policy for CorrectedPolicy<P> {
    async fn complete(&self, view: TurnView<'_>) -> Result<Completion, ActorError> {
        let question = self.solutions.get(view.question_id);
        let Some(action) = question.and_then(|question| correction(question, view.observation))
        else {
            return self.model.complete(view).await;
        };
        completion_of(&self.chat, &action)
    }

    async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.model.acquire_permit().await
    }
}

/// Returns what to do after an action that has visibly failed: describe a table of the solution
/// that has not been described, or run the gold SQL.
fn correction(question: &Question, observation: &Observation) -> Option<Action> {
    let has_failed = !observation.error.is_empty()
        || ["(no rows)", "1. NULL"].contains(&observation.result.trim());
    // The last action must be an answer, which the oracle would take from a result.
    if !has_failed || observation.budget_remaining < 2 {
        return None;
    }
    let mut tables = question.tables_involved.iter();
    Some(
        match tables.find(|table| !is_described(observation, table)) {
            Some(table) => tool_call::action("DESCRIBE", table.as_str()),
            None => tool_call::action("QUERY", tidy_gold_sql(question, observation)),
        },
    )
}

/// Returns the segment of a corrected episode in which only the expert's turns are to be learned.
/// Returns none if the expert took no turn.
pub fn corrections(mut episode: Trajectory) -> Option<Segment> {
    let mut segment = episode.segments.pop()?;
    let (expert, model): (Vec<_>, Vec<_>) = episode
        .turns
        .iter()
        .partition(|turn| turn.policy_version == 0);
    for turn in model {
        let start = turn.completion_start as usize;
        segment.mask[start..start + turn.completion_tokens as usize].fill(NOT_LEARNED);
    }
    (!expert.is_empty()).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::tests::{GOLD_SQL, observation, solutions};
    use proto::v1::Turn;
    use tokio::sync::Semaphore;

    /// A model with room for so many episodes.
    struct Limited(Arc<Semaphore>);

    #[async_trait]
    impl Policy for Limited {
        async fn complete(&self, _: TurnView<'_>) -> Result<Completion, ActorError> {
            unreachable!("no turn is played")
        }

        async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
            Arc::clone(&self.0).acquire_owned().await.ok()
        }
    }

    /// Without a permit of the model's engine, conversations would evict each other from its cache.
    #[tokio::test]
    async fn a_corrected_episode_holds_a_permit_of_the_model() {
        let permits = Arc::new(Semaphore::new(2));
        let chat = Chat::from_files(&policy::embedded::files()).unwrap();
        let model = Limited(Arc::clone(&permits));
        let corrected = CorrectedPolicy::new(model, Arc::new(chat), solutions());
        let held = corrected.acquire_permit().await;
        assert!(held.is_some());
        assert_eq!(permits.available_permits(), 1);
    }

    #[test]
    fn visible_failures_are_corrected() {
        let solutions = solutions();
        let question = solutions.get("q1").unwrap();
        let query = Some(tool_call::action("QUERY", GOLD_SQL));
        let describe = Some(tool_call::action("DESCRIBE", "book"));
        for (seen, wanted) in [
            (observation(0, "", ""), None),
            (observation(2, "1. 812", ""), None),
            (
                observation(2, "", "SQL error: no such column: x"),
                query.clone(),
            ),
            (observation(2, "(no rows)", ""), query.clone()),
            (observation(2, "1. NULL", ""), query),
            (observation(7, "1. NULL", ""), None),
        ] {
            assert_eq!(correction(question, &seen), wanted, "{seen:?}");
        }
        let undescribed = Observation {
            error: "SQL error: no such table: books".to_owned(),
            step_count: 1,
            ..observation(0, "", "")
        };
        assert_eq!(correction(question, &undescribed), describe);
    }

    #[test]
    fn only_turns_of_the_expert_are_learned() {
        let turn = |policy_version, completion_start| Turn {
            policy_version,
            completion_start,
            completion_tokens: 2,
            ..Turn::default()
        };
        let episode = |turns| Trajectory {
            segments: vec![Segment {
                tokens: vec![9; 8],
                mask: vec![0, 1, 1, 0, 0, 1, 1, 0],
                logprobs: vec![0.0; 8],
            }],
            turns,
            ..Trajectory::default()
        };
        let corrected = corrections(episode(vec![turn(1, 1), turn(0, 5)])).unwrap();
        assert_eq!(corrected.mask, [0, 2, 2, 0, 0, 1, 1, 0]);
        assert_eq!(corrections(episode(vec![turn(1, 1), turn(1, 5)])), None);
    }
}
