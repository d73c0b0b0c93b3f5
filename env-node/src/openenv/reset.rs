//! The arguments of a reset: which question, with which settings.
//!
//! Invariant: a question is named by its id or by its index in a split, or it is drawn by the seed.
//! Without a seed each reset draws anew. Unknown arguments are ignored, as in OpenEnv's
//! environments.

use env::{EnvError, EpisodeSpec};
use serde::Deserialize;
use uuid::Uuid;

use super::validation::{Id, Unsigned};
use crate::node::EnvNode;

/// The arguments of a reset. Each may be absent or `null`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ResetArguments {
    seed: Option<Unsigned>,
    episode_id: Option<Id>,
    question_id: Option<String>,
    split: Option<String>,
    index: Option<Unsigned>,
    database_name: Option<String>,
    reward_profile: Option<String>,
    step_budget: Option<Unsigned>,
}

impl ResetArguments {
    /// Returns the episode spec that the arguments stand for.
    ///
    /// # Errors
    /// The split, the database or the index in the split does not exist.
    pub(super) fn into_spec(self, node: &EnvNode) -> Result<EpisodeSpec, EnvError> {
        let seed = self
            .seed
            .map_or_else(|| Uuid::new_v4().as_u64_pair().0, |seed| seed.0);
        let split = self.split.unwrap_or_default();
        let database_name = self.database_name.unwrap_or_default();
        let question_id = match self.question_id.unwrap_or_default() {
            id if !id.is_empty() => id,
            _ if self.index.is_none() && database_name.is_empty() => String::new(),
            _ => select(node, &split, &database_name, self.index, seed)?,
        };
        Ok(EpisodeSpec {
            question_id,
            split,
            seed,
            episode_id: match self.episode_id.unwrap_or_default().0 {
                id if id.is_empty() => Uuid::new_v4().to_string(),
                id => id,
            },
            reward_profile: self.reward_profile.unwrap_or_default(),
            step_budget: self
                .step_budget
                .map_or(0, |budget| u32::try_from(budget.0).unwrap_or(u32::MAX)),
        })
    }
}

/// Returns the id of one question of a split and a database: the one at `index`, or one that `seed`
/// draws. An empty name selects all.
fn select(
    node: &EnvNode,
    split: &str,
    database_name: &str,
    index: Option<Unsigned>,
    seed: u64,
) -> Result<String, EnvError> {
    let page = |index: u64| {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let range = index..index.saturating_add(1);
        node.environment()
            .list_questions(split, database_name, range)
    };
    let count = page(0)?.total as u64;
    let index = index.map_or_else(|| env::scrambled(seed) % count.max(1), |index| index.0);
    match page(index)?.questions.pop() {
        Some(question) => Ok(question.question_id.clone()),
        None => Err(EnvError::NotFound {
            kind: "index",
            name: index.to_string(),
            remedy: format!(
                "split {split:?} and database_name {database_name:?} select {count} questions, \
                 counted from 0"
            ),
        }),
    }
}
