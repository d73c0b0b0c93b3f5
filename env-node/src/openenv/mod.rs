//! OpenEnv's faces of the node: HTTP, WebSocket and MCP, as its unmodified clients expect them.

mod config;

use axum::Router;

pub use config::OpenEnvConfig;

use crate::node::EnvNode;

/// Every route of OpenEnv's protocol.
pub(crate) fn router(_node: &EnvNode, _config: &OpenEnvConfig) -> Router {
    Router::new()
}
