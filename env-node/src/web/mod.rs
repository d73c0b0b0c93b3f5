//! The page `/web`, on which a person plays and replays episodes.
//!
//! Invariant: the page is a client of `sqlenv.v1.Env` like any other and holds the tokens of its episodes itself; the one
//! thing kept here is the episode that OpenEnv's `/web/reset` and `/web/step` share between all visitors. Every reply
//! forbids the browser everything that the page does not need. Leaves out who may connect (`serve`).

mod action_log;
mod api;
mod assets;
pub(crate) mod config;
mod refusal;
mod shared;
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

use crate::node::EnvNode;
use refusal::Refusal;

/// Largest request: a token with a full history and one action.
const MAX_REQUEST_BYTES: usize = 8 << 20;

/// The page and what it asks for; nothing where it is switched off.
pub(crate) fn router(node: &EnvNode) -> Router {
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
        .merge(shared::router(node))
        .method_not_allowed_fallback(|| async {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        })
        .route_layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .route_layer(map_response_with_state(policy, locked_down))
}

async fn locked_down(State(policy): State<HeaderValue>, mut reply: Response) -> Response {
    let headers = reply.headers_mut();
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
    reply
}
