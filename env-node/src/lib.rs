//! The environment: stateless episodes over read-only SQL databases, served as `sqlenv.v1.Env`.
//!
//! An episode is a value, carried by a signed token; [`EnvNode`] joins the pure step ([`episode`], [`reward`],
//! [`verifier`], [`progress`]) to sandboxed SQLite and keeps nothing but caches. What the agent does wrong is an
//! observation; only infrastructure faults are errors. Leaves out the admin port.

mod catalog;
mod config;
mod database;
mod decimal;
pub mod episode;
mod error;
mod files;
mod gold;
mod grpc;
mod metrics;
mod node;
mod openenv;
mod pool;
pub mod progress;
mod rejection;
pub mod reward;
mod rows;
mod sandbox;
mod schema;
mod serve;
mod setbacks;
mod sql_text;
mod status;
mod token;
pub mod verifier;
mod web;

pub use config::{EnvConfig, ResultLimits, SigningKey, SqlLimits};
pub use error::EnvError;
pub use node::EnvNode;
pub use openenv::{Mode, OpenEnvConfig};
pub use rows::{Cell, Rows};
pub use schema::{Schema, Table};
pub use serve::{Server, ServerConfig, TlsConfig};
pub use token::TokenError;
pub use web::WebConfig;
