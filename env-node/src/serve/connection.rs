//! One connection, from its handshake to its end.
//!
//! Invariant: every wait has a limit: the handshake, the first request, each HTTP/1.1 head, each
//! HTTP/2 stream, the answer to a ping, the age of the connection, and the shutdown. A WebSocket
//! leaves these limits when its request is upgraded, except for its permit. Its handler monitors it
//! instead.

use std::{
    future::{Future, pending},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::rt::Executor;
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
    config::{ServerConfig, seconds},
    protocols::Protocols,
};

/// Bytes of all headers of a request.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// Bytes that HTTP/1.1 buffers for a peer. At least a head must fit.
const HTTP1_BUFFER_BYTES: usize = 64 << 10;
/// Streams that a peer may open and reset before its connection ends: the "rapid reset" attack,
/// CVE-2023-44487, costs the server far more than the peer.
const MAX_RESET_STREAMS: usize = 128;

/// Permission to hold one of the server's connections. Dropping it returns the permit.
pub(super) type ConnectionPermit = OwnedSemaphorePermit;

/// The settings that all connections share.
pub(super) struct ConnectionLimits {
    http: Builder<TimeoutExecutor>,
    header_timeout: Duration,
    max_age: Duration,
    grace: Duration,
    draining: CancellationToken,
}

impl ConnectionLimits {
    pub(super) fn new(config: &ServerConfig, draining: CancellationToken) -> Self {
        let header_timeout = seconds(config.header_seconds);
        // A call may take half of this. The other half is for the peer to read the response.
        let stream_timeout = seconds(2.0 * config.max_call_seconds);
        let mut http = Builder::new(TimeoutExecutor(stream_timeout));
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(HTTP1_BUFFER_BYTES);
        http.http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(seconds(config.keepalive_interval_seconds))
            .keep_alive_timeout(seconds(config.keepalive_timeout_seconds))
            .max_concurrent_streams(config.max_calls_per_connection)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_pending_accept_reset_streams(MAX_RESET_STREAMS);
        Self {
            http,
            header_timeout,
            max_age: seconds(config.max_connection_age_seconds),
            grace: seconds(config.connection_grace_seconds),
            draining,
        }
    }
}

/// Serves one connection until it ends.
pub(super) async fn serve(
    stream: TcpStream,
    permit: ConnectionPermit,
    tls: Option<TlsAcceptor>,
    protocols: Protocols,
    limits: Arc<ConnectionLimits>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "the connection was lost before its first byte");
        return;
    }
    let stream = PermittedStream {
        stream,
        _permit: permit,
    };
    match tls {
        None => serve_http(stream, protocols, &limits).await,
        Some(acceptor) => match timeout(limits.header_timeout, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => serve_http(stream, protocols, &limits).await,
            Ok(Err(error)) => tracing::debug!(%error, "the TLS handshake failed"),
            Err(_) => tracing::debug!("the TLS handshake took longer than header_seconds"),
        },
    }
}

async fn serve_http<I>(stream: I, protocols: Protocols, limits: &ConnectionLimits)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let has_request = Arc::new(AtomicBool::new(false));
    let service = {
        let has_request = Arc::clone(&has_request);
        hyper::service::service_fn(move |request| {
            has_request.store(true, Ordering::Relaxed);
            protocols.answer(request)
        })
    };
    let connection = limits
        .http
        .serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return log(ended),
        () = limits.draining.cancelled() => {}
        () = sleep(limits.max_age) => {}
        () = no_request(&has_request, limits.header_timeout) => {}
    }
    // HTTP/2 sends GOAWAY, so that the client makes no further calls here. HTTP/1.1 closes after
    // the request at hand.
    connection.as_mut().graceful_shutdown();
    match timeout(limits.grace, connection).await {
        Ok(ended) => log(ended),
        Err(_) => tracing::debug!(
            "the connection was cut: its calls did not end within connection_grace_seconds"
        ),
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

/// Runs each HTTP/2 stream for at most this time: a peer that does not read its response loses it.
#[derive(Clone)]
struct TimeoutExecutor(Duration);

impl<F> Executor<F> for TimeoutExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(timeout(self.0, stream));
    }
}

/// A stream with its permit. The two stay together, because an upgrade moves the stream out of the
/// connection's task into the WebSocket's handler.
struct PermittedStream {
    stream: TcpStream,
    _permit: ConnectionPermit,
}

impl AsyncRead for PermittedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for PermittedStream {
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

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        extract::ws::{WebSocket, WebSocketUpgrade},
        routing::any,
    };
    use futures::{SinkExt, StreamExt};
    use tokio::{net::TcpListener, sync::Semaphore};
    use tokio_tungstenite::{client_async, tungstenite::Message};

    use super::*;

    async fn echo(mut socket: WebSocket) {
        while let Some(Ok(message)) = socket.recv().await {
            if socket.send(message).await.is_err() {
                return;
            }
        }
    }

    /// All limits are far shorter than the socket's life.
    #[tokio::test]
    async fn an_upgraded_socket_outlives_the_limits_and_keeps_its_permit() {
        let config = ServerConfig {
            header_seconds: 0.1,
            max_call_seconds: 0.1,
            max_connection_age_seconds: 0.1,
            connection_grace_seconds: 0.1,
            ..ServerConfig::default()
        };
        let upgrade = async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo);
        let protocols = Protocols::http_only(Router::new().route("/ws", any(upgrade)));
        let draining = CancellationToken::new();
        let limits = Arc::new(ConnectionLimits::new(&config, draining.clone()));
        let permits = Arc::new(Semaphore::new(1));

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn({
            let permits = Arc::clone(&permits);
            async move {
                let (stream, _) = listener.accept().await.unwrap();
                let permit = permits.try_acquire_owned().unwrap();
                serve(stream, permit, None, protocols, limits).await;
            }
        });
        let stream = TcpStream::connect(address).await.unwrap();
        let url = format!("ws://{address}/ws");
        let (mut socket, _) = client_async(url, stream).await.unwrap();
        server.await.unwrap();
        draining.cancel();
        sleep(Duration::from_millis(400)).await;
        for word in ["one", "two"] {
            socket.send(Message::text(word)).await.unwrap();
            let reply = socket.next().await.unwrap().unwrap();
            assert_eq!(reply.into_text().unwrap(), word);
            assert_eq!(permits.available_permits(), 0);
        }
        drop(socket);
        let _permit = timeout(Duration::from_secs(10), permits.acquire())
            .await
            .expect("the permit is returned");
    }
}
