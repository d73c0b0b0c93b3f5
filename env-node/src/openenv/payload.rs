//! What clients see of an episode: OpenEnv's payload of observation, reward and end.
//!
//! Invariant: the observation has exactly the fields of `SQLObservation` in `openapi.json`; reward and end travel beside it,
//! metadata both in it and beside it, since clients of either generation look in one place. Fields are named one by one,
//! so that a gold answer cannot slip out.

use env::{Observation, ResetResult, RewardComponents, StepResult};
use serde::{Serialize, Serializer};

/// An observation with what is known beside it.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    pub(super) observation: Observation,
    pub(super) metadata: Metadata,
}

/// What env-node tells beyond `SQLEnv`'s fields; absent parts are left out.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Metadata {
    /// After a reset: the question that was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) question_id: Option<String>,
    /// After a reset: the episode's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) episode_id: Option<String>,
    /// After a step: the reward by layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    reward_components: Option<RewardComponents>,
    /// After the end: whether the answer was right.
    #[serde(skip_serializing_if = "Option::is_none")]
    correct: Option<bool>,
    /// Over plain HTTP: the episode itself, base64, for the next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) episode_token: Option<String>,
}

/// What a player sees of an observation, but for reward and end.
#[derive(Serialize)]
pub(crate) struct Seen<'a> {
    question: &'a str,
    schema_info: &'a str,
    result: &'a str,
    error: &'a str,
    step_count: u32,
    budget_remaining: u32,
    action_history: &'a [String],
}

impl<'a> From<&'a Observation> for Seen<'a> {
    fn from(observation: &'a Observation) -> Self {
        Self {
            question: &observation.question,
            schema_info: &observation.schema_info,
            result: &observation.result,
            error: &observation.error,
            step_count: observation.step_count,
            budget_remaining: observation.budget_remaining,
            action_history: &observation.action_history,
        }
    }
}

impl Payload {
    /// The first view of an episode.
    pub(super) fn of_reset(result: ResetResult) -> Self {
        Self {
            observation: result.observation,
            metadata: Metadata {
                question_id: Some(result.question_id),
                episode_id: Some(result.episode_id),
                ..Metadata::default()
            },
        }
    }

    /// What a step led to.
    pub(super) fn of_step(result: StepResult) -> Self {
        let observation = result.observation;
        Self {
            metadata: Metadata {
                reward_components: Some(result.reward_components),
                correct: observation.done.then_some(result.correct),
                ..Metadata::default()
            },
            observation,
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
            seen: Seen<'a>,
        }
        let Self {
            observation,
            metadata,
        } = self;
        let outer = Outer {
            observation: Inner {
                metadata,
                seen: Seen::from(observation),
            },
            reward: observation.reward,
            done: observation.done,
            metadata,
        };
        outer.serialize(serializer)
    }
}
