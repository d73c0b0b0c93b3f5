//! The state that the requests of all of OpenEnv's protocols share.

use std::sync::Arc;

use super::{config::OpenEnvConfig, open_sockets::Sockets, session_registry::SessionRegistry};
use crate::{node::EnvNode, serve::call_limits::CallLimits};

/// The node, its sessions and sockets, and the limits on both.
pub(super) struct OpenEnvService {
    pub(super) node: EnvNode,
    pub(super) config: OpenEnvConfig,
    pub(super) sessions: Arc<SessionRegistry>,
    pub(super) sockets: Sockets,
    /// The limits that frames of sockets have in common with calls.
    pub(super) limits: CallLimits,
}
