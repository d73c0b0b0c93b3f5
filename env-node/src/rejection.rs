//! The rejection of an HTTP request, as `{"detail": …}`.
//!
//! Invariant: a text names what is wrong and the remedy, and it is short even if it repeats words
//! of the request.

use axum::{
    Json,
    extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use env::{EnvError, truncated};
use serde_json::{Value, json};

use crate::{status::TEXT_BYTES, web::MAX_REQUEST_BYTES};

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
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

/// Gives each error its HTTP status. The statuses are those of OpenEnv's own server, which has
/// neither tokens to refuse (403) nor limits on calls (429).
impl From<EnvError> for Rejection {
    fn from(error: EnvError) -> Self {
        let status = match error {
            EnvError::NotFound { .. } => StatusCode::NOT_FOUND,
            EnvError::Request { .. } | EnvError::Token(_) => StatusCode::BAD_REQUEST,
            EnvError::Overloaded { .. } | EnvError::WallClock { .. } | EnvError::Internal(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            EnvError::Setting { .. }
            | EnvError::Database { .. }
            | EnvError::ChangedDatabase { .. }
            | EnvError::Dataset { .. }
            | EnvError::SelfTest { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, &error.to_string())
    }
}

/// Says why a body was not read. A route does not know its limit, so the text names both.
pub(crate) fn unread_body(rejection: &BytesRejection) -> String {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => format!(
            "the body exceeds the limit, which is env_node.openenv.message_bytes, and \
             {MAX_REQUEST_BYTES} bytes under /web/; send a shorter one"
        ),
        _ => rejection.body_text(),
    }
}

impl From<BytesRejection> for Rejection {
    fn from(rejection: BytesRejection) -> Self {
        Self::new(rejection.status(), &unread_body(&rejection))
    }
}

impl From<JsonRejection> for Rejection {
    fn from(rejection: JsonRejection) -> Self {
        match rejection {
            JsonRejection::BytesRejection(unread) => unread.into(),
            other => Self::new(other.status(), &other.body_text()),
        }
    }
}

impl From<PathRejection> for Rejection {
    fn from(rejection: PathRejection) -> Self {
        Self::new(rejection.status(), &rejection.body_text())
    }
}

impl From<QueryRejection> for Rejection {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(rejection.status(), &rejection.body_text())
    }
}
