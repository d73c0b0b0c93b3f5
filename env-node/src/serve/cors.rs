//! Which other sites' pages may call the node from a browser (the Fetch standard's CORS protocol).
//!
//! Invariant: a page gets an answer of this node to read only if its origin is listed or the node's own. Browsers see to that
//! themselves, sockets excepted: those are refused here. Programs, which have no origin, are let through.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::error::EnvError;

/// What a page may send, and read of an answer.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, grpc-timeout, x-grpc-web, x-user-agent, mcp-session-id",
);
const RESPONSE_HEADERS: HeaderValue =
    HeaderValue::from_static("grpc-status, grpc-message, grpc-status-details-bin, mcp-session-id");
/// Seconds for which a browser may remember the answer; browsers cap it.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

/// The origins that may read answers.
#[derive(Clone)]
pub(super) struct Origins(Arc<[HeaderValue]>);

impl Origins {
    pub(super) fn new(allowed: &[String]) -> Result<Self, EnvError> {
        let origins: Result<Arc<[HeaderValue]>, _> = allowed
            .iter()
            .map(|origin| origin.parse::<HeaderValue>())
            .collect();
        origins.map(Self).map_err(|_| EnvError::Config {
            field: "server.allowed_origins",
            remedy: "give origins such as https://trainer.example, or *".to_owned(),
        })
    }

    fn allow(&self, origin: &HeaderValue) -> bool {
        self.0
            .iter()
            .any(|allowed| allowed == origin || allowed == "*")
    }
}

/// Answers preflight requests of listed origins, and lets their pages read what is answered.
pub(super) async fn share(
    State(origins): State<Origins>,
    request: Request,
    next: Next,
) -> Response {
    let Some(origin) = request.headers().get(header::ORIGIN).cloned() else {
        return next.run(request).await;
    };
    if !origins.allow(&origin) {
        let is_socket = request.headers().contains_key(header::UPGRADE);
        if is_socket && !is_own(&origin, request.headers()) {
            let detail = "this origin is not listed in server.allowed_origins";
            return (StatusCode::FORBIDDEN, Json(json!({ "detail": detail }))).into_response();
        }
        return next.run(request).await;
    }
    let is_preflight = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let (mut response, said): (Response, &[(HeaderName, HeaderValue)]) = if is_preflight {
        (
            StatusCode::NO_CONTENT.into_response(),
            &[
                (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
                (header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS),
                (header::ACCESS_CONTROL_MAX_AGE, MAX_AGE),
            ],
        )
    } else {
        (
            next.run(request).await,
            &[(header::ACCESS_CONTROL_EXPOSE_HEADERS, RESPONSE_HEADERS)],
        )
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    headers.extend(said.iter().cloned());
    response
}

/// Whether `origin` is that of the node, as the caller addressed it.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let after_scheme = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"));
    after_scheme.is_some_and(|(_, own)| Some(own.as_bytes()) == host)
}
