//! OpenEnv's protocols over the node: HTTP, WebSocket and MCP, as its unmodified clients expect
//! them.
//!
//! Invariant: an episode runs in [`EnvNode`], whatever the protocol; a session keeps a token at
//! most. The wire follows openenv 0.10.0. Clients of openenv-core 0.2.3 read it too.

mod action;
pub(crate) mod config;
mod documents;
mod fields;
mod http;
mod json;
mod mcp;
mod open_sockets;
mod payload;
mod reset;
mod service;
mod session;
mod session_registry;
mod socket;
mod tasks;
mod tools;
mod validation;
mod ws;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{
        DefaultBodyLimit, Query, State,
        rejection::QueryRejection,
        ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    response::{IntoResponse, Response},
    routing::{get, post},
};
use proto::serve::ReceivedBytes;
use serde::Deserialize;

pub use config::{Mode, OpenEnvConfig};
pub(crate) use documents::metadata;
pub(crate) use fields::Shallow;
pub(crate) use http::read_reset;
pub(crate) use open_sockets::Sockets;
use service::OpenEnvService;
pub(crate) use session::{EpisodeSession, SessionError};
use session_registry::{SessionGuard, SessionRegistry};
use socket::SocketProtocol;

use crate::{node::EnvNode, rejection::Rejection, serve::call_limits::CallLimits};

/// Bytes that a socket reads at once. Each open socket holds that much, so it is small.
const READ_BUFFER_BYTES: usize = 8 << 10;

/// Returns every route of OpenEnv's protocols, with OpenEnv's replies to unknown paths and methods.
pub(crate) fn router(node: &EnvNode, sockets: Sockets, limits: CallLimits) -> Router {
    let settings = node.settings();
    let config = &settings.openenv;
    let idle = Duration::from_secs_f64(config.session_idle_seconds);
    let service = OpenEnvService {
        node: node.clone(),
        config: config.clone(),
        sessions: Arc::new(SessionRegistry::new(config.max_sessions, idle)),
        sockets,
        limits,
    };
    let mut routes = Router::new()
        .route("/health", get(http::health))
        .route("/ws", get(open_env_socket))
        .route("/mcp", get(mcp_socket).post(mcp::over_http))
        .merge(documents::routes(config.mode, &settings.web))
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
        .with_state(Arc::new(service))
}

/// The query string of a socket's address.
#[derive(Deserialize)]
struct SocketQuery {
    /// The session to attach to, which `openenv/session/create` made.
    #[serde(default)]
    session_id: String,
}

type MaybeUpgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

async fn open_env_socket(
    State(service): State<Arc<OpenEnvService>>,
    query: Result<Query<SocketQuery>, QueryRejection>,
    Extension(received): Extension<ReceivedBytes>,
    upgrade: MaybeUpgrade,
) -> Result<Response, Rejection> {
    let Query(query) = query?;
    let Ok(upgrade) = upgrade else {
        return Err(http::not_found().await);
    };
    let response = serve_socket(
        service,
        upgrade,
        received,
        SocketProtocol::OpenEnv,
        move |service| match query.session_id.as_str() {
            "" => service.sessions.open(&service.node).map_err(|full| {
                ws::error("CAPACITY_REACHED", &full.to_string(), Some(full.data()))
            }),
            id => service
                .sessions
                .attach(id)
                .map_err(|error| ws::error("SESSION_ERROR", &error, None)),
        },
    );
    Ok(response)
}

async fn mcp_socket(
    State(service): State<Arc<OpenEnvService>>,
    Extension(received): Extension<ReceivedBytes>,
    upgrade: MaybeUpgrade,
) -> Response {
    let Ok(upgrade) = upgrade else {
        return http::method_not_allowed().await.into_response();
    };
    serve_socket(service, upgrade, received, SocketProtocol::Mcp, |service| {
        let session = service.sessions.open(&service.node);
        session.map_err(mcp::at_capacity)
    })
}

/// Accepts a socket. Its session is admitted once it is open: OpenEnv's clients read a refusal from
/// a frame, not from an HTTP status.
fn serve_socket(
    service: Arc<OpenEnvService>,
    upgrade: WebSocketUpgrade,
    received: ReceivedBytes,
    protocol: SocketProtocol,
    admit: impl FnOnce(&OpenEnvService) -> Result<SessionGuard, String> + Send + 'static,
) -> Response {
    let bytes = service.config.message_bytes;
    let open = service.sockets.track();
    upgrade
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(bytes)
        .max_frame_size(bytes)
        .on_upgrade(async move |socket| {
            let admission = admit(&service);
            socket::serve(socket, received, &service, protocol, admission).await;
            drop(open);
        })
}
