//! What a rank tells of a micro-batch.

use crate::loss::{LossStats, SamplingStats};

/// The sums of one micro-batch behind a step's metrics: merged in the order of their numbers they are the same whichever
/// rank computed which.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Figures {
    /// Its number among all of the step.
    #[prost(uint64, tag = "1")]
    pub micro_batch: u64,
    /// Its part of the loss.
    #[prost(double, tag = "2")]
    pub loss: f64,
    /// Of the loss.
    #[prost(message, required, tag = "3")]
    pub stats: LossStats,
    /// Of the sampler's log-probs.
    #[prost(message, required, tag = "4")]
    pub sampling: SamplingStats,
}
