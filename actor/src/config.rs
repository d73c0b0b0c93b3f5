//! Settings of an actor: how much it does at once and how long it retries. What to sample is set by
//! the learner.

use std::time::Duration;

use candle_core::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::{
    error::ActorError,
    retry::{FIRST_PAUSE, Retry},
};

/// A day in seconds.
const DAY: usize = 86_400;

/// Settings of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct ActorConfig {
    /// Groups whose episodes run at the same time.
    #[default(8)]
    pub concurrent_groups: usize,
    /// The sampling engine.
    pub engine: EngineSettings,
    /// Retries of calls to env-nodes. After them an episode fails, or is repeated in a run.
    pub env_retry: Retry,
    /// Retries of calls to the learner. When they are used up, the actor stops.
    #[default(Retry { attempts: 150, ..Retry::default() })]
    pub learner_retry: Retry,
    /// The pause before episodes whose calls failed are played again. It doubles each time, up to
    /// [`LONGEST_PAUSE`](crate::LONGEST_PAUSE). Not a setting; tests wait less.
    #[default(FIRST_PAUSE)]
    #[serde(skip)]
    pub first_pause: Duration,
}

impl ActorConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// Returns [`ActorError::Setting`] for the first field that is out of range.
    pub fn validate(&self) -> Result<(), ActorError> {
        let seconds = |retry: Retry| retry.call_timeout_seconds as usize;
        // The upper limits are above what a machine can use, and below what it cannot allocate.
        let pass_tokens = self.engine.pass_tokens;
        for (field, value, least, most) in [
            (
                "actor.concurrent_groups",
                self.concurrent_groups,
                1,
                1 << 12,
            ),
            ("actor.engine.slots", self.engine.slots, 1, 1 << 16),
            ("actor.engine.pass_tokens", pass_tokens, 0, 1 << 20),
            (
                "actor.env_retry.call_timeout_seconds",
                seconds(self.env_retry),
                1,
                DAY,
            ),
            (
                "actor.learner_retry.call_timeout_seconds",
                seconds(self.learner_retry),
                1,
                DAY,
            ),
        ] {
            if !(least..=most).contains(&value) {
                let reason = format!("{value} is out of range; set {least} to {most}");
                return Err(ActorError::Setting { field, reason });
            }
        }
        Ok(())
    }
}

/// Settings of the sampling engine. None of them changes what is sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSettings {
    /// Conversations in the KV cache, which is also the largest number of rows in a batch.
    #[default(64)]
    pub slots: usize,
    /// Tokens that one forward pass computes at most. 0 selects 4,096 on a GPU, because fewer do
    /// not keep it busy, and 512 on the CPU.
    pub pass_tokens: usize,
    /// Bytes that the KV cache may take. The engine has fewer slots if they do not fit. 0 selects a
    /// quarter of the free memory of a GPU, or 2 GiB on the CPU.
    pub kv_cache_bytes: u64,
    /// Prefills a prefix that several conversations share, such as the prompt of a group, only
    /// once. Turn it off to measure what it saves.
    #[default(true)]
    pub prefix_sharing: bool,
}

impl EngineSettings {
    /// Returns the tokens that one forward pass computes at most.
    pub(crate) fn pass_tokens_on(&self, device: &Device) -> usize {
        match self.pass_tokens {
            0 if device.is_cpu() => 512,
            0 => 4_096,
            chosen => chosen,
        }
    }

    /// Returns the number of slots: as many as are set and as fit into the KV cache, at least one.
    /// `free_bytes` is the free memory of a device that is not the CPU.
    pub(crate) fn affordable_slots(&self, slot_bytes: usize, free_bytes: Option<u64>) -> usize {
        const CPU_DEFAULT_BYTES: u64 = 2 << 30;
        let cache_bytes = match self.kv_cache_bytes {
            0 => free_bytes.map_or(CPU_DEFAULT_BYTES, |free| free / 4),
            bytes => bytes,
        };
        let affordable = cache_bytes / slot_bytes.max(1) as u64;
        let affordable = usize::try_from(affordable).unwrap_or(usize::MAX);
        if affordable < self.slots {
            tracing::warn!(
                slots = self.slots,
                affordable,
                "the KV cache has fewer slots than configured; raise actor.engine.kv_cache_bytes"
            );
        }
        self.slots.min(affordable).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fit_into_the_bytes_of_the_cache() {
        let slots = |kv_cache_bytes, slots, free_bytes| {
            let settings = EngineSettings {
                kv_cache_bytes,
                slots,
                ..EngineSettings::default()
            };
            settings.affordable_slots(1 << 30, free_bytes)
        };
        // By default the CPU has 2 GiB, and a GPU a quarter of its free memory.
        assert_eq!(slots(0, 64, None), 2);
        assert_eq!(slots(0, 64, Some(80 << 30)), 20);
        assert_eq!(slots(0, 8, Some(80 << 30)), 8);
        assert_eq!(slots(5 << 30, 64, Some(80 << 30)), 5);
        assert_eq!(slots(1, 64, None), 1);
    }

    #[test]
    fn a_pass_on_the_cpu_has_512_tokens_unless_told_otherwise() {
        let mut settings = EngineSettings::default();
        assert_eq!(settings.pass_tokens_on(&Device::Cpu), 512);
        settings.pass_tokens = 7;
        assert_eq!(settings.pass_tokens_on(&Device::Cpu), 7);
    }

    #[test]
    fn the_defaults_are_valid_and_zero_is_not() {
        let mut config = ActorConfig::default();
        config.validate().unwrap();
        config.engine.slots = 0;
        let error = config.validate().unwrap_err().to_string();
        assert_eq!(
            error,
            "setting actor.engine.slots: 0 is out of range; set 1 to 65536"
        );
        config = ActorConfig {
            concurrent_groups: usize::MAX,
            ..ActorConfig::default()
        };
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains("concurrent_groups"), "{error}");
        let mut config = ActorConfig::default();
        config.env_retry.call_timeout_seconds = 0;
        let error = config.validate().unwrap_err().to_string();
        assert!(
            error.starts_with("setting actor.env_retry.call_timeout_seconds: 0"),
            "{error}"
        );
    }
}
