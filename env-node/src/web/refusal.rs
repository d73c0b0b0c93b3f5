//! Why a request is refused, as `{"detail": …}`.
//!
//! Invariant: the text names the thing and the remedy, and is the one that gRPC callers get; a caller's own words in it are
//! cut.

use axum::{
    Json,
    extract::{
        Query,
        rejection::{JsonRejection, QueryRejection},
    },
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use env::{EnvError, truncated};
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{
    openenv,
    status::{self, TEXT_BYTES},
};

/// A status and its reason.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    detail: Value,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            status,
            detail: truncated(&detail, TEXT_BYTES).into(),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut reply = (self.status, Json(json!({"detail": self.detail}))).into_response();
        if matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            reply
                .headers_mut()
                .insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        reply
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let code = match status.code() {
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            // 401 would ask for a password; what is refused is the episode's token.
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

impl From<EnvError> for Refusal {
    fn from(error: EnvError) -> Self {
        Self::from(status::of(error))
    }
}

impl From<openenv::Refusal> for Refusal {
    fn from(refusal: openenv::Refusal) -> Self {
        let (status, detail) = refusal.parts();
        Self { status, detail }
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl From<QueryRejection> for Refusal {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

/// A body that is read, or the reason why not.
pub(super) fn body<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, Refusal> {
    Ok(body?.0)
}

/// A query string that is read, or the reason why not.
pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Refusal> {
    Ok(query?.0)
}
