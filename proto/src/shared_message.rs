//! Responses whose bytes calls share: messages that are sent without a copy.
//!
//! tonic encodes each message into a buffer of its call. That buffer stays as long as the peer does
//! not read, so a thousand peers that do not read would hold a thousand copies of the weights. A
//! handler that shares its messages returns them beside its response ([`share`]), and
//! [`SharedResponses`] around the service sends them in place of the response's own.
//!
//! Invariant: a call holds references to shared bytes and the heads of few messages. A peer that
//! reads a message slowly cannot keep its bytes for long: the call ends.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame};
use parking_lot::Mutex;
use prost::{
    Message as _,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len},
};
use tokio::{sync::mpsc, time::Instant};
use tonic::{
    Response, Status,
    body::Body,
    codegen::{
        Service,
        http::{self, HeaderMap},
    },
    server::NamedService,
};

use crate::log_pacing::RareWarning;
use crate::v1::{JoinResponse, WeightsResponse, weights_response::Part};

/// Bytes that a body gives out at a time: a frame of HTTP/2. A peer that reads nothing is noticed
/// by the piece that waits, and the one before may lie in the connection's queue.
const PIECE_BYTES: usize = 16 << 10;

/// Bytes a second that a peer must read of a message, and how far it may lag behind.
const LEAST_BYTES_PER_SECOND: f64 = 16_384.0;
const MOST_LAG: Duration = Duration::from_secs(120);

/// Slow readers are said now and then.
static WARNING: LazyLock<Mutex<RareWarning>> = LazyLock::new(Mutex::default);

/// A gRPC message in its encoding, in parts that follow each other.
#[derive(Clone, Debug, Default)]
pub struct SharedMessage {
    parts: Vec<Bytes>,
    length: usize,
}

impl SharedMessage {
    /// Wraps an encoded message. Fields can be appended, since their order is free.
    pub fn new(encoded: Vec<u8>) -> Self {
        let mut message = Self::default();
        message.push(encoded.into());
        message
    }

    /// Appends the field `tag` of type `bytes`. Copies nothing.
    #[must_use]
    pub fn with_bytes(mut self, tag: u32, value: Bytes) -> Self {
        self.push(field_head(tag, value.len()));
        self.push(value);
        self
    }

    /// Appends the field `tag`, whose value is `message`. Copies nothing.
    #[must_use]
    pub fn with_message(mut self, tag: u32, message: Self) -> Self {
        self.push(field_head(tag, message.length));
        self.length += message.length;
        self.parts.extend(message.parts);
        self
    }

    fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.length += part.len();
            self.parts.push(part);
        }
    }

    /// Returns the parts with gRPC's frame.
    fn into_frames(self) -> impl Iterator<Item = Bytes> {
        let mut head = BytesMut::with_capacity(5);
        head.put_u8(0);
        // Callers keep messages below the limit of messages, which is far less.
        head.put_u32(u32::try_from(self.length).unwrap_or(u32::MAX));
        std::iter::once(head.freeze()).chain(self.parts)
    }
}

impl From<WeightsResponse> for SharedMessage {
    fn from(message: WeightsResponse) -> Self {
        // Fields of `WeightsResponse` and `SnapshotChunk`.
        const CHUNK: u32 = 2;
        const DATA: u32 = 3;
        let Some(Part::Chunk(mut chunk)) = message.part else {
            return Self::new(message.encode_to_vec());
        };
        let data = std::mem::take(&mut chunk.data);
        let chunk = Self::new(chunk.encode_to_vec()).with_bytes(DATA, data);
        Self::default().with_message(CHUNK, chunk)
    }
}

impl From<JoinResponse> for SharedMessage {
    fn from(mut message: JoinResponse) -> Self {
        // Fields of `JoinResponse` and `ModelFile`.
        const MODEL_FILES: u32 = 3;
        const CONTENT: u32 = 2;
        let files = std::mem::take(&mut message.model_files);
        let head = Self::new(message.encode_to_vec());
        files.into_iter().fold(head, |message, mut file| {
            let content = std::mem::take(&mut file.content);
            let file = Self::new(file.encode_to_vec()).with_bytes(CONTENT, content);
            message.with_message(MODEL_FILES, file)
        })
    }
}

/// Returns the key and the length of a field.
fn field_head(tag: u32, length: usize) -> Bytes {
    let length = length as u64;
    let mut head = BytesMut::with_capacity(key_len(tag) + encoded_len_varint(length));
    encode_key(tag, WireType::LengthDelimited, &mut head);
    encode_varint(length, &mut head);
    head.freeze()
}

/// A stream of messages; it ends after an error.
pub type SharedMessages = mpsc::Receiver<Result<SharedMessage, Status>>;

/// Returns a response that consists of `messages` once it has passed [`SharedResponses`]. `unsent`
/// stands in for the messages in the signature of the handler.
pub fn share<T>(messages: SharedMessages, unsent: T) -> Response<T> {
    let mut response = Response::new(unsent);
    let slot = Arc::new(Mutex::new(Some(messages)));
    response.extensions_mut().insert(Slot(slot));
    response
}

/// The messages on their way from the handler to [`SharedResponses`].
#[derive(Clone)]
struct Slot(Arc<Mutex<Option<SharedMessages>>>);

/// A service whose handlers may [`share`] their messages.
#[derive(Clone, Debug)]
pub struct SharedResponses<S>(pub S);

impl<S: NamedService> NamedService for SharedResponses<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for SharedResponses<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            if let Some(Slot(slot)) = response.extensions_mut().remove() {
                let messages = slot.lock().take();
                if let Some(messages) = messages {
                    *response.body_mut() = Body::new(SharedBody::new(messages));
                }
            }
            Ok(response)
        })
    }
}

/// The body of a response that consists of shared messages.
struct SharedBody {
    messages: SharedMessages,
    parts: VecDeque<Bytes>,
    /// When the message was begun, and how many of its bytes are given out.
    begun: Option<Instant>,
    given: usize,
    is_done: bool,
}

impl SharedBody {
    fn new(messages: SharedMessages) -> Self {
        Self {
            messages,
            parts: VecDeque::new(),
            begun: None,
            given: 0,
            is_done: false,
        }
    }

    /// Returns the next piece of the message; an error if the peer reads too slowly.
    fn next_piece(&mut self, mut part: Bytes) -> Result<Frame<Bytes>, Status> {
        let since = self.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        if is_too_slow(self.given, since) {
            self.is_done = true;
            self.parts.clear();
            self.messages.close();
            while self.messages.try_recv().is_ok() {}
            let fault = format!(
                "the message was read too slowly: less than {LEAST_BYTES_PER_SECOND} bytes a second"
            );
            if let Some(calls) = WARNING.lock().note() {
                tracing::warn!(calls, "a call was ended: {fault}");
            }
            return Err(Status::deadline_exceeded(fault));
        }
        if part.len() > PIECE_BYTES {
            self.parts.push_front(part.split_off(PIECE_BYTES));
        }
        self.given += part.len();
        Ok(Frame::data(part))
    }
}

/// Returns whether a peer that has taken so many bytes of a message in this time reads too slowly.
fn is_too_slow(given: usize, since: Duration) -> bool {
    let allowed = Duration::from_secs_f64(given as f64 / LEAST_BYTES_PER_SECOND);
    since > allowed + MOST_LAG
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(part) = self.parts.pop_front() {
            return Poll::Ready(Some(self.next_piece(part)));
        }
        if self.is_done {
            return Poll::Ready(None);
        }
        let status = match ready!(self.messages.poll_recv(context)) {
            Some(Ok(message)) => {
                let mut parts = message.into_frames();
                let head = parts.next().unwrap_or_default();
                self.parts.extend(parts);
                (self.begun, self.given) = (Some(Instant::now()), 0);
                return Poll::Ready(Some(Ok(Frame::data(head))));
            }
            Some(Err(status)) => status,
            None => Status::ok(""),
        };
        self.is_done = true;
        let mut trailers = HeaderMap::new();
        let added = status.add_header(&mut trailers);
        Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_done && self.parts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use prost::Message;

    use super::*;
    use crate::{Snapshot, v1::ModelFile};

    fn assert_encodes<M>(message: &M)
    where
        M: Message + Default + PartialEq + Clone + Into<SharedMessage>,
    {
        let frames: Vec<Bytes> = message.clone().into().into_frames().collect();
        let bytes = frames.concat();
        let length = u32::from_be_bytes(bytes[1..5].try_into().unwrap());
        assert_eq!((bytes[0], length as usize), (0, bytes.len() - 5));
        assert!(M::decode(&bytes[5..]).unwrap() == *message);
    }

    #[test]
    fn shared_messages_are_the_messages() {
        for body in [vec![], vec![7; 300], vec![1; (1 << 20) + 1]] {
            Snapshot::new(1 << 40, body)
                .messages()
                .for_each(|chunk| assert_encodes(&chunk));
        }
        let file = |name: &str, content: &'static [u8]| ModelFile {
            name: name.to_owned(),
            content: content.into(),
        };
        assert_encodes(&JoinResponse {
            run_id: "run".to_owned(),
            model_files: vec![file("a", b"content"), file("", b"")],
            policy_version: 3,
            ..JoinResponse::default()
        });
    }

    #[test]
    fn a_message_must_be_read_at_a_least_rate() {
        let lag = MOST_LAG.as_secs();
        for (given, seconds, is_slow) in [
            (0, lag, false),
            (0, lag + 1, true),
            (1 << 20, lag + 63, false),
            (1 << 20, lag + 65, true),
            (64 << 20, 60 * 60, false),
        ] {
            let since = Duration::from_secs(seconds);
            assert_eq!(is_too_slow(given, since), is_slow, "{given} in {seconds} s");
        }
    }

    /// A peer that reads slowly gets an error, and the bytes are free.
    #[tokio::test]
    async fn a_slow_reader_does_not_keep_the_bytes() {
        let bytes = Bytes::from(vec![7; 1 << 20]);
        let (sender, messages) = mpsc::channel(4);
        for _ in 0..2 {
            let message = SharedMessage::default().with_bytes(1, bytes.clone());
            sender.send(Ok(message)).await.unwrap();
        }
        let mut body = SharedBody::new(messages);
        for _ in 0..4 {
            let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
            assert!(matches!(frame, Some(Ok(_))));
        }
        let lag = MOST_LAG + Duration::from_secs(10);
        body.begun = Instant::now().checked_sub(lag);
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let Some(Err(fault)) = frame else {
            panic!("the slow reader gets more");
        };
        assert_eq!(fault.code(), tonic::Code::DeadlineExceeded);
        assert!(body.is_end_stream() && sender.is_closed());
        assert!(bytes.is_unique(), "the body holds the bytes");
    }

    #[test]
    fn the_data_of_a_chunk_is_not_copied() {
        let snapshot = Snapshot::new(1, vec![7; 1000]);
        let own = snapshot.body().as_ptr_range();
        let messages = snapshot.messages().map(SharedMessage::from);
        let parts = messages.flat_map(SharedMessage::into_frames);
        let shared = parts.filter(|part| own.contains(&part.as_ptr()));
        assert_eq!(shared.map(|part| part.len()).sum::<usize>(), 1000);
    }
}
