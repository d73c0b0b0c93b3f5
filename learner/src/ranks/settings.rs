//! Settings of a run's ranks.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::{
    bounds::count,
    error::{LearnerError, Result},
};

/// The most ranks of a run.
const MAX_RANKS: u64 = 1 << 12;

/// Settings of a run's ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct RankSettings {
    /// Ranks, the learner included. The number changes the last bits of a gradient, since it
    /// changes the micro-batches and the order in which they are summed. With
    /// `learner.loss.top_entropy_quantile` below 1 it also changes which tokens are trained.
    #[default(1)]
    pub count: usize,
    /// Seconds that rank 0 waits for another rank to join, and then in all for its answers in a
    /// step, before it ends with an error. Weights and gradients may take a second more for each
    /// 16 MiB.
    #[default(300)]
    pub timeout_seconds: u32,
    /// How gradients are summed. NCCL chooses the order of sums itself.
    pub reduce: ReduceBy,
}

/// How gradients are summed over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReduceBy {
    /// Over gRPC on rank 0, through host memory; works everywhere.
    #[default]
    Grpc,
    /// By NCCL from GPU to GPU; all ranks must compute on CUDA devices.
    Nccl,
}

impl RankSettings {
    /// Returns whether there is one rank only, which has nothing to sum.
    pub fn is_alone(&self) -> bool {
        self.count == 1 && self.reduce == ReduceBy::Grpc
    }

    /// Returns how long rank 0 waits.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.into())
    }

    /// Returns the settings that influence the weights; the others have their defaults.
    pub(crate) fn shaping(&self) -> Self {
        Self {
            timeout_seconds: Self::default().timeout_seconds,
            ..self.clone()
        }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        count("ranks.count", self.count as u64, MAX_RANKS)?;
        let seconds = self.timeout_seconds.into();
        count("ranks.timeout_seconds", seconds, u32::MAX.into())?;
        match self.reduce == ReduceBy::Nccl && !cfg!(feature = "nccl") {
            true => Err(LearnerError::setting(
                "ranks.reduce",
                "is nccl, which this program is built without; build it by `make cuda`, or use \
                 grpc",
            )),
            false => Ok(()),
        }
    }
}
