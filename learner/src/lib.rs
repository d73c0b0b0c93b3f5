//! The learner: supervised warm start, then GRPO steps on groups that actors submit.
//!
//! Invariant: the weights are a function of the base model, the settings and the journal of groups.
//! Timing, threads and the number of actors do not change them. Pure: `advantage`, `batch`, `loss`,
//! `optimizer`, `schedule`, `scheduler`, `curriculum`, `group`, `actors`, `refusals`,
//! `identity`.

mod actors;
pub mod advantage;
pub mod batch;
mod bounds;
mod call_limits;
pub mod checkpoint;
mod clock;
pub mod config;
pub mod curriculum;
mod driver;
pub mod error;
mod evaluation;
mod evaluator;
pub mod group;
mod grpc;
mod identity;
mod intake;
pub mod journal;
mod leases;
pub mod loss;
pub mod metrics;
pub mod network;
pub mod object_storage;
mod open;
pub mod optimizer;
mod parallel;
pub mod ranks;
mod refusals;
mod run;
mod run_context;
pub mod schedule;
pub mod scheduler;
mod serve;
mod server_config;
pub mod sft;
mod shuffle;
mod submission;
mod traces;
pub mod trainer;
pub mod trust;
mod verifier;
mod weights_stream;

pub use actors::{ObservedActor, ObservedEnvNode, RecentEpisode};
pub use config::{LearnerConfig, RunArguments};
pub use curriculum::TrainingQuestion;
pub use driver::{Learner, RunStorage, TrainEvent};
pub use error::{LearnerError, Result};
pub use evaluation::EvaluationSet;
pub use evaluator::EvaluationPlan;
pub use identity::expected_identity;
pub use refusals::{RefusalReason, RefusedActor, RefusedGroup};
pub use serve::{ServerCredentials, serve};
pub use server_config::LearnerServerConfig;
pub use trust::TrustConfig;
