//! One connection, from its handshake to its end.
//!
//! Invariant: every wait has a limit: the handshake, the first request, each HTTP/1.1 head, each HTTP/2 stream, the answer
//! to a ping, the age of the connection, its farewell. A socket that a request upgraded leaves these limits, save for its
//! place; whoever upgraded it watches it.

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
    faces::Faces,
};

/// Bytes of all headers of a request.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// Bytes that HTTP/1.1 buffers for a peer; at least a head must fit.
const HTTP1_BUFFER_BYTES: usize = 64 << 10;
/// Streams that a peer may open and reset at once before it is taken for an attacker ("rapid reset").
const MAX_RESET_STREAMS: usize = 128;

/// A place among the connections; free again when dropped.
pub(super) type Place = OwnedSemaphorePermit;

/// What holds for every connection.
pub(super) struct Terms {
    http: Builder<Bounded>,
    header: Duration,
    age: Duration,
    grace: Duration,
    draining: CancellationToken,
}

impl Terms {
    pub(super) fn new(config: &ServerConfig, draining: CancellationToken) -> Self {
        let header = seconds(config.header_seconds);
        // As long again as a call may take, to hand over its reply.
        let stream = seconds(2.0 * config.max_call_seconds);
        let mut http = Builder::new(Bounded(stream));
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(header)
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
            header,
            age: seconds(config.max_connection_age_seconds),
            grace: seconds(config.connection_grace_seconds),
            draining,
        }
    }
}

/// Serves one peer until it leaves, fails, or is asked to go.
pub(super) async fn serve(
    stream: TcpStream,
    place: Place,
    tls: Option<TlsAcceptor>,
    faces: Faces,
    terms: Arc<Terms>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection lost at its start");
        return;
    }
    let stream = Placed {
        stream,
        _place: place,
    };
    match tls {
        None => converse(stream, faces, &terms).await,
        Some(acceptor) => match timeout(terms.header, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => converse(stream, faces, &terms).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        },
    }
}

async fn converse<I>(stream: I, faces: Faces, terms: &Terms)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let spoken = Arc::new(AtomicBool::new(false));
    let service = {
        let spoken = Arc::clone(&spoken);
        hyper::service::service_fn(move |request| {
            spoken.store(true, Ordering::Relaxed);
            faces.answer(request)
        })
    };
    let connection = terms
        .http
        .serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return log(ended),
        () = terms.draining.cancelled() => {}
        () = sleep(terms.age) => {}
        () = silence(&spoken, terms.header) => {}
    }
    connection.as_mut().graceful_shutdown();
    match timeout(terms.grace, connection).await {
        Ok(ended) => log(ended),
        Err(_) => tracing::debug!("connection cut: its calls did not end in time"),
    }
}

/// Resolves if nothing was asked within `limit`. HTTP's own limits begin only after the first bytes.
async fn silence(spoken: &AtomicBool, limit: Duration) {
    sleep(limit).await;
    if spoken.load(Ordering::Relaxed) {
        pending().await
    }
}

fn log(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(error, "connection ended");
    }
}

/// Runs HTTP/2 streams, none for longer than this: a peer that does not read its reply loses it.
#[derive(Clone)]
struct Bounded(Duration);

impl<F> Executor<F> for Bounded
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(timeout(self.0, stream));
    }
}

/// A stream that gives its place back when it is dropped, whoever holds it by then.
struct Placed {
    stream: TcpStream,
    _place: Place,
}

impl AsyncRead for Placed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Placed {
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
    async fn an_upgraded_socket_outlives_the_limits_and_keeps_its_place() {
        let config = ServerConfig {
            header_seconds: 0.1,
            max_call_seconds: 0.1,
            max_connection_age_seconds: 0.1,
            connection_grace_seconds: 0.1,
            ..ServerConfig::default()
        };
        let upgrade = async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo);
        let faces = Faces::of(Router::new().route("/ws", any(upgrade)));
        let draining = CancellationToken::new();
        let terms = Arc::new(Terms::new(&config, draining.clone()));
        let places = Arc::new(Semaphore::new(1));

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn({
            let places = Arc::clone(&places);
            async move {
                let (stream, _) = listener.accept().await.unwrap();
                let place = places.try_acquire_owned().unwrap();
                serve(stream, place, None, faces, terms).await;
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
            assert_eq!(places.available_permits(), 0);
        }
        drop(socket);
        let _place = timeout(Duration::from_secs(10), places.acquire())
            .await
            .expect("the place is given back");
    }
}
