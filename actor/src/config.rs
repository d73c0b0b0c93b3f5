//! The actor's own settings: how much it does at once and how patient it is. What to sample comes from the learner.

use serde::{Deserialize, Serialize};

use crate::{error::ActorError, retry::Retry};

/// Settings of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActorConfig {
    /// Groups played at the same time.
    pub concurrent_groups: usize,
    /// The sampling engine.
    pub engine: EngineSettings,
    /// Patience with env-nodes. Once worn, the episode counts as broken off.
    pub env_retry: Retry,
    /// Patience with the learner. Once worn, the actor stops.
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
    /// [`ActorError::Setting`] names the first field that is out of range.
    pub fn validate(&self) -> Result<(), ActorError> {
        for (field, value) in [
            ("actor.concurrent_groups", self.concurrent_groups),
            ("actor.engine.slots", self.engine.slots),
            ("actor.engine.pass_tokens", self.engine.pass_tokens),
        ] {
            if value == 0 {
                let reason = "0 is out of range, need 1 or more".to_owned();
                return Err(ActorError::Setting { field, reason });
            }
        }
        Ok(())
    }
}

/// Settings of the sampling engine. None changes what is sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSettings {
    /// Conversations held in the KV cache, and rows of a batch.
    pub slots: usize,
    /// Tokens fed in one forward pass.
    pub pass_tokens: usize,
    /// Bytes that the KV cache may take; fewer slots are made where they would not fit. 0: on a GPU a quarter of what is free
    /// there when the engine starts, on the CPU 2 GiB.
    pub kv_cache_bytes: u64,
    /// Feed a beginning that several conversations share, as the members of a group do, once. Off to measure what it saves.
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
            "setting actor.engine.slots: 0 is out of range, need 1 or more"
        );
    }
}
