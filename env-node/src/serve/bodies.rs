//! How many bytes of requests are held at once, over every face.
//!
//! Invariant: a byte is counted when it arrives, so that a peer which announces much and sends nothing keeps nobody out;
//! what a request holds is given back when its answer is there.

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

/// Room for the bodies of all requests.
#[derive(Clone)]
pub(super) struct Bodies(Arc<Semaphore>);

/// What one request holds of the room; given back when dropped.
pub(super) struct Held {
    room: Arc<Semaphore>,
    bytes: AtomicUsize,
    cut: AtomicBool,
}

impl Bodies {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// The request with a body that ends in an error where the room does.
    pub(super) fn meter(&self, request: Request) -> (Request, Arc<Held>) {
        let held = Arc::new(Held {
            room: Arc::clone(&self.0),
            bytes: AtomicUsize::new(0),
            cut: AtomicBool::new(false),
        });
        let metered = request.map(|body| {
            if body.is_end_stream() {
                return body;
            }
            let held = Arc::clone(&held);
            Body::from_stream(body.into_data_stream().map(move |chunk| {
                let chunk = chunk?;
                if held.take(chunk.len()) {
                    Ok::<_, BoxError>(chunk)
                } else {
                    Err("no room for the body".into())
                }
            }))
        });
        (metered, held)
    }
}

impl Held {
    /// Whether the body was cut for want of room.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let count = u32::try_from(bytes).unwrap_or(u32::MAX);
        match self.room.try_acquire_many(count) {
            Ok(room) => {
                room.forget();
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                true
            }
            Err(_) => {
                self.cut.store(true, Ordering::Relaxed);
                false
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.add_permits(*self.bytes.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_beyond_the_room_is_cut_and_room_is_given_back() {
        let bodies = Bodies::new(10);
        let read = async |bytes: usize| {
            let (request, held) = bodies.meter(Request::new(Body::from(vec![0; bytes])));
            let read = axum::body::to_bytes(request.into_body(), 100).await;
            assert_eq!(read.is_err(), held.is_cut());
            held
        };
        let first = read(6).await;
        assert!(!first.is_cut());
        assert!(read(6).await.is_cut());
        assert!(!read(4).await.is_cut());
        drop(first);
        assert!(!read(10).await.is_cut());
    }
}
