//! How many calls run at once, and for how long.
//!
//! Invariant: a call past its deadline is dropped, queued SQL with it, and reported as DEADLINE_EXCEEDED; a call beyond the
//! limit is refused before any of its body is read. Health checks and reflection are not counted.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};
use tonic::Code;

use super::config::{ServerConfig, seconds};
use crate::{
    metrics,
    status::{self, Reason},
};

/// The header of a caller's deadline.
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// Limits on calls.
#[derive(Clone)]
pub(super) struct Calls {
    places: Arc<Semaphore>,
    longest: Duration,
}

impl Calls {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self {
            places: Arc::new(Semaphore::new(config.max_calls_in_flight)),
            longest: seconds(config.max_call_seconds),
        }
    }
}

/// Runs a gRPC call within its deadline, if there is a place.
pub(super) async fn grpc(State(calls): State<Calls>, request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with("/sqlenv.") {
        return next.run(request).await;
    }
    let Ok(_place) = calls.places.try_acquire() else {
        return refuse(
            Code::ResourceExhausted,
            Reason::Overloaded,
            "env-node is overloaded: too many calls in flight; retry after a pause",
        );
    };
    let asked = grpc_timeout(request.headers()).unwrap_or(calls.longest);
    let limit = asked.min(calls.longest);
    match timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => refuse(
            Code::DeadlineExceeded,
            Reason::DeadlineExceeded,
            &format!(
                "the call did not end within {} s; the step was not applied, retry it",
                limit.as_secs_f64()
            ),
        ),
    }
}

/// Ends an HTTP request that has no answer in time.
pub(super) async fn http(State(calls): State<Calls>, request: Request, next: Next) -> Response {
    match timeout(calls.longest, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = Json(json!({ "detail": "Request Timeout" }));
            (StatusCode::REQUEST_TIMEOUT, detail).into_response()
        }
    }
}

fn refuse(code: Code, reason: Reason, message: &str) -> Response {
    metrics::call_refused(code);
    status::refusal(code, reason, message).into_http()
}

/// The deadline that the caller set, as gRPC writes it: at most eight digits and a unit. A malformed one counts as none.
fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3_600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        for (text, read) in [
            ("50m", Some(Duration::from_millis(50))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3_600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("4u", Some(Duration::from_micros(4))),
            ("5n", Some(Duration::from_nanos(5))),
            ("0m", Some(Duration::ZERO)),
            ("100000000m", None),
            ("+5m", None),
            ("m", None),
            ("5", None),
            ("5 m", None),
            ("", None),
        ] {
            let headers =
                HeaderMap::from_iter([(GRPC_TIMEOUT.parse().unwrap(), text.parse().unwrap())]);
            assert_eq!(grpc_timeout(&headers), read, "{text}");
        }
    }
}
