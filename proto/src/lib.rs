//! The wire contract `sqlenv.v1` and the transport that carries it.
//!
//! Every service is reached through [`Transport`], whether it runs in this process or behind TCP;
//! local runs have no second code path. The messages are the generated ones and have no mirror
//! types. What an actor submits also exists in its encoding ([`EncodedGroup`],
//! [`EncodedEvaluation`]), because the learner stores and forwards it as bytes.
//! [`ReplayRequest`](v1::ReplayRequest) is written by hand, so that it limits what it decodes.

mod bearer_token;
pub mod chunks;
mod client_tls;
mod dial;
mod encoded;
mod endpoints;
mod failover;
mod log_pacing;
mod redial;
mod replay;
pub mod serve;
mod server_tls;
mod shared_message;
mod snapshot;
mod status;
mod tools;
mod trace_context;
mod transport;

use std::time::Duration;

pub use bearer_token::{BearerToken, RequireToken, credentials_of};
pub use dial::{Credentials, FileError, TransportError};
pub use encoded::{Encoded, EncodedEvaluation, EncodedGroup};
pub use endpoints::{Endpoints, latency_quantile};
pub use log_pacing::{RareWarning, WaitReminder};
pub use replay::MAX_REPLAYED_ACTIONS;
pub use server_tls::{ServerTls, TlsConfig};
pub use shared_message::{SharedMessage, SharedMessages, SharedResponses, share};
pub use snapshot::{Snapshot, SnapshotAssembler, SnapshotError};
pub use status::{has_reason, may_pass, reason_name, refuses_caller, status_text};
pub use tools::{TOOLS, Tool, ToolTexts};
pub use trace_context::{TRACES, TraceContext, served_call};
pub use transport::Transport;

/// The largest message in bytes that either side of `Learner` and `Ranks` sends or accepts, and the
/// largest response of `Env`.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The largest group in bytes of its encoding. It leaves room for the message in which rank 0
/// forwards a group to other ranks, so that a group that the learner accepts never fails there.
pub const MAX_GROUP_BYTES: usize = MAX_MESSAGE_BYTES - 64;

/// How long the learner holds a claim while there is no work (long poll). A client's own deadline
/// must be longer.
pub const CLAIM_WAIT: Duration = Duration::from_secs(20);

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

    pub use crate::replay::ReplayRequest;

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

/// Returns a client of `Env` that reads all that an env-node may send, such as a page of long
/// questions. Without the limit that it sets, tonic's default of 4 MiB would apply.
pub fn env_client(transport: Transport) -> EnvClient {
    EnvClient::new(transport).max_decoding_message_size(MAX_MESSAGE_BYTES)
}
