//! How many calls run at once, and for how long.
//!
//! Invariant: a call past its deadline is dropped, queued SQL with it, and told so; a call beyond the limit is refused before
//! any of its body is read, one whose body finds no room as soon as that shows. A socket counts until it is open. Health
//! checks and reflection are not counted.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};
use tonic::Code;

use super::{
    bodies::Bodies,
    config::{ServerConfig, seconds},
};
use crate::status::{self, Reason};

/// The header of a caller's deadline.
const GRPC_TIMEOUT: &str = "grpc-timeout";
/// Seconds that an HTTP caller is asked to wait before it tries again.
const RETRY_AFTER: &str = "1";

/// Limits on calls.
#[derive(Clone)]
pub(super) struct Calls {
    places: Arc<Semaphore>,
    bodies: Bodies,
    longest: Duration,
}

/// Why a call was not answered.
enum Cut {
    /// There is too much of this.
    Overloaded(&'static str),
    Late,
}

impl Calls {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self {
            places: Arc::new(Semaphore::new(config.max_calls_in_flight)),
            bodies: Bodies::new(config.max_body_bytes_in_flight),
            longest: seconds(config.max_call_seconds),
        }
    }

    /// Runs a call within `limit`, if there is a place and room for its body.
    async fn run(&self, limit: Duration, request: Request, next: Next) -> Result<Response, Cut> {
        let Ok(_place) = self.places.try_acquire() else {
            return Err(Cut::Overloaded("too many calls in flight"));
        };
        let (request, held) = self.bodies.meter(request);
        let answer = timeout(limit, next.run(request)).await;
        if held.is_cut() {
            return Err(Cut::Overloaded("the calls in flight hold too many bytes"));
        }
        answer.map_err(|_| Cut::Late)
    }
}

/// Runs a gRPC call within its deadline.
pub(super) async fn grpc(State(calls): State<Calls>, request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with("/sqlenv.") {
        return next.run(request).await;
    }
    let asked = grpc_timeout(request.headers()).unwrap_or(calls.longest);
    let limit = asked.min(calls.longest);
    let (code, reason, message) = match calls.run(limit, request, next).await {
        Ok(response) => return response,
        Err(Cut::Overloaded(what)) => (
            Code::ResourceExhausted,
            Reason::Overloaded,
            overloaded(what),
        ),
        Err(Cut::Late) => (
            Code::DeadlineExceeded,
            Reason::DeadlineExceeded,
            format!(
                "the call did not end within {} s; the step was not applied, retry it",
                limit.as_secs_f64()
            ),
        ),
    };
    status::refusal(code, reason, &message).into_http()
}

/// Runs an HTTP request within the node's own limit.
pub(super) async fn http(State(calls): State<Calls>, request: Request, next: Next) -> Response {
    if request.uri().path() == "/health" {
        return next.run(request).await;
    }
    match calls.run(calls.longest, request, next).await {
        Ok(response) => response,
        Err(Cut::Overloaded(what)) => {
            let detail = Json(json!({ "detail": overloaded(what) }));
            let pause = [(header::RETRY_AFTER, RETRY_AFTER)];
            (StatusCode::SERVICE_UNAVAILABLE, pause, detail).into_response()
        }
        Err(Cut::Late) => {
            let detail = Json(json!({ "detail": "Request Timeout" }));
            (StatusCode::REQUEST_TIMEOUT, detail).into_response()
        }
    }
}

fn overloaded(what: &str) -> String {
    format!("env-node is overloaded: {what}; retry after a pause")
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
