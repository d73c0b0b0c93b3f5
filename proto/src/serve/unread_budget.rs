//! The budget for the bytes of responses that peers have not read yet, over all calls of a port.
//!
//! Invariant: the bytes of a response count from when the connection takes them until it has sent
//! them, because their buffer carries its share of the budget. The end of the call does not count:
//! a connection buffers whole responses for a peer that does not read.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::transport::BoxError;

/// The budget that all responses share. Cheap to clone.
#[derive(Clone)]
pub struct UnreadBudget(Arc<Semaphore>);

/// A body of a response. It fails when what peers have not read exceeds the budget.
pub struct CountedBody<B> {
    body: B,
    budget: UnreadBudget,
}

/// Bytes that return their share of the budget when they are dropped.
struct CountedBytes {
    bytes: Bytes,
    _share: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl UnreadBudget {
    /// Creates a budget of `bytes`, at most tokio's largest semaphore.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// Returns the body with its bytes counted.
    pub fn count<B>(&self, body: B) -> CountedBody<B> {
        CountedBody {
            body,
            budget: self.clone(),
        }
    }

    /// Returns the share of a message of so many bytes, which counts until it is dropped; none if
    /// the budget does not have it.
    pub fn share(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let count = u32::try_from(bytes).unwrap_or(u32::MAX);
        Arc::clone(&self.0).try_acquire_many_owned(count).ok()
    }

    fn counted(&self, bytes: Bytes) -> Result<Bytes, BoxError> {
        match self.share(bytes.len()) {
            Some(share) => Ok(Bytes::from_owner(CountedBytes {
                bytes,
                _share: share,
            })),
            None => {
                tracing::warn!(
                    bytes = bytes.len(),
                    "a response was cut: peers do not read what they asked for"
                );
                Err("the responses that peers have not read hold too many bytes".into())
            }
        }
    }
}

impl<B> Body for CountedBody<B>
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
        let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let counted = frame
            .map_err(Into::into)
            .and_then(|frame| match frame.into_data() {
                Ok(bytes) => this.budget.counted(bytes).map(Frame::data),
                Err(trailers) => Ok(trailers),
            });
        Poll::Ready(Some(counted))
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
    async fn bytes_count_until_their_buffer_is_dropped() {
        let budget = UnreadBudget::new(10);
        let read = async |bytes: usize| {
            let body = Full::new(Bytes::from(vec![7; bytes]));
            budget.count(body).frame().await.unwrap()
        };
        let first = read(6).await.unwrap().into_data().unwrap();
        assert_eq!(first, vec![7; 6]);
        assert!(read(6).await.is_err());
        let part = first.slice(2..3);
        drop(first);
        assert!(read(6).await.is_err(), "a part keeps the buffer");
        drop(part);
        assert!(read(10).await.is_ok());
    }
}
