//! Failover between several servers of one service: a call that one of them cannot serve goes to
//! the next.
//!
//! Invariant: a repeated call has the same bytes, and a response is forwarded whole or not at all.
//! For services whose calls may be repeated, the loss of a server therefore costs nothing. No more
//! of a response is read than a message may have. There are no pauses. A caller that can wait until
//! one of the servers is back retries by itself. Its retry goes to the next server if this one did
//! not respond in time.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        Service,
        http::{self, StatusCode},
    },
};
use tonic_types::StatusExt as _;
use tower::ServiceExt;

use crate::{
    MAX_MESSAGE_BYTES,
    endpoints::MeasuredChannel,
    log_pacing::RareWarning,
    status::{has_reason, refuses_caller, status_text},
    transport::{BoxError, is_timeout},
    v1::ErrorReason,
};

/// How often each server is called. Once is not enough: a healthy server may just have closed an
/// idle connection.
const ROUNDS: usize = 2;
/// Bytes of gRPC's frame around a message.
const FRAME_BYTES: usize = 5;

/// The servers, and which of them responded last.
#[derive(Clone)]
pub(crate) struct Failover {
    channels: Arc<[MeasuredChannel]>,
    current: Arc<AtomicUsize>,
    /// Warns of servers that refuse the caller.
    warning: Arc<Mutex<RareWarning>>,
}

impl Failover {
    pub(crate) fn new(channels: Vec<MeasuredChannel>) -> Self {
        Self {
            channels: channels.into(),
            current: Arc::default(),
            warning: Arc::default(),
        }
    }

    /// Directs later calls to another server than `before`, unless one was chosen since. Returns
    /// whether this is a change.
    fn redirect(&self, before: usize, now: usize) -> bool {
        let changed =
            self.current
                .compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed);
        before != now && changed.is_ok()
    }

    /// Remembers which server responds, and says so once if it is another than before.
    fn responded(&self, before: usize, now: usize) {
        if self.redirect(before, now) {
            tracing::warn!(
                "{} does not serve calls; they go to {} from now on",
                self.channels[before].address(),
                self.channels[now].address()
            );
        }
    }

    /// Directs later calls to the server after one that did not respond in time.
    fn leave(&self, before: usize, late: usize) {
        let next = (late + 1) % self.channels.len();
        if self.redirect(before, next) {
            tracing::warn!(
                "{} did not respond in time; calls go to {} from now on",
                self.channels[late].address(),
                self.channels[next].address()
            );
        }
    }

    /// Says now and then that a server refuses the caller. Each call may find this again.
    fn refused(&self, index: usize, problem: &str) {
        if let Some(calls) = self.warning.lock().note() {
            let address = self.channels[index].address();
            tracing::warn!(calls, "{address} is of no use to this run: {problem}");
        }
    }

    async fn send(self, request: http::Request<Body>) -> Result<http::Response<Body>, BoxError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let count = self.channels.len();
        let first = self.current.load(Ordering::Relaxed) % count;
        let (mut is_full, mut has_refused) = (vec![false; count], vec![false; count]);
        let (mut attempt, mut last) = (0, None);
        loop {
            let index = (first + attempt) % count;
            let copy = http::Request::from_parts(head.clone(), Body::new(Full::new(body.clone())));
            let mut pending = PendingCall {
                began: Instant::now(),
                servers: &self,
                first,
                index,
                is_armed: !is_full[first],
            };
            let outcome = exchange(self.channels[index].clone(), copy).await;
            pending.is_armed = false;
            match fault(&outcome) {
                Some(Fault::Late) => {
                    if !is_full[first] {
                        self.leave(first, index);
                    }
                    return outcome;
                }
                // A server that is full now stays the first to be asked by later calls.
                None if is_full[first] => return outcome,
                None => {
                    self.responded(first, index);
                    return outcome;
                }
                Some(Fault::Full) => is_full[index] = true,
                Some(Fault::Refusal(problem)) => {
                    self.refused(index, &problem);
                    has_refused[index] = true;
                }
                Some(Fault::Away) => {}
            }
            let is_asked = |it: &usize| {
                let index = (first + it) % count;
                !is_full[index] && !has_refused[index]
            };
            let next = (attempt + 1..ROUNDS * count).find(is_asked);
            // A server that is away or full may serve a retry, so its outcome counts more.
            let outcome = match last.take() {
                Some(earlier) if has_refused[index] => earlier,
                _ => outcome,
            };
            match next {
                Some(next) => (attempt, last) = (next, Some(outcome)),
                None => return outcome,
            }
        }
    }
}

/// How long a call waits before its end counts against the server. Callers also drop calls because
/// they stop.
const PATIENCE: Duration = Duration::from_secs(1);

/// A call that waits for a server. If it is dropped after [`PATIENCE`], its caller gave up, which
/// may be the only sign of a server that takes calls and does not respond. Later calls then go to
/// the next server.
struct PendingCall<'a> {
    began: Instant,
    servers: &'a Failover,
    /// The server that calls go to.
    first: usize,
    /// The server that this call waits for.
    index: usize,
    /// Whether its end counts against the server: it has no outcome yet, and `first` is not full.
    is_armed: bool,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        if self.is_armed && self.began.elapsed() >= PATIENCE {
            self.servers.leave(self.first, self.index);
        }
    }
}

/// Makes one call to one server and reads its response to the end. A response that is too long
/// becomes OUT_OF_RANGE, which is also tonic's status if there is one address.
async fn exchange(
    channel: MeasuredChannel,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, BoxError> {
    let (head, body) = channel.oneshot(request).await?.into_parts();
    let body = Limited::new(body, MAX_MESSAGE_BYTES + FRAME_BYTES);
    match body.collect().await {
        Ok(body) => Ok(http::Response::from_parts(head, Body::new(body))),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the response is longer than {MAX_MESSAGE_BYTES} bytes");
            Ok(Status::out_of_range(message).into_http())
        }
        Err(error) => Err(error),
    }
}

/// Why another server may serve a call that this one did not.
enum Fault {
    /// It is not there, or cannot serve the call.
    Away,
    /// It refuses the caller, for example since its data or its token has changed. The text says
    /// why.
    Refusal(String),
    /// It has as much work as it takes. Asking it again at once would add to that.
    Full,
    /// It did not respond before the caller's deadline, or its own.
    Late,
}

/// Returns whether a server cannot serve a call or refuses the caller. One that is full or slow
/// may have nothing wrong with it, and a new connection would be more work for it.
pub(crate) fn is_broken(outcome: &Result<http::Response<Body>, BoxError>) -> bool {
    matches!(fault(outcome), Some(Fault::Away | Fault::Refusal(_)))
}

/// Returns what is wrong with the server, if it failed rather than the call.
fn fault(outcome: &Result<http::Response<Body>, BoxError>) -> Option<Fault> {
    let response = match outcome {
        Err(error) if is_timeout(&**error) => return Some(Fault::Late),
        Err(_) => return Some(Fault::Away),
        Ok(response) => response,
    };
    let Some(status) = Status::from_header_map(response.headers()) else {
        // A proxy may answer by HTTP alone.
        let answer = response.status();
        return match answer {
            StatusCode::OK => None,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let problem = format!("it answers by HTTP status {answer}");
                Some(Fault::Refusal(problem))
            }
            _ => Some(Fault::Away),
        };
    };
    match status.code() {
        // One slow query. Only this server knows that its retry is one, and answers it.
        Code::Unavailable if has_reason(&status, ErrorReason::WallClock) => None,
        // A database that one server cannot read may be whole at another.
        Code::Unavailable | Code::Internal => Some(Fault::Away),
        Code::ResourceExhausted => Some(Fault::Full),
        // tonic's servers end a call by CANCELLED when its deadline has passed.
        Code::DeadlineExceeded | Code::Cancelled => Some(Fault::Late),
        // Data and tokens are changed on one server after the other.
        _ if refuses_caller(&status) || is_without_reason(&status) => {
            Some(Fault::Refusal(status_text(&status)))
        }
        _ => None,
    }
}

/// Returns whether a proxy in front of a server, or a learner, does not take the caller's token. An
/// env-node gives a reason for each token that it refuses, be it the caller's or that of an
/// episode.
fn is_without_reason(status: &Status) -> bool {
    status.code() == Code::Unauthenticated && status.get_details_error_info().is_none()
}

impl Service<http::Request<Body>> for Failover {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
