//! Settings of an actor: how much it does at once and how long it retries. What to sample is set by
//! the learner.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{error::ActorError, retry::Retry};

/// Settings of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ActorConfig {
    /// Groups whose episodes run at the same time.
    pub concurrent_groups: usize,
    /// The sampling engine.
    pub engine: EngineSettings,
    /// Retries of calls to env-nodes. When they are used up, the episode fails.
    pub env_retry: Retry,
    /// Retries of calls to the learner. When they are used up, the actor stops.
    pub learner_retry: Retry,
}

impl Default for ActorConfig {
    fn default() -> Self {
        Self {
            concurrent_groups: 8,
            engine: EngineSettings::default(),
            env_retry: Retry::default(),
            learner_retry: Retry {
                attempts: 150,
                ..Retry::default()
            },
        }
    }
}

impl ActorConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// Returns [`ActorError::Setting`] for the first field that is out of range.
    pub fn validate(&self) -> Result<(), ActorError> {
        for (field, value) in [
            ("actor.concurrent_groups", self.concurrent_groups),
            ("actor.engine.slots", self.engine.slots),
            ("actor.engine.pass_tokens", self.engine.pass_tokens),
        ] {
            if value == 0 {
                let reason = "0 is out of range; set 1 or more".to_owned();
                return Err(ActorError::Setting { field, reason });
            }
        }
        Ok(())
    }
}

/// Settings of the sampling engine. None of them changes what is sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSettings {
    /// Conversations in the KV cache, which is also the largest number of rows in a batch.
    pub slots: usize,
    /// Tokens that one forward pass computes at most.
    pub pass_tokens: usize,
    /// Bytes that the KV cache may take. The engine has fewer slots if they do not fit. 0 selects a
    /// quarter of the free memory of a GPU, or 2 GiB on the CPU.
    pub kv_cache_bytes: u64,
    /// Prefills a prefix that several conversations share, such as the prompt of a group, only once.
    /// Turn it off to measure what it saves.
    pub prefix_sharing: bool,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            slots: 64,
            pass_tokens: 512,
            kv_cache_bytes: 0,
            prefix_sharing: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_zero_is_not() {
        let mut config = ActorConfig::default();
        config.validate().unwrap();
        config.engine.slots = 0;
        let error = config.validate().unwrap_err().to_string();
        assert_eq!(
            error,
            "setting actor.engine.slots: 0 is out of range; set 1 or more"
        );
    }
}
