//! What the learner checks of its actors, and how much of the work one of them may hold.
//!
//! Invariant: where sampled and trained weights are the same (`max_staleness` 0), none of these
//! settings changes the weights that honest actors give a run. Above 0 a group is also refused if
//! the policy itself moved by more than the bound on one of its tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::{
    bounds::{count, positive, range},
    error::Result,
};

/// The most groups that a setting may let an actor hold.
const MAX_LEASES: u64 = 1 << 20;

/// How far actors are trusted. The defaults suit actors of any origin, and what they check costs a
/// run with honest actors next to nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct TrustConfig {
    /// Groups that one actor may hold at a time, and as many parts of an evaluation. An actor with
    /// a higher `actor.concurrent_groups` says so and runs as many.
    #[default(64)]
    pub max_leases_per_actor: usize,
    /// Share of the groups and parts of evaluations whose episodes the learner plays again at its
    /// env-node before it takes them, 0 to 1. Those with another result are refused.
    #[default(1.0)]
    pub verified_share: f64,
    /// Largest difference, in nats, between a log-probability that an actor recorded and the
    /// learner's own for the same token. Each version that the weights of the actor lagged behind
    /// allows as much again. The same program on the same kind of device gives 0.
    #[default(5.0)]
    pub max_logprob_difference: f64,
    /// Whether a group with a larger difference is refused and handed out again. Otherwise, with
    /// several ranks, and in `sqlenv train`, it is counted and named, and trained on.
    #[default(true)]
    pub refuse_logprob_differences: bool,
}

impl TrustConfig {
    /// Returns the settings for actors that are part of the learner's own process.
    pub fn of_one_process(concurrent_groups: usize) -> Self {
        Self {
            max_leases_per_actor: concurrent_groups.max(1),
            refuse_logprob_differences: false,
            ..Self::default()
        }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let leases = self.max_leases_per_actor as u64;
        count("trust.max_leases_per_actor", leases, MAX_LEASES)?;
        range("trust.verified_share", self.verified_share, 0.0, 1.0)?;
        let difference = self.max_logprob_difference;
        positive("trust.max_logprob_difference", difference)
    }
}
