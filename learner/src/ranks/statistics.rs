//! The statistics of a micro-batch, as a rank sends them to rank 0.

use crate::loss::{LossStats, SamplingStats};

/// The sums of one micro-batch that a step's metrics are made of. Rank 0 merges them in the order
/// of the micro-batches, so that the metrics do not depend on which rank computed which.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MicroBatchStatistics {
    /// The micro-batch's number in the step.
    #[prost(uint64, tag = "1")]
    pub micro_batch: u64,
    /// Its share of the loss.
    #[prost(double, tag = "2")]
    pub loss: f64,
    /// Sums of the loss.
    #[prost(message, required, tag = "3")]
    pub stats: LossStats,
    /// Sums of the differences from the sampler's log-probabilities.
    #[prost(message, required, tag = "4")]
    pub sampling: SamplingStats,
}
