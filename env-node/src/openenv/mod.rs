//! OpenEnv's faces of the node: HTTP, WebSocket and MCP, as its unmodified clients expect them.
//!
//! Invariant: an episode is played by [`EnvNode`] whatever the face; a face keeps a token at most. What is on the wire
//! follows openenv 0.10.0, which clients of openenv-core 0.2.3 read too.

mod action;
pub(crate) mod config;
mod documents;
mod excerpt;
mod fault;
mod fields;
mod http;
mod mcp;
mod payload;
mod python_json;
mod python_repr;
mod reset;
mod session;
mod sessions;
mod socket;
mod tasks;
mod tools;
mod ws;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{
        DefaultBodyLimit, Query, State,
        ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::Value;

pub use config::{Mode, OpenEnvConfig};
pub(crate) use documents::metadata;
pub(crate) use http::{Refusal, reset_in};
pub(crate) use payload::Seen;
pub(crate) use session::{Session, SessionError};
use sessions::{Lease, Sessions};
use socket::Dialect;
pub(crate) use socket::Sockets;

use crate::node::EnvNode;

/// The environment's name on the wire; `SQLEnv`'s own.
const ENVIRONMENT_NAME: &str = "sql_env";
/// Version of the HTTP interface; `1` tells validators which rules apply.
const VERSION: &str = "1.0.0";
/// Bytes that a socket reads at once. Each open socket holds that much, so it is small.
const READ_BUFFER_BYTES: usize = 8 << 10;

/// What every request needs.
struct Face {
    node: EnvNode,
    config: OpenEnvConfig,
    sessions: Arc<Sessions>,
    sockets: Sockets,
}

type SharedFace = Arc<Face>;

/// Every route of OpenEnv's protocol, with OpenEnv's replies to unknown paths and methods.
pub(crate) fn router(node: &EnvNode, config: &OpenEnvConfig, sockets: Sockets) -> Router {
    let idle = Duration::from_secs_f64(config.session_idle_seconds);
    let face = Face {
        node: node.clone(),
        config: config.clone(),
        sessions: Arc::new(Sessions::new(config.max_sessions, idle)),
        sockets,
    };
    let mut routes = Router::new()
        .route("/health", get(http::health))
        .route("/ws", get(open_env_socket))
        .route("/mcp", get(mcp_socket).post(mcp::over_http))
        .merge(documents::routes(config.mode))
        .merge(tasks::routes());
    if config.mode == Mode::Simulation {
        routes = routes
            .route("/reset", post(http::reset))
            .route("/step", post(http::step))
            .route("/state", get(http::state));
    }
    routes
        .method_not_allowed_fallback(http::method_not_allowed)
        .fallback(http::not_found)
        .layer(DefaultBodyLimit::max(config.message_bytes))
        .with_state(Arc::new(face))
}

/// What a socket may say in its address.
#[derive(Deserialize)]
struct SocketQuery {
    /// The session to attach to, made by `openenv/session/create`.
    #[serde(default)]
    session_id: String,
}

async fn open_env_socket(
    State(face): State<SharedFace>,
    Query(query): Query<SocketQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let Ok(upgrade) = upgrade else {
        return http::not_found().await.into_response();
    };
    serve_socket(face, upgrade, Dialect::OpenEnv, move |face| {
        if query.session_id.is_empty() {
            return face.lease().map_err(|full| {
                ws::error("CAPACITY_REACHED", &full.to_string(), Some(full.data()))
            });
        }
        let lease = face.sessions.attach(&query.session_id);
        lease.map_err(|error| ws::error("SESSION_ERROR", &error.to_string(), None::<Value>))
    })
}

async fn mcp_socket(
    State(face): State<SharedFace>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let Ok(upgrade) = upgrade else {
        return http::method_not_allowed().await.into_response();
    };
    serve_socket(face, upgrade, Dialect::Mcp, |face| {
        face.lease()
            .map_err(|full| mcp::refusal(&full.to_string(), full.data()))
    })
}

/// Takes the socket; its session is admitted once it is open, so that a refusal can be told.
fn serve_socket(
    face: SharedFace,
    upgrade: WebSocketUpgrade,
    dialect: Dialect,
    admit: impl FnOnce(&Face) -> Result<Lease, String> + Send + 'static,
) -> Response {
    let bytes = face.config.message_bytes;
    let open = face.sockets.open();
    upgrade
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(bytes)
        .max_frame_size(bytes)
        .on_upgrade(async move |socket| {
            let admission = admit(&face);
            socket::serve(socket, &face, dialect, admission).await;
            drop(open);
        })
}

impl Face {
    fn lease(&self) -> Result<Lease, sessions::AtCapacity> {
        self.sessions.lease(&self.node)
    }
}
