//! Ends connections whose peer does not read a response.
//!
//! hyper takes the next part of a response's body before the peer has room for it, keeps it until
//! there is room for its beginning, and only then asks for the part after it. The body is
//! [`WatchedBody`], which notes when it gave out a part and when it was asked for another. The task
//! of the stream looks at the note. Bodies give out small parts, so little can be left of the last
//! one.
//!
//! The whole connection ends, not the stream alone: h2 sends what a stream has queued before it
//! resets the stream, so a peer without room for it would keep that memory.
//!
//! Invariant: a stream that has nothing to send lives as long as its connection.

use std::{
    cell::Cell,
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Response,
    body::{Body, Frame, SizeHint},
    rt::Executor,
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::StreamLimit;

/// How often in its limit a stream is looked at.
const LOOKS: u32 = 4;

tokio::task_local! {
    /// Since when the stream's body has not been asked for its next part.
    static UNREAD_SINCE: Cell<Option<Instant>>;
    /// Of a connection: cancelled when its peer does not read a response.
    static STALLED: CancellationToken;
}

/// Runs the task of a connection, which spawns its streams. Ends it when its peer does not read.
pub(super) async fn unless_stalled(connection: impl Future<Output = ()>) {
    let stalled = CancellationToken::new();
    tokio::select! {
        () = STALLED.scope(stalled.clone(), connection) => {}
        () = stalled.cancelled() => {
            tracing::debug!("the connection was cut: its peer did not read a response");
        }
    }
}

/// Runs the HTTP/2 streams of a connection, each within its limit.
#[derive(Clone)]
pub(super) struct StreamExecutor(pub(super) StreamLimit);

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        match self.0 {
            StreamLimit::Total(limit) => drop(tokio::spawn(timeout(limit, stream))),
            StreamLimit::Unread(limit) => {
                let stalled = STALLED
                    .try_with(CancellationToken::clone)
                    .unwrap_or_default();
                let watched = while_read(stream, limit, stalled);
                drop(tokio::spawn(UNREAD_SINCE.scope(Cell::new(None), watched)));
            }
        }
    }
}

/// Runs a stream until it ends or its peer has not read for `limit`, which ends the connection.
async fn while_read(stream: impl Future, limit: Duration, stalled: CancellationToken) {
    let mut stream = pin!(stream);
    loop {
        tokio::select! {
            _ = stream.as_mut() => return,
            () = sleep(limit / LOOKS) => {}
        }
        if UNREAD_SINCE.with(|since| since.get().is_some_and(|since| since.elapsed() >= limit)) {
            return stalled.cancel();
        }
    }
}

/// An extension of a response that lifts the limit on how long its peer may leave it unread.
/// Something else limits it.
#[derive(Clone, Copy, Debug)]
pub struct ExemptFromUnreadLimit;

/// The body of a response, which notes whether the peer has room for it.
pub(super) struct WatchedBody<B> {
    body: B,
    is_exempt: bool,
}

impl<B> WatchedBody<B> {
    /// Returns the response with its body watched.
    pub(super) fn of(response: Response<B>) -> Response<Self> {
        let is_exempt = response
            .extensions()
            .get::<ExemptFromUnreadLimit>()
            .is_some();
        response.map(|body| Self { body, is_exempt })
    }
}

impl<B: Body + Unpin> Body for WatchedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        let is_part = matches!(polled, Poll::Ready(Some(Ok(_)))) && !this.is_exempt;
        // Over HTTP/1.1, and for streams with a limit in all, nobody looks.
        let _ = UNREAD_SINCE.try_with(|since| since.set(is_part.then(Instant::now)));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
