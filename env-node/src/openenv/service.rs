//! What the requests of all of OpenEnv's protocols share.

use std::sync::Arc;

use super::{config::OpenEnvConfig, open_sockets::Sockets, session_registry::SessionRegistry};
use crate::{node::EnvNode, serve::call_limits::CallLimits};

/// The environment's name on the wire; `SQLEnv`'s own.
pub(super) const ENVIRONMENT_NAME: &str = "sql_env";
/// Version of the HTTP interface. `1` tells OpenEnv's validators which rules apply.
pub(super) const VERSION: &str = "1.0.0";

/// The state that all requests share.
pub(super) struct OpenEnvService {
    pub(super) node: EnvNode,
    pub(super) config: OpenEnvConfig,
    pub(super) sessions: Arc<SessionRegistry>,
    pub(super) sockets: Sockets,
    /// The limits that frames of sockets have in common with calls.
    pub(super) limits: CallLimits,
}

/// The answer to a frame.
#[derive(Debug)]
pub(super) enum FrameReply {
    Text(String),
    /// A text, after which the socket closes.
    Last(String),
    Close,
}
