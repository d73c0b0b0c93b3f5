//! Authentication of callers by the bearer token.
//!
//! Invariant: health checks need no token.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use proto::{BearerToken, credentials_of};

use crate::{
    rejection::Rejection,
    status::{self, Reason},
};

/// What a refused caller should do.
const REMEDY: &str = "this node requires a token; send it as `authorization: Bearer TOKEN`";

/// Returns whether the headers present the token.
fn admits(expected: &BearerToken, headers: &HeaderMap) -> bool {
    let presented = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(presented_token);
    presented.is_some_and(|token| expected.equals(&token))
}

/// Returns the token in an authorization header: a bearer's, or the password that a browser asked a
/// person for.
fn presented_token(authorization: &str) -> Option<Vec<u8>> {
    if let Some(token) = credentials_of(authorization, "bearer") {
        return Some(token.into());
    }
    let encoded = credentials_of(authorization, "basic")?;
    let decoded = BASE64_STANDARD.decode(encoded).ok()?;
    let colon = decoded.iter().position(|&byte| byte == b':')?;
    Some(decoded[colon + 1..].to_vec())
}

/// Refuses gRPC calls without the token.
pub(super) async fn grpc(
    State(expected): State<BearerToken>,
    request: Request,
    next: Next,
) -> Response {
    let is_health = request.uri().path().starts_with("/grpc.health.v1.Health/");
    if is_health || admits(&expected, request.headers()) {
        return next.run(request).await;
    }
    status::refusal(
        tonic::Code::Unauthenticated,
        Reason::BearerTokenRefused,
        REMEDY,
    )
    .into_http()
}

/// Refuses HTTP requests without the token.
pub(super) async fn http(
    State(expected): State<BearerToken>,
    request: Request,
    next: Next,
) -> Response {
    if request.uri().path() == "/health" || admits(&expected, request.headers()) {
        return next.run(request).await;
    }
    let challenge = [(header::WWW_AUTHENTICATE, r#"Bearer, Basic realm="sqlenv""#)];
    let rejection = Rejection::new(StatusCode::UNAUTHORIZED, REMEDY);
    (challenge, rejection).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_presented_by_a_program_or_a_person() {
        for (header, token) in [
            ("Bearer secret", Some("secret")),
            ("bearer  secret ", Some("secret")),
            ("Basic YW55OnNlYzpyZXQ=", Some("sec:ret")),
            ("Basic !!!", None),
            ("Basic YW55", None),
            ("Digest secret", None),
            ("secret", None),
        ] {
            let presented = presented_token(header);
            assert_eq!(presented.as_deref(), token.map(str::as_bytes), "{header}");
        }
    }
}
