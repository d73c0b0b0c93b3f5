//! The learner: supervised warm start, then GRPO steps on groups that actors submit.
//!
//! Invariant: the weights are a function of the base model, the settings and the journal of groups; timing, threads and
//! the number of actors do not enter. Pure: `advantage`, `batch`, `loss`, `optimizer`, `schedule`, `scheduler`, `group`.

pub mod advantage;
pub mod batch;
mod bounds;
pub mod checkpoint;
pub mod config;
mod disk;
mod driver;
pub mod error;
pub mod group;
mod grpc;
mod intake;
pub mod journal;
pub mod loss;
pub mod metrics;
pub mod network;
pub mod optimizer;
pub mod ranks;
mod run;
pub mod schedule;
pub mod scheduler;
pub mod sft;
pub mod trainer;
pub mod weights;

pub use config::{LearnerConfig, RunArguments};
pub use driver::{Event, Learner};
pub use error::{LearnerError, Result};
pub use grpc::serve;
