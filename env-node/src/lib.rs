//! Serves the environment: `sqlenv.v1.Env` over gRPC, OpenEnv's protocols and a page for people, on
//! one port.
//!
//! The environment itself is the crate `env`. This one holds no episodes: a token comes in with
//! each call and goes out with its reply. The admin port is not part of this crate.

mod clock;
mod error;
mod grpc;
pub mod metrics;
mod monitored_socket;
mod node;
mod open_files;
mod openenv;
mod rejection;
mod serve;
mod settings;
mod status;
mod web;
mod wire;

pub use error::SettingError;
pub use node::EnvNode;
pub use open_files::{fit_databases, fit_open_files};
pub use openenv::{Mode, OpenEnvConfig};
pub use serve::{Server, ServerConfig};
pub use settings::EnvNodeSettings;
pub use web::WebConfig;
pub use wire::question;
