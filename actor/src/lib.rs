//! The actor: plays episodes with the policy against an environment and hands the trajectories to the learner.
//!
//! Invariant: what is sampled is a function of weights, question and coordinates (run seed, group, member, turn, position).
//! It does not depend on which actor plays, on batching, on slots or on time. An actor is a pure client of two services and
//! keeps nothing that matters.

pub mod batcher;
mod config;
pub mod context;
mod demonstrate;
mod dice;
mod engine;
mod error;
mod evaluate;
mod habits;
pub mod metrics;
mod play;
mod policies;
pub mod prompt;
mod retry;
pub mod rollout;
mod sampler;
mod scripts;
mod seen;
mod session;
mod slots;
mod sql_slips;
pub mod tool_call;
mod tool_schemas;
pub mod weights;
mod worker;

pub use config::{ActorConfig, EngineSettings};
pub use demonstrate::{Demonstrations, demonstrate};
pub use engine::{CompletionRequest, Engine, Place};
pub use error::ActorError;
pub use evaluate::{EpisodeRecord, Evaluation, Score, StepRecord, evaluate, questions};
pub use habits::{Demonstrator, Habits};
pub use play::{Played, Seat, Table};
pub use policies::{ModelPolicy, Policy, Script, ScriptedPolicy, TurnView};
pub use retry::Retry;
pub use rollout::{Completion, RolloutLimits, Stop};
pub use scripts::{HastyPolicy, OraclePolicy, RandomPolicy, Solution, Solutions};
pub use tool_schemas::tool_schemas;
pub use worker::run;
