//! OpenEnv's payload: an observation with its reward and whether the episode is over.
//!
//! Invariant: the observation has exactly the fields of `SQLObservation` in `openapi.json`. Reward
//! and `done` are fields next to it. The metadata is both inside it and next to it, since OpenEnv's
//! clients 0.2 and 0.10 look in different places. None of them has a gold answer.

use env::{Observation, ResetResult, RewardComponents, StepResult};
use serde::{Serialize, Serializer};

/// An observation with its metadata.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    pub(super) observation: Observation,
    pub(super) metadata: Metadata,
}

/// The fields that env-node adds to `SQLEnv`'s. Absent ones are left out.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Metadata {
    /// After a reset: the id of the question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) question_id: Option<String>,
    /// After a reset: the id of the episode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) episode_id: Option<String>,
    /// After a step: the reward by component.
    #[serde(skip_serializing_if = "Option::is_none")]
    reward_components: Option<RewardComponents>,
    /// After the end: whether the answer is correct.
    #[serde(skip_serializing_if = "Option::is_none")]
    correct: Option<bool>,
    /// Over plain HTTP: the episode token, in base64, for the next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) episode_token: Option<String>,
}

impl From<ResetResult> for Payload {
    fn from(result: ResetResult) -> Self {
        Self {
            observation: result.observation,
            metadata: Metadata {
                question_id: Some(result.question_id),
                episode_id: Some(result.episode_id),
                ..Metadata::default()
            },
        }
    }
}

impl From<StepResult> for Payload {
    fn from(result: StepResult) -> Self {
        Self {
            metadata: Metadata {
                reward_components: Some(result.reward_components),
                correct: result.observation.done.then_some(result.correct),
                ..Metadata::default()
            },
            observation: result.observation,
        }
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Outer<'a> {
            observation: Inner<'a>,
            reward: Option<f64>,
            done: bool,
            metadata: &'a Metadata,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            metadata: &'a Metadata,
            #[serde(flatten)]
            observation: &'a Observation,
        }
        let metadata = &self.metadata;
        Outer {
            observation: Inner {
                metadata,
                observation: &self.observation,
            },
            reward: self.observation.reward,
            done: self.observation.done,
            metadata,
        }
        .serialize(serializer)
    }
}
