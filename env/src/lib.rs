//! The environment as a library: stateless episodes over read-only SQL databases.
//!
//! An episode is a value that a signed token carries. [`Environment`] joins the pure step
//! (`episode.rs`, `reward.rs`, `verifier.rs`, `progress.rs`) to sandboxed SQLite and keeps nothing
//! but caches. What the agent does wrong is an observation. Only faults of the caller or of the
//! machine are errors. This crate has no sockets and no settings of a server; `env-node` serves it.

mod catalog;
mod database;
mod decimal;
mod environment;
mod episode;
mod error;
mod gold;
#[cfg(test)]
mod golden_tests;
pub mod metrics;
mod open_database;
mod pool;
mod progress;
mod reward;
mod row_reader;
mod rows;
mod sandbox;
mod schema;
mod settings;
mod token;
mod truncate;
mod verifier;
mod wall_clock_hits;

pub use catalog::{QuestionPage, scrambled};
pub use environment::{Environment, ResetResult, StepResult, data_sha256};
pub use episode::{Action, EpisodeSpec, MAX_EPISODE_ID_CHARS, Observation};
pub use error::EnvError;
pub use reward::{RewardComponents, RewardProfile};
pub use rows::ResultLimits;
pub use schema::{Schema, Table};
pub use settings::{EnvSettings, SigningKey, SqlLimits};
pub use token::TokenError;
pub use truncate::truncated;
