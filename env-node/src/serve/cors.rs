//! Cross-origin requests: which other sites' pages may call the node from a browser (the Fetch
//! standard's CORS protocol).
//!
//! Invariant: a page can read a response of this node only if its origin is listed or is the node's
//! own. Browsers enforce that with the headers sent here, but they send a page's POST and open its
//! WebSocket first. Those are refused here, since they change something even if their page cannot
//! read the response. Programs send no origin and are served.
//!
//! A foreign page may have a name that its owner's name server lets point to this machine (DNS
//! rebinding), so that it looks like the node's own. A node that listens on a loopback address
//! therefore knows only the names of such an address as its own.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::rejection::Rejection;

/// What a page may send, and read of a response.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, OPTIONS");
const REQUEST_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, grpc-timeout, x-grpc-web, x-user-agent");
const RESPONSE_HEADERS: HeaderValue =
    HeaderValue::from_static("grpc-status, grpc-message, grpc-status-details-bin");
/// Seconds for which a browser may cache a preflight response. Browsers cap it.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");
/// The header in which a browser says how the page's site relates to this one. Pages cannot set it.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// An extension of requests to a node that listens on a loopback address.
#[derive(Clone, Copy)]
pub(super) struct OnLoopback;

/// The origins whose pages may read responses.
#[derive(Clone)]
pub(super) struct AllowedOrigins(Arc<[HeaderValue]>);

impl AllowedOrigins {
    pub(super) fn new(allowed: &[String]) -> Self {
        let value = |origin: &String| {
            HeaderValue::try_from(origin).expect("origins are checked by validate: this is a bug")
        };
        Self(allowed.iter().map(value).collect())
    }

    fn allow(&self, origin: &HeaderValue) -> bool {
        self.0
            .iter()
            .any(|allowed| allowed == origin || allowed == "*")
    }
}

/// Answers preflight requests of listed origins, lets their pages read responses, and refuses the
/// requests of other pages that may change something.
pub(super) async fn share(
    State(origins): State<AllowedOrigins>,
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
        let detail = "this origin is not listed in env_node.server.allowed_origins";
        return Rejection::new(StatusCode::FORBIDDEN, detail).into_response();
    }
    let is_preflight = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let (mut response, more): (Response, &[(HeaderName, HeaderValue)]) = if is_preflight {
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
    headers.extend(more.iter().cloned());
    response
}

/// Returns whether a request changes nothing, so that it does no harm if its page cannot read the
/// response.
fn only_reads(request: &Request) -> bool {
    let is_socket = request.headers().contains_key(header::UPGRADE);
    !is_socket && request.method().is_safe()
}

/// Returns whether `origin` is the node's own: the browser says so, or it is the address of the
/// request.
fn is_own(origin: &HeaderValue, request: &Request) -> bool {
    let headers = request.headers();
    // HTTP/2 has an authority in place of a host.
    let authority = request.uri().authority().map(Authority::as_str);
    let host = headers.get(header::HOST);
    let own = authority.or_else(|| host.and_then(|host| host.to_str().ok()));
    let is_on_loopback = request.extensions().get::<OnLoopback>().is_some();
    if is_on_loopback && own.is_some_and(can_be_rebound) {
        return false;
    }
    if headers
        .get(SEC_FETCH_SITE)
        .is_some_and(|site| site == "same-origin")
    {
        return true;
    }
    let origin = origin.to_str().ok();
    let shown = origin.and_then(|origin| origin.split_once("://"));
    shown.is_some_and(|(_, shown)| Some(shown) == own)
}

/// Returns whether an authority, `HOST` or `HOST:PORT`, has a name that its owner can give this
/// machine's address. An address itself and `localhost` cannot be given another.
fn can_be_rebound(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else {
        return true;
    };
    let host = authority.host();
    let in_brackets = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let is_address = in_brackets.unwrap_or(host).parse::<IpAddr>().is_ok();
    !is_address && !host.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_page_of_the_node_is_recognized_by_host_or_authority() {
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

    #[test]
    fn a_node_on_loopback_has_no_name_that_can_be_rebound() {
        for (host, own) in [
            ("localhost", true),
            ("LocalHost:8000", true),
            ("127.0.0.1:8000", true),
            ("[::1]:8000", true),
            ("192.168.1.5:8000", true),
            ("rebound.example:8000", false),
            ("localhost.example:8000", false),
            ("127.0.0.1.example", false),
            ("", false),
        ] {
            let origin = HeaderValue::try_from(format!("http://{host}")).unwrap();
            for site in ["same-origin", "none"] {
                let request = Request::builder()
                    .uri("/mcp")
                    .header(header::HOST, host)
                    .header(SEC_FETCH_SITE, site);
                let mut request = request.body(Body::empty()).unwrap();
                assert!(is_own(&origin, &request), "elsewhere, {host}");
                request.extensions_mut().insert(OnLoopback);
                assert_eq!(is_own(&origin, &request), own, "{host}, {site}");
            }
        }
    }
}
