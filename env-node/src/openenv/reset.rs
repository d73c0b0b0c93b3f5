//! The keywords of a reset: which question, on which terms.
//!
//! Invariant: a question is named by id, or by its place in a split, or drawn by seed; without a seed the draw differs
//! every time. Keywords that are not named here are ignored, as OpenEnv's environments do.

use env::{EnvError, EpisodeSpec, MAX_EPISODE_ID_CHARS};
use uuid::Uuid;

use super::fields::Fields;
use crate::node::EnvNode;

/// What a reset may say; everything has a default.
#[derive(Debug, Default)]
pub(super) struct Keywords {
    seed: Option<u64>,
    episode_id: String,
    question_id: String,
    split: String,
    index: Option<u64>,
    database_name: String,
    reward_profile: String,
    step_budget: u32,
}

impl Keywords {
    /// Reads the keywords; the faults stay with `fields`.
    pub(super) fn read(fields: &mut Fields<'_>) -> Self {
        let seed = fields.unsigned("seed");
        let episode_id = fields.short_string("episode_id", MAX_EPISODE_ID_CHARS);
        let episode_id = episode_id.unwrap_or_default().to_owned();
        let mut string = |name| fields.optional_string(name).unwrap_or_default().to_owned();
        Self {
            seed,
            episode_id,
            question_id: string("question_id"),
            split: string("split"),
            database_name: string("database_name"),
            reward_profile: string("reward_profile"),
            index: fields.unsigned("index"),
            step_budget: fields
                .unsigned("step_budget")
                .map_or(0, |budget| u32::try_from(budget).unwrap_or(u32::MAX)),
        }
    }

    /// The request that they amount to.
    ///
    /// # Errors
    /// There is no such split, database or place in a split.
    pub(super) fn request(self, node: &EnvNode) -> Result<EpisodeSpec, EnvError> {
        let seed = self.seed.unwrap_or_else(random);
        let question_id = self.chosen(node, seed)?;
        Ok(EpisodeSpec {
            question_id,
            split: self.split,
            seed,
            episode_id: match self.episode_id {
                id if id.is_empty() => Uuid::new_v4().to_string(),
                id => id,
            },
            reward_profile: self.reward_profile,
            step_budget: self.step_budget,
        })
    }

    /// The id of the question; empty where the node is to draw it.
    fn chosen(&self, node: &EnvNode, seed: u64) -> Result<String, EnvError> {
        if !self.question_id.is_empty() || (self.index.is_none() && self.database_name.is_empty()) {
            return Ok(self.question_id.clone());
        }
        let page = |index: u64| {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            let range = index..index.saturating_add(1);
            node.environment()
                .list_questions(&self.split, &self.database_name, range)
        };
        let there_are = page(0)?.total as u64;
        let index = match self.index {
            Some(index) => index,
            None => env::scrambled(seed) % there_are.max(1),
        };
        match page(index)?.questions.pop() {
            Some(question) => Ok(question.question_id.clone()),
            None => Err(EnvError::NotFound {
                kind: "index",
                name: index.to_string(),
                remedy: format!(
                    "what is selected (split {:?}, database_name {:?}) has {there_are} questions, counted from 0",
                    self.split, self.database_name
                ),
            }),
        }
    }
}

fn random() -> u64 {
    Uuid::new_v4().as_u64_pair().0
}
