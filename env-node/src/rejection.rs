//! The rejection of an HTTP request, as `{"detail": …}`.
//!
//! Invariant: a text names what is wrong and the remedy, and it is short even if it repeats words
//! of the request.

use axum::{
    Json,
    extract::rejection::{JsonRejection, QueryRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use env::{EnvError, truncated};
use serde_json::{Value, json};
use tonic::Code;

use crate::status::{self, TEXT_BYTES};

/// Seconds that a caller is asked to wait before it tries again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// An HTTP status and its reason.
#[derive(Debug)]
pub(crate) struct Rejection {
    status: StatusCode,
    detail: Value,
}

impl Rejection {
    pub(crate) fn new(status: StatusCode, detail: &str) -> Self {
        Self::with_detail(status, truncated(detail, TEXT_BYTES).into())
    }

    pub(crate) fn with_detail(status: StatusCode, detail: Value) -> Self {
        Self { status, detail }
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let body = Json(json!({"detail": self.detail}));
        let mut response = (self.status, body).into_response();
        if matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

/// Gives each error the HTTP status that its gRPC status corresponds to. OpenEnv's routes have
/// other statuses, in `openenv/http.rs`.
impl From<EnvError> for Rejection {
    fn from(error: EnvError) -> Self {
        let status = status::of(error);
        let code = match status.code() {
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            // A browser would answer 401 by asking for a password. What is refused here is the
            // episode's token.
            Code::Unauthenticated | Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::FailedPrecondition => StatusCode::CONFLICT,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(code, status.message())
    }
}

impl From<JsonRejection> for Rejection {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), &rejection.body_text())
    }
}

impl From<QueryRejection> for Rejection {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(rejection.status(), &rejection.body_text())
    }
}
