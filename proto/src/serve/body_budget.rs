//! The budget for the bytes of request bodies, over all calls of a port.
//!
//! Invariant: a byte counts when it arrives, not when it is announced, so a peer that announces
//! much and sends nothing blocks nobody. The bytes of a request are returned when its reservation
//! is dropped, which its server does when the response is ready.

use std::{
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::{
    sync::Semaphore,
    time::{Sleep, sleep},
};

use crate::transport::BoxError;

/// The budget that all requests share. Cheap to clone.
#[derive(Clone)]
pub struct BodyBudget(Arc<Semaphore>);

/// The limits of one request's body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Its bytes.
    pub max_bytes: usize,
    /// The time for all of it to arrive; none if something else limits the time.
    pub timeout: Option<Duration>,
}

/// Why a body failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// All bodies together would exceed the budget.
    OverBudget,
    /// It is longer than its limit.
    TooLong,
    /// It did not arrive in time.
    Late,
}

/// The bytes that one request holds. Dropping it returns them to the budget.
pub struct BodyReservation {
    budget: Arc<Semaphore>,
    bytes: AtomicUsize,
    max_bytes: usize,
    fault: OnceLock<BodyFault>,
}

/// A body that fails as soon as it exceeds a limit.
pub struct MeteredBody<B> {
    body: B,
    late: Option<Pin<Box<Sleep>>>,
    reservation: Arc<BodyReservation>,
}

impl BodyBudget {
    /// Creates a budget of `bytes`, at most tokio's largest semaphore.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// Returns the body within the limits, and the bytes that it will hold.
    pub fn meter<B>(&self, body: B, limits: BodyLimits) -> (MeteredBody<B>, Arc<BodyReservation>) {
        let reservation = Arc::new(self.reservation(limits.max_bytes));
        let metered = MeteredBody {
            body,
            late: limits.timeout.map(|limit| Box::pin(sleep(limit))),
            reservation: Arc::clone(&reservation),
        };
        (metered, reservation)
    }

    /// Returns a reservation of no bytes yet, and of at most `max_bytes`.
    pub(super) fn reservation(&self, max_bytes: usize) -> BodyReservation {
        BodyReservation {
            budget: Arc::clone(&self.0),
            bytes: AtomicUsize::new(0),
            max_bytes,
            fault: OnceLock::new(),
        }
    }
}

impl BodyReservation {
    /// Returns why the body failed, if it did. A handler would answer a failed body in its own
    /// words.
    pub fn fault(&self) -> Option<BodyFault> {
        self.fault.get().copied()
    }

    fn fail(&self, fault: BodyFault) -> BoxError {
        // Only the first fault counts.
        let _ = self.fault.set(fault);
        "the body exceeds a limit of the server".into()
    }

    /// Changes the bytes that are held.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<(), BodyFault> {
        let held = self.bytes.get_mut();
        let Some(surplus) = held.checked_sub(bytes) else {
            let more = bytes - *held;
            return self.reserve(more);
        };
        *held = bytes;
        self.budget.add_permits(surplus);
        Ok(())
    }

    fn reserve(&self, bytes: usize) -> Result<(), BodyFault> {
        let count = u32::try_from(bytes).unwrap_or(u32::MAX);
        if self.bytes.load(Ordering::Relaxed).saturating_add(bytes) > self.max_bytes {
            return Err(BodyFault::TooLong);
        }
        let permits = self.budget.try_acquire_many(count);
        // The permits are returned all at once, by `drop`.
        permits.map_err(|_| BodyFault::OverBudget)?.forget();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.budget.add_permits(*self.bytes.get_mut());
    }
}

impl<B> Body for MeteredBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Some(late) = &mut this.late
            && late.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(this.reservation.fail(BodyFault::Late))));
        }
        let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let checked = frame.map_err(Into::into).and_then(|frame| {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let reserved = this.reservation.reserve(bytes);
            reserved.map_err(|fault| this.reservation.fail(fault))?;
            Ok(frame)
        });
        Poll::Ready(Some(checked))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[tokio::test]
    async fn a_body_beyond_a_limit_fails_and_bytes_are_returned() {
        let budget = BodyBudget::new(10);
        let read = async |bytes: usize| {
            let body = Full::new(Bytes::from(vec![0; bytes]));
            let limits = BodyLimits {
                max_bytes: 11,
                timeout: None,
            };
            let (body, reservation) = budget.meter(body, limits);
            let read = body.collect().await;
            assert_eq!(read.is_err(), reservation.fault().is_some());
            reservation
        };
        let first = read(6).await;
        assert_eq!(first.fault(), None);
        assert_eq!(read(6).await.fault(), Some(BodyFault::OverBudget));
        assert_eq!(read(12).await.fault(), Some(BodyFault::TooLong));
        assert_eq!(read(4).await.fault(), None);
        drop(first);
        assert_eq!(read(10).await.fault(), None);
    }

    #[tokio::test]
    async fn a_body_that_does_not_arrive_fails() {
        let limits = BodyLimits {
            max_bytes: 10,
            timeout: Some(Duration::from_millis(50)),
        };
        let silent = http_body_util::StreamBody::new(tokio_stream::pending::<
            Result<Frame<Bytes>, std::io::Error>,
        >());
        let (body, reservation) = BodyBudget::new(10).meter(silent, limits);
        assert!(body.collect().await.is_err());
        assert_eq!(reservation.fault(), Some(BodyFault::Late));
    }
}
