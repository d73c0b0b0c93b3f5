//! The wire contract `sqlenv.v1` and the transport that carries it.
//!
//! Invariant: every service is reached through [`Transport`], whether it lives in this process or behind TCP; there is
//! no second code path for local runs. The messages are the generated ones; this crate adds no mirror types.

mod dial;
mod failover;
mod tools;
mod transport;

pub use dial::{Credentials, TransportError};
pub use tools::{TOOLS, Tool, ToolTexts};
pub use transport::Transport;

/// Messages, clients and servers of `sqlenv.v1`, generated from `sqlenv/v1/*.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::nursery
)]
pub mod v1 {
    tonic::include_proto!("sqlenv.v1");

    /// Descriptors of the package, for the reflection service.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.binpb"));
}

/// A client of the `Env` service over any transport.
pub type EnvClient = v1::env_client::EnvClient<Transport>;
/// A client of the `Learner` service over any transport.
pub type LearnerClient = v1::learner_client::LearnerClient<Transport>;
/// A client of the `Ranks` service over any transport.
pub type RanksClient = v1::ranks_client::RanksClient<Transport>;
