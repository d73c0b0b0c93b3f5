//! Limits on the calls of the learner's port: their number, and the bytes of their requests.
//!
//! Invariant: a call beyond a limit is refused before its message is decoded, is counted, and is
//! logged rarely. What a call holds is returned when its work is done, even if its caller has left
//! before.

use std::{convert::Infallible, sync::Arc, time::Duration};

use parking_lot::Mutex;
use proto::{
    RareWarning,
    serve::{BodyBudget, BodyFault, BodyLimits, BodyReservation},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{Request, Response},
    },
    service::Routes,
};

use crate::{
    metrics,
    server::config::{GRPC_FRAME_BYTES, LearnerServerConfig, MAX_REQUEST_BYTES},
};

/// The most bytes of a request that holds names and numbers, such as a claim with the actor's
/// report.
const MAX_SMALL_REQUEST_BYTES: usize = (64 << 10) + GRPC_FRAME_BYTES;

/// The method of health checks that keeps its call open until its peer ends it.
const WATCH_HEALTH: &str = "/grpc.health.v1.Health/Watch";

/// Limits on calls. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CallLimits {
    permits: Arc<Semaphore>,
    weights_streams: Arc<Semaphore>,
    /// Those whose actors may still come back.
    ended_weights_streams: Arc<Semaphore>,
    bodies: BodyBudget,
    body_timeout: Duration,
    warning: Arc<Mutex<RareWarning>>,
}

/// What a call holds of the limits. Work that outlives its call keeps a clone.
#[derive(Clone)]
pub(crate) struct HeldByCall {
    _permit: Option<Arc<OwnedSemaphorePermit>>,
    _body: Arc<BodyReservation>,
}

/// Why a call is not served. The setting is that of `server` which bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallRefusal {
    /// There are `max_calls_in_flight` already.
    Calls,
    /// There are `max_weights_streams` already.
    WeightsStreams,
    /// All requests hold `max_body_bytes_in_flight`.
    Bytes,
    /// The request is longer than its method allows.
    Length,
    /// The request did not arrive within `body_seconds`.
    Late,
}

impl CallRefusal {
    pub(crate) const ALL: [Self; 5] = [
        Self::Calls,
        Self::WeightsStreams,
        Self::Bytes,
        Self::Length,
        Self::Late,
    ];

    /// Returns the word for metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::WeightsStreams => "weights_streams",
            Self::Bytes => "bytes",
            Self::Length => "length",
            Self::Late => "late",
        }
    }

    fn status(self) -> Status {
        let overloaded = |what: &str| {
            Status::resource_exhausted(format!(
                "the learner is overloaded: {what}; retry after a pause, or raise the limit"
            ))
        };
        match self {
            Self::Calls => {
                overloaded("too many calls are in flight (learner.server.max_calls_in_flight)")
            }
            Self::WeightsStreams => {
                overloaded("too many weights streams are open (learner.server.max_weights_streams)")
            }
            Self::Bytes => overloaded(
                "the requests in flight hold too many bytes \
                 (learner.server.max_body_bytes_in_flight)",
            ),
            Self::Length => Status::out_of_range(
                "the request is longer than its method allows: 64 MiB for Submit and \
                 SubmitEvaluation, 64 KiB for others",
            ),
            Self::Late => Status::deadline_exceeded(
                "the request did not arrive in time (learner.server.body_seconds)",
            ),
        }
    }
}

impl From<BodyFault> for CallRefusal {
    fn from(fault: BodyFault) -> Self {
        match fault {
            BodyFault::OverBudget => Self::Bytes,
            BodyFault::TooLong => Self::Length,
            BodyFault::Late => Self::Late,
        }
    }
}

impl CallLimits {
    pub(crate) fn new(config: &LearnerServerConfig) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(config.max_calls_in_flight)),
            weights_streams: Arc::new(Semaphore::new(config.max_weights_streams)),
            ended_weights_streams: Arc::new(Semaphore::new(config.max_weights_streams)),
            bodies: BodyBudget::new(config.max_body_bytes_in_flight),
            body_timeout: Duration::from_secs_f64(config.body_seconds),
            warning: Arc::default(),
        }
    }

    /// Answers a call within the limits.
    pub(crate) async fn answer(
        &self,
        request: Request<Body>,
        mut routes: Routes,
    ) -> Result<Response<Body>, Infallible> {
        let path = request.uri().path();
        if path == WATCH_HEALTH {
            let status = Status::unimplemented("health is not watched here; call Check");
            return Ok(status.into_http());
        }
        // Probes are answered under any load.
        let permit = match path.starts_with("/grpc.") {
            true => None,
            false => match Arc::clone(&self.permits).try_acquire_owned() {
                Ok(permit) => Some(Arc::new(permit)),
                Err(_) => return Ok(self.refuse(CallRefusal::Calls).into_http()),
            },
        };
        let Some(max_bytes) = max_request_bytes(path) else {
            return routes.call(request).await;
        };
        let (mut parts, body) = request.into_parts();
        let limits = BodyLimits {
            max_bytes,
            timeout: Some(self.body_timeout),
        };
        let (body, reservation) = self.bodies.meter(body, limits);
        parts.extensions.insert(HeldByCall {
            _permit: permit,
            _body: Arc::clone(&reservation),
        });
        let response = routes
            .call(Request::from_parts(parts, Body::new(body)))
            .await;
        // The service answers a failed body in its own words, which would hide the remedy.
        match reservation.fault() {
            Some(fault) => Ok(self.refuse(fault.into()).into_http()),
            None => response,
        }
    }

    /// Returns the permission to hold a weights stream open.
    ///
    /// # Errors
    /// There are as many as the settings allow.
    pub(crate) fn weights_stream(&self) -> Result<OwnedSemaphorePermit, Status> {
        let permit = Arc::clone(&self.weights_streams).try_acquire_owned();
        permit.map_err(|_| self.refuse(CallRefusal::WeightsStreams))
    }

    /// Returns the permission to wait for the actor of a weights stream that has ended; none if as
    /// many are waited for as streams may be open.
    pub(crate) fn ended_weights_stream(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.ended_weights_streams).try_acquire_owned();
        if permit.is_err()
            && let Some(streams) = self.warning.lock().note()
        {
            tracing::warn!(
                streams,
                "too many actors are gone at once; their leases end by their own deadlines"
            );
        }
        permit.ok()
    }

    fn refuse(&self, refusal: CallRefusal) -> Status {
        let status = refusal.status();
        metrics::call_refused(refusal);
        if let Some(refused) = self.warning.lock().note() {
            tracing::warn!(refused, "a call was refused: {}", status.message());
        }
        status
    }
}

/// Returns the most bytes of a request; none for the stream of a rank, whose messages are limited
/// one by one.
fn max_request_bytes(path: &str) -> Option<usize> {
    match path {
        "/sqlenv.v1.Ranks/Train" => None,
        "/sqlenv.v1.Learner/Submit" | "/sqlenv.v1.Learner/SubmitEvaluation" => {
            Some(MAX_REQUEST_BYTES)
        }
        _ => Some(MAX_SMALL_REQUEST_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_weights_streams_are_limited_apart_from_open_ones() {
        let limits = CallLimits::new(&LearnerServerConfig {
            max_weights_streams: 1,
            ..LearnerServerConfig::default()
        });
        let ended = limits.ended_weights_stream();
        assert!(ended.is_some());
        assert!(limits.ended_weights_stream().is_none());
        // An actor that comes back is not refused.
        assert!(limits.weights_stream().is_ok());
        drop(ended);
        assert!(limits.ended_weights_stream().is_some());
    }
}
