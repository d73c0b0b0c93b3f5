//! Which other sites' pages may call the node from a browser (the Fetch standard's CORS protocol).
//!
//! Invariant: a page gets an answer of this node to read only if its origin is listed or the node's own. Browsers see to that
//! themselves, but send a page's POST and open its socket first: those are refused here. Programs, which have no origin, are
//! let through.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::error::SettingError;

/// What a page may send, and read of an answer.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, grpc-timeout, x-grpc-web, x-user-agent, mcp-session-id",
);
const RESPONSE_HEADERS: HeaderValue =
    HeaderValue::from_static("grpc-status, grpc-message, grpc-status-details-bin, mcp-session-id");
/// Seconds for which a browser may remember the answer; browsers cap it.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");
/// Where a browser says how the page's site is related to ours; pages cannot set it.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The origins that may read answers.
#[derive(Clone)]
pub(super) struct Origins(Arc<[HeaderValue]>);

impl Origins {
    pub(super) fn new(allowed: &[String]) -> Result<Self, SettingError> {
        let origins: Result<Arc<[HeaderValue]>, _> = allowed
            .iter()
            .map(|origin| origin.parse::<HeaderValue>())
            .collect();
        origins.map(Self).map_err(|_| SettingError {
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

/// Answers preflight requests of listed origins, lets their pages read what is answered, and refuses what other pages may
/// not do.
pub(super) async fn share(
    State(origins): State<Origins>,
    request: Request,
    next: Next,
) -> Response {
    let Some(origin) = request.headers().get(header::ORIGIN).cloned() else {
        return next.run(request).await;
    };
    if !origins.allow(&origin) {
        if only_reads(&request) || is_own(&origin, &request) {
            return next.run(request).await;
        }
        let detail = "this origin is not listed in server.allowed_origins";
        return (StatusCode::FORBIDDEN, Json(json!({ "detail": detail }))).into_response();
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

/// Whether a request changes nothing, so that it is enough if its page cannot read the answer.
fn only_reads(request: &Request) -> bool {
    let is_socket = request.headers().contains_key(header::UPGRADE);
    !is_socket && request.method().is_safe()
}

/// Whether `origin` is that of the node: as the browser sees it, or as the caller addressed it.
fn is_own(origin: &HeaderValue, request: &Request) -> bool {
    let headers = request.headers();
    if headers
        .get(SEC_FETCH_SITE)
        .is_some_and(|site| site == "same-origin")
    {
        return true;
    }
    // HTTP/2 has an authority in place of a host.
    let authority = request.uri().authority().map(Authority::as_str);
    let host = headers.get(header::HOST);
    let own = authority.or_else(|| host.and_then(|host| host.to_str().ok()));
    let origin = origin.to_str().ok();
    let shown = origin.and_then(|origin| origin.split_once("://"));
    shown.is_some_and(|(_, shown)| Some(shown) == own)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_page_of_the_node_is_known_by_host_or_authority() {
        let shown = HeaderValue::from_static("https://node.example:8000");
        for (uri, host, own) in [
            ("/mcp", "node.example:8000", true),
            ("/mcp", "node.example", false),
            ("https://node.example:8000/mcp", "", true),
            ("https://other.example/mcp", "", false),
        ] {
            let request = Request::builder().uri(uri).header(header::HOST, host);
            let request = request.body(Body::empty()).unwrap();
            assert_eq!(is_own(&shown, &request), own, "{uri} {host}");
        }
    }
}
