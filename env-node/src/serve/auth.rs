//! Authentication of callers by the bearer token.
//!
//! Invariant: the time of the comparison does not depend on how much of a guess is right. Health
//! checks need no token.

use std::{path::Path, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha256};

use crate::{
    error::SettingError,
    rejection::Rejection,
    status::{self, Reason},
};

/// What a refused caller should do.
const REMEDY: &str = "this node requires a token; send it as `authorization: Bearer TOKEN`";
/// A shorter token could be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// The token's hash. Hashes are compared, since they have one length and hide the token's.
#[derive(Clone)]
pub(super) struct BearerToken(Arc<[u8; 32]>);

impl BearerToken {
    /// Reads the token from a file. Returns `None` if no file is named.
    pub(super) fn open(path: Option<&Path>) -> Result<Option<Self>, SettingError> {
        let Some(path) = path else { return Ok(None) };
        let refuse = |problem: String| SettingError {
            field: "server.bearer_token_file",
            remedy: format!(
                "{} {problem}; give a text file with a token of at least {MIN_TOKEN_BYTES} bytes",
                path.display()
            ),
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| refuse(format!("cannot be read: {error}")))?;
        let token = text.trim();
        if token.len() < MIN_TOKEN_BYTES {
            return Err(refuse(format!("holds {} bytes", token.len())));
        }
        Ok(Some(Self(Arc::new(Sha256::digest(token).into()))))
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let presented = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(presented_token);
        presented.is_some_and(|token| {
            let hash: [u8; 32] = Sha256::digest(token).into();
            // All bytes are compared, so the time tells nothing about the first difference.
            let differences = hash.iter().zip(self.0.iter()).map(|(a, b)| a ^ b);
            differences.fold(0, |all, one| all | one) == 0
        })
    }
}

/// Returns the token in an authorization header: a bearer's, or the password that a browser asked a
/// person for.
fn presented_token(authorization: &str) -> Option<Vec<u8>> {
    let (scheme, value) = authorization.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.trim().into());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(value.trim()).ok()?;
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
    if is_health || expected.admits(request.headers()) {
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
    if request.uri().path() == "/health" || expected.admits(request.headers()) {
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
