//! The budget for the bytes of request bodies, over all protocols.
//!
//! Invariant: a byte counts when it arrives, not when it is announced, so a peer that announces
//! much and sends nothing blocks nobody. The bytes of a request are returned when its response is
//! ready.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use axum::{
    BoxError,
    body::{Body, HttpBody},
    extract::Request,
};
use futures::StreamExt;
use tokio::sync::Semaphore;

/// The budget that all requests share.
#[derive(Clone)]
pub(super) struct BodyBudget(Arc<Semaphore>);

/// The bytes that one request holds. Dropping it returns them to the budget.
pub(super) struct BodyReservation {
    budget: Arc<Semaphore>,
    bytes: AtomicUsize,
    is_exceeded: AtomicBool,
}

impl BodyBudget {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// Returns the request with a body that fails at the first chunk for which no budget is left.
    pub(super) fn meter(&self, request: Request) -> (Request, Arc<BodyReservation>) {
        let reservation = Arc::new(BodyReservation {
            budget: Arc::clone(&self.0),
            bytes: AtomicUsize::new(0),
            is_exceeded: AtomicBool::new(false),
        });
        let metered = request.map(|body| {
            if body.is_end_stream() {
                return body;
            }
            let reservation = Arc::clone(&reservation);
            Body::from_stream(body.into_data_stream().map(move |chunk| {
                let chunk = chunk?;
                if reservation.reserve(chunk.len()) {
                    Ok::<_, BoxError>(chunk)
                } else {
                    Err("the bodies in flight hold too many bytes".into())
                }
            }))
        });
        (metered, reservation)
    }
}

impl BodyReservation {
    /// Returns whether the body failed for want of budget.
    pub(super) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }

    fn reserve(&self, bytes: usize) -> bool {
        let count = u32::try_from(bytes).unwrap_or(u32::MAX);
        match self.budget.try_acquire_many(count) {
            Ok(permits) => {
                // The permits are returned all at once, by `drop`.
                permits.forget();
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                true
            }
            Err(_) => {
                self.is_exceeded.store(true, Ordering::Relaxed);
                false
            }
        }
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.budget.add_permits(*self.bytes.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_beyond_the_budget_fails_and_bytes_are_returned() {
        let budget = BodyBudget::new(10);
        let read = async |bytes: usize| {
            let (request, reservation) = budget.meter(Request::new(Body::from(vec![0; bytes])));
            let read = axum::body::to_bytes(request.into_body(), 100).await;
            assert_eq!(read.is_err(), reservation.is_exceeded());
            reservation
        };
        let first = read(6).await;
        assert!(!first.is_exceeded());
        assert!(read(6).await.is_exceeded());
        assert!(!read(4).await.is_exceeded());
        drop(first);
        assert!(!read(10).await.is_exceeded());
    }
}
