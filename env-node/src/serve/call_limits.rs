//! Limits on calls: how many run at once, and for how long.
//!
//! Invariant: a call past its deadline is dropped, and its queued SQL with it. A call beyond the
//! limit is refused before any of its body is read; one whose body exceeds the budget, as soon as
//! it does. A response that its peer does not read counts until it is sent. A socket counts until
//! it is open, and then each of its frames counts until its response is ready. Health checks and
//! reflection have limits of their own.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use proto::serve::{BodyBudget, BodyLimits, REFLECTION_BYTES, ReceivedBytes, UnreadBudget};
use tokio::{sync::Semaphore, time::timeout};
use tonic::{Code, Status};

use super::config::ServerConfig;
use crate::{
    metrics,
    rejection::Rejection,
    status::{self, Reason},
};

/// The header with a caller's deadline.
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The methods of gRPC's health checks.
const HEALTH: &str = "/grpc.health.v1.Health/";
/// The one that keeps its call open until its peer ends it.
const WATCH_HEALTH: &str = "/grpc.health.v1.Health/Watch";
const HTTP_HEALTH: &str = "/health";
/// The bytes of all streams of reflection at once; each may have [`REFLECTION_BYTES`].
const REFLECTION_BYTES_IN_FLIGHT: usize = 1 << 22;

const TOO_MANY_CALLS: &str = "too many calls in flight";

/// Limits on calls. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CallLimits {
    permits: Arc<Semaphore>,
    bodies: BodyBudget,
    /// The bodies of reflection.
    reflection: BodyBudget,
    /// What peers have not read of responses and of the texts of sockets.
    pub(crate) unread: UnreadBudget,
    max_duration: Duration,
}

/// Why a call gets no response of its own.
enum CallRejection {
    /// Too much of this is in flight.
    Overloaded(&'static str),
    DeadlineExceeded,
}

impl CallLimits {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(config.max_calls_in_flight)),
            bodies: BodyBudget::new(config.max_body_bytes_in_flight),
            reflection: BodyBudget::new(REFLECTION_BYTES_IN_FLIGHT),
            unread: UnreadBudget::new(config.max_body_bytes_in_flight),
            max_duration: Duration::from_secs_f64(config.max_call_seconds),
        }
    }

    /// Starts to count what an open socket receives, in the same budget as bodies.
    pub(crate) fn count_messages(&self, received: &ReceivedBytes) {
        received.count(&self.bodies);
    }

    /// Makes the response to a frame of a socket, if a permit is free, for as long as a call may
    /// take.
    ///
    /// # Errors
    /// There is no response; says that the frame may be sent again.
    pub(crate) async fn respond_to_frame<T>(
        &self,
        response: impl Future<Output = T>,
    ) -> Result<T, String> {
        let Ok(_permit) = self.permits.try_acquire() else {
            metrics::openenv_refused(metrics::OVERLOADED);
            return Err(overloaded(TOO_MANY_CALLS));
        };
        let response = timeout(self.max_duration, response).await;
        response.map_err(|_| {
            metrics::openenv_refused(metrics::DEADLINE_EXCEEDED);
            too_late(self.max_duration)
        })
    }

    /// Runs a call for at most `limit`, if a permit is free and its body fits into the budget.
    async fn run(
        &self,
        limit: Duration,
        request: Request,
        next: Next,
    ) -> Result<Response, CallRejection> {
        // Refused at once rather than queued: a client can turn to another node.
        let Ok(_permit) = self.permits.try_acquire() else {
            return Err(CallRejection::Overloaded(TOO_MANY_CALLS));
        };
        let (parts, body) = request.into_parts();
        let limits = BodyLimits {
            // Each protocol limits its own messages, and the call has a deadline.
            max_bytes: usize::MAX,
            timeout: None,
        };
        let (body, reservation) = self.bodies.meter(body, limits);
        let request = Request::from_parts(parts, Body::new(body));
        let response = timeout(limit, next.run(request)).await;
        // A handler answers a failed body in its own words, which would hide that a retry helps.
        if reservation.fault().is_some() {
            return Err(CallRejection::Overloaded(
                "the calls in flight hold too many bytes",
            ));
        }
        response.map_err(|_| CallRejection::DeadlineExceeded)
    }

    /// Runs reflection, or the refusal of a service that is not there.
    async fn reflect(&self, request: Request, next: Next) -> Response {
        let (parts, body) = request.into_parts();
        let limits = BodyLimits {
            max_bytes: REFLECTION_BYTES,
            timeout: None,
        };
        let (body, _reservation) = self.reflection.meter(body, limits);
        next.run(Request::from_parts(parts, Body::new(body))).await
    }
}

/// Counts the bytes of a response until they are sent, except those of health checks.
pub(super) async fn count_unread(
    State(budget): State<UnreadBudget>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if path.starts_with(HEALTH) || path == HTTP_HEALTH {
        return next.run(request).await;
    }
    let response = next.run(request).await;
    response.map(|body| Body::new(budget.count(body)))
}

/// Runs a gRPC call within its deadline.
pub(super) async fn grpc(
    State(limits): State<CallLimits>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if path == WATCH_HEALTH {
        return Status::unimplemented("health is not watched here; call Check").into_http();
    }
    // Under any load. The health service limits the bytes of its messages.
    if path.starts_with(HEALTH) {
        return next.run(request).await;
    }
    if !path.starts_with("/sqlenv.") {
        return limits.reflect(request, next).await;
    }
    let requested = grpc_timeout(request.headers()).unwrap_or(limits.max_duration);
    let limit = requested.min(limits.max_duration);
    let (code, reason, message) = match limits.run(limit, request, next).await {
        Ok(response) => return response,
        Err(CallRejection::Overloaded(what)) => (
            Code::ResourceExhausted,
            Reason::Overloaded,
            overloaded(what),
        ),
        Err(CallRejection::DeadlineExceeded) => (
            Code::DeadlineExceeded,
            Reason::DeadlineExceeded,
            too_late(limit),
        ),
    };
    status::refusal(code, reason, &message).into_http()
}

/// Runs an HTTP request within the node's own limit.
pub(super) async fn http(
    State(limits): State<CallLimits>,
    request: Request,
    next: Next,
) -> Response {
    if request.uri().path() == HTTP_HEALTH {
        return next.run(request).await;
    }
    let (status, detail) = match limits.run(limits.max_duration, request, next).await {
        Ok(response) => return response,
        Err(CallRejection::Overloaded(what)) => (StatusCode::SERVICE_UNAVAILABLE, overloaded(what)),
        Err(CallRejection::DeadlineExceeded) => {
            (StatusCode::REQUEST_TIMEOUT, too_late(limits.max_duration))
        }
    };
    Rejection::new(status, &detail).into_response()
}

fn overloaded(what: &str) -> String {
    format!("env-node is overloaded: {what}; retry after a pause")
}

fn too_late(limit: Duration) -> String {
    let seconds = limit.as_secs_f64();
    format!("the call did not end within {seconds} s; the step was not applied, retry it")
}

/// Returns the deadline that the caller set. gRPC writes it as at most eight digits and a unit. A
/// malformed one counts as none.
pub(crate) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
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
