//! The page `/web`, on which a person plays and replays episodes.
//!
//! Invariant: the page is a client of `sqlenv.v1.Env` and holds the tokens of its episodes itself.
//! The server keeps only the episode that OpenEnv's `/web/reset` and `/web/step` share between all
//! visitors. Every response forbids the browser everything that the page does not need.

mod action_log;
mod api;
mod assets;
pub(crate) mod config;
mod runs;
mod shared_environment;
mod view;
mod watchers;

use axum::{
    Router,
    extract::{DefaultBodyLimit, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::map_response_with_state,
    response::{Redirect, Response},
    routing::get,
};

pub use config::WebConfig;

use crate::{
    node::EnvNode, openenv::Sockets, rejection::Rejection, serve::call_limits::CallLimits,
};

/// Largest request: a token with a full history and one action.
pub(crate) const MAX_REQUEST_BYTES: usize = 8 << 20;

/// Serves the page and its interface; nothing if the page is disabled. Watchers of the shared
/// environment are among `sockets`, and their messages count in `limits`.
pub(crate) fn router(node: &EnvNode, sockets: Sockets, limits: CallLimits) -> Router {
    let config = &node.settings().web;
    if !config.enabled {
        return Router::new();
    }
    let policy = config.content_security_policy();
    Router::new()
        .route("/", get(|| async { Redirect::temporary("/web/") }))
        .route("/web", get(|| async { Redirect::temporary("/web/") }))
        .merge(assets::router())
        .merge(api::router(node))
        .merge(runs::router(node))
        .merge(shared_environment::router(node, sockets, limits))
        .method_not_allowed_fallback(|| async {
            Rejection::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        })
        .route_layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .route_layer(map_response_with_state(policy, add_security_headers))
}

async fn add_security_headers(
    State(policy): State<HeaderValue>,
    mut response: Response,
) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}
