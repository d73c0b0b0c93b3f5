//! The learner: supervised warm start, then GRPO steps on groups that actors submit.
//!
//! Invariant: the weights are a function of the base model, the settings and the journal of groups.
//! Timing, threads and the number of actors do not change them.

pub mod advantage;
pub mod batch;
mod bounds;
pub mod checkpoint;
mod clock;
pub mod config;
pub mod curriculum;
pub mod demonstrations;
pub mod error;
mod evaluation_queue;
pub mod group;
pub mod journal;
mod leases;
pub mod loss;
pub mod metrics;
pub mod network;
pub mod object_storage;
pub mod optimizer;
mod parallel;
pub mod questions;
pub mod ranks;
mod run;
pub mod schedule;
pub mod scheduler;
mod server;
pub mod sft;
mod shuffle;
pub mod trainer;

pub use config::{LearnerConfig, RunArguments};
pub use curriculum::TrainingQuestion;
pub use error::{LearnerError, Result};
pub use evaluation_queue::EvaluationSet;
pub use group::{RefusalReason, RefusedGroup};
pub use run::{
    evaluator::EvaluationPlan,
    learner::{Learner, ReportedEvent, RunStorage, TrainEvent},
    open::run_name,
};
pub use server::{
    ServerCredentials,
    actors::{ObservedActor, ObservedEnvNode, RecentEpisode},
    config::LearnerServerConfig,
    identity::expected_identity,
    refusals::RefusedActor,
    serve,
    trust::TrustConfig,
};
