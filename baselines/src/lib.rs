//! Scripted policies: the baselines of every comparison, and the demonstrators of the warm start.
//!
//! [`RandomPolicy`] is the lower bound of an evaluation and [`OraclePolicy`] the upper one.
//! [`Demonstrator`] mixes careful, hasty and mistaken episodes. All of them run through the actor's
//! rollout, so their trajectories have the tokens that a model would see and sample.
//! [`CorrectedPolicy`] is a model whose failures the oracle corrects. [`ChatApi`] is a model that
//! somebody serves.
//!
//! Invariant: each action is a pure function of the question, the newest observation and the
//! coordinates. A scripted policy keeps no state between turns.

mod chat_api;
mod conversations;
mod corrected;
mod demonstrations;
mod demonstrator;
mod draws;
mod hasty;
mod observation;
mod oracle;
mod random;
mod scripted_policy;
mod solutions;
mod sql_mistakes;
mod tidy_sql;
mod unnamed_column;

pub use actor::prompt::EXAMPLE_CALL;
pub use chat_api::ChatApi;
pub use conversations::demonstration_of;
pub use corrected::{CorrectedPolicy, corrections};
pub use demonstrations::{Demonstrations, demonstrate, demonstrate_correctly};
pub use demonstrator::{Demonstrator, DemonstratorMix};
pub use oracle::OraclePolicy;
pub use random::RandomPolicy;
pub use scripted_policy::{ActionPolicy, ScriptedPolicy};
pub use solutions::Solutions;
