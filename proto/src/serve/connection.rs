//! One connection, from its handshake to its end.
//!
//! Invariant: every wait has a limit: the handshake, the first request, each HTTP/1.1 head, each
//! HTTP/2 stream or what its peer leaves unread, the answer to a ping, and the shutdown. A
//! WebSocket leaves these limits when its request is upgraded, except for its permit. Its handler
//! monitors it instead, by what the stream counts ([`ReceivedBytes`]).

use std::{
    convert::Infallible,
    future::{Future, pending},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body, Incoming},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{
    ConnectionLimits,
    received::ReceivedBytes,
    unread::{StreamExecutor, WatchedBody, unless_stalled},
};
use crate::transport::BoxError;

/// Bytes of all headers of a request.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// Bytes that HTTP/1.1 buffers for a peer. At least a head must fit.
const HTTP1_BUFFER_BYTES: usize = 64 << 10;
/// Streams that a peer may open and reset before its connection ends: the "rapid reset" attack,
/// CVE-2023-44487, costs the server far more than the peer.
const MAX_RESET_STREAMS: usize = 128;

/// The settings that all connections share.
pub(super) struct Connections {
    http: Builder<StreamExecutor>,
    header_timeout: Duration,
    max_age: Option<(Duration, Duration)>,
    grace: Duration,
    draining: CancellationToken,
}

impl Connections {
    pub(super) fn new(limits: &ConnectionLimits, draining: CancellationToken) -> Self {
        let mut http = Builder::new(StreamExecutor(limits.stream));
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(HTTP1_BUFFER_BYTES);
        http.http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(limits.keepalive_interval)
            .keep_alive_timeout(limits.keepalive_timeout)
            .max_concurrent_streams(limits.max_calls_per_connection)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_pending_accept_reset_streams(MAX_RESET_STREAMS);
        if let Some((stream, connection)) = limits.windows {
            http.http2()
                .initial_stream_window_size(stream)
                .initial_connection_window_size(connection);
        }
        Self {
            http: match limits.is_http2_only {
                true => http.http2_only(),
                false => http,
            },
            header_timeout: limits.header_timeout,
            max_age: limits.max_age,
            grace: limits.grace,
            draining,
        }
    }

    /// Serves one connection until it ends. It keeps its permit as long.
    pub(super) async fn serve<S, F, B>(
        &self,
        stream: TcpStream,
        permit: OwnedSemaphorePermit,
        tls: Option<TlsAcceptor>,
        service: S,
    ) where
        S: Fn(Request<Incoming>) -> F + Send + 'static,
        F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "the connection was lost before its first byte");
            return;
        }
        match tls {
            None => unless_stalled(self.serve_http(stream, permit, service)).await,
            Some(acceptor) => match timeout(self.header_timeout, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => unless_stalled(self.serve_http(stream, permit, service)).await,
                Ok(Err(error)) => tracing::debug!(%error, "the TLS handshake failed"),
                Err(_) => tracing::debug!("the TLS handshake took longer than header_seconds"),
            },
        }
    }

    async fn serve_http<I, S, F, B>(&self, stream: I, permit: OwnedSemaphorePermit, service: S)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Fn(Request<Incoming>) -> F + Send + 'static,
        F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let received = ReceivedBytes::default();
        let stream = PermittedStream {
            stream,
            received: received.clone(),
            _permit: permit,
        };
        let has_request = Arc::new(AtomicBool::new(false));
        let service = {
            let has_request = Arc::clone(&has_request);
            hyper::service::service_fn(move |mut request: Request<Incoming>| {
                has_request.store(true, Ordering::Relaxed);
                request.extensions_mut().insert(received.clone());
                let response = service(request);
                async move { response.await.map(WatchedBody::of) }
            })
        };
        let connection = self
            .http
            .serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let grace = tokio::select! {
            ended = connection.as_mut() => return log(ended),
            () = self.draining.cancelled() => self.grace,
            grace = old(self.max_age) => grace,
            () = no_request(&has_request, self.header_timeout) => self.grace,
        };
        // HTTP/2 sends GOAWAY, so that the client makes no further calls here. HTTP/1.1 closes
        // after the request at hand.
        connection.as_mut().graceful_shutdown();
        match timeout(grace, connection).await {
            Ok(ended) => log(ended),
            Err(_) => tracing::debug!(
                "the connection was cut: its calls did not end within {} s",
                grace.as_secs_f64()
            ),
        }
    }
}

/// Resolves when a connection is old. Returns the time for its calls in flight to end.
async fn old(max_age: Option<(Duration, Duration)>) -> Duration {
    match max_age {
        Some((age, grace)) => {
            sleep(age).await;
            grace
        }
        None => pending().await,
    }
}

/// Resolves if no request came within `limit`. hyper's own timeouts begin only with the first byte.
async fn no_request(has_request: &AtomicBool, limit: Duration) {
    sleep(limit).await;
    if has_request.load(Ordering::Relaxed) {
        pending::<()>().await;
    }
}

fn log(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(error, "the connection ended with an error");
    }
}

/// A stream with its permit and its count, above TLS. They stay together, because an upgrade moves
/// the stream out of the connection's task into the WebSocket's handler.
struct PermittedStream<I> {
    stream: I,
    received: ReceivedBytes,
    _permit: OwnedSemaphorePermit,
}

impl<I: AsyncRead + Unpin> AsyncRead for PermittedStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        loop {
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
            let bytes = buffer.filled().len() - before;
            if bytes == 0 || self.received.add(bytes)? {
                return Poll::Ready(Ok(()));
            }
            buffer.set_filled(before);
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for PermittedStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
