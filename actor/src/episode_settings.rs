//! What an episode is started with: the settings that episodes share, and the spec of one episode.

use std::sync::Arc;

use policy::{Chat, Coordinates};
use proto::{EnvClient, v1::ActorIdentity};

use crate::{retry::Retry, rollout::RolloutLimits};

/// Settings that all episodes of a run or an evaluation share.
#[derive(Clone)]
pub struct EpisodeSettings {
    /// The environment.
    pub env: EnvClient,
    /// Converts messages to tokens.
    pub chat: Arc<Chat>,
    /// Limits of each rollout.
    pub limits: RolloutLimits,
    /// Reward profile. Empty selects the default of env-node.
    pub reward_profile: String,
    /// Actions per episode. 0 selects the default of env-node.
    pub step_budget: u32,
    /// What env-node must serve.
    pub expected: ExpectedEnvironment,
    /// How often and for how long calls of the environment are retried.
    pub retry: Retry,
}

/// The data and the rules that env-node must serve, as `Env.Info` names them. An empty field allows
/// any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedEnvironment {
    /// The hash of the data.
    pub data_sha256: String,
    /// The version of the rules.
    pub environment_version: String,
}

impl From<&ActorIdentity> for ExpectedEnvironment {
    fn from(identity: &ActorIdentity) -> Self {
        Self {
            data_sha256: identity.data_sha256.clone(),
            environment_version: identity.environment_version.clone(),
        }
    }
}

/// Names one episode: its question and the coordinates of its random numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct EpisodeSpec {
    /// The question's id.
    pub question_id: String,
    /// Run seed, group and member.
    pub coordinates: Coordinates,
}
