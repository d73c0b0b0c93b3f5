//! The actor: runs episodes of a policy against an environment and submits the trajectories to the
//! learner.
//!
//! Invariant: what is sampled is a function of the weights, the question and the coordinates (run
//! seed, group, member, turn, position). It does not depend on the actor that samples, on batching,
//! on slots or on time. An actor is a client of two services and keeps no state that a run needs.

mod batcher;
mod chat_episode;
mod completion;
mod config;
mod context;
mod engine;
mod env_session;
mod episode_settings;
mod error;
mod evaluate;
mod learner_session;
pub mod metrics;
mod model_policy;
mod outage;
pub mod prompt;
mod retry;
mod rollout;
mod rollout_driver;
mod sampler;
mod slots;
pub mod tool_call;
mod tool_schemas;
mod weights;
mod worker;

pub use chat_episode::{ChatModel, evaluate_chat};
pub use completion::{Completion, CompletionRequest, FinishReason};
pub use config::{ActorConfig, EngineSettings};
pub use engine::Engine;
pub use episode_settings::{EpisodeSettings, EpisodeSpec, ExpectedEnvironment};
pub use error::ActorError;
pub use evaluate::{
    CorrectCount, EnvStepRecord, EpisodeRecord, EvaluationMetrics, SuccessRate, evaluate,
    evaluation_of, list_questions,
};
pub use model_policy::{ModelPolicy, Policy, TurnView};
pub use retry::{LONGEST_PAUSE, Retry};
pub use rollout::{Rollout, RolloutLimits, RolloutRequest};
pub use rollout_driver::{RolloutOutcome, run_episode, run_episodes};
pub use tool_schemas::tool_schemas;
pub use worker::{env_info, run};
