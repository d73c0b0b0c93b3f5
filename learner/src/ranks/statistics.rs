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
    /// Groups with a log-probability that differs by more than the settings allow.
    #[prost(message, repeated, tag = "5")]
    pub differences: Vec<LogprobDifference>,
}

/// The greatest difference between a recorded log-probability of a group and the learner's.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct LogprobDifference {
    /// The place of the group in the step.
    #[prost(uint64, tag = "1")]
    pub group: u64,
    /// In nats, without a sign.
    #[prost(double, tag = "2")]
    pub difference: f64,
    /// The learner's log-probability of that token.
    #[prost(double, tag = "3")]
    pub own: f64,
}
