//! A server's port: accepts connections, and serves HTTP on each of them within limits.
//!
//! Invariant: a connection that fails, stalls or floods affects only itself. Only the caller ends
//! the accept loop. What is served is the caller's service.

mod body_budget;
mod connection;
mod received;
mod unread;
mod unread_budget;

use std::{convert::Infallible, future::Future, io, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body, Incoming},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

pub use self::unread::ExemptFromUnreadLimit;
pub use body_budget::{BodyBudget, BodyFault, BodyLimits, BodyReservation, MeteredBody};
pub use received::{ReceivedBytes, ReceivedTooMuch};
pub use unread_budget::{CountedBody, UnreadBudget};

use self::connection::Connections;
use crate::{log_pacing::RareWarning, server_tls::ServerTls, transport::BoxError};

/// The largest message of a health check.
pub const HEALTH_BYTES: usize = 1 << 10;
/// The largest message of reflection.
pub const REFLECTION_BYTES: usize = 1 << 14;

/// How long a server waits before it accepts again after the system refused it a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the connections of a port may hold, and for how long.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Connections at once. Further ones are closed as they come.
    pub max_connections: usize,
    /// Calls at once on one connection. The peer holds further ones back.
    pub max_calls_per_connection: u32,
    /// The time for the TLS handshake, for the first request, and for the head of each HTTP/1.1
    /// request.
    pub header_timeout: Duration,
    /// The time between pings.
    pub keepalive_interval: Duration,
    /// The time after which an unanswered ping ends the connection.
    pub keepalive_timeout: Duration,
    /// The time after which a client is asked to open a new connection, and the time for its calls
    /// in flight to end then; none if it need not.
    pub max_age: Option<(Duration, Duration)>,
    /// The time for calls in flight to end when the server stops.
    pub grace: Duration,
    /// How long an HTTP/2 stream may last.
    pub stream: StreamLimit,
    /// Bytes that a peer may send on a stream, and on a connection, before they are read; none for
    /// the defaults of HTTP/2's implementation.
    pub windows: Option<(u32, u32)>,
    /// Whether HTTP/1.1 is refused.
    pub is_http2_only: bool,
}

/// How long an HTTP/2 stream may last.
#[derive(Clone, Copy, Debug)]
pub enum StreamLimit {
    /// It ends after this time.
    Total(Duration),
    /// Its connection ends when the peer has left a part of the response unread for this time.
    Unread(Duration),
}

/// Why a connection was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionRefusal {
    /// There are `max_connections` already.
    Full,
    /// The system lacks descriptors or memory.
    System,
}

impl ConnectionRefusal {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Full, Self::System];

    /// Returns the word for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::System => "system",
        }
    }
}

/// A server's port. The connections outlive it; they end after `draining` is cancelled.
pub struct Port {
    /// What connections may hold.
    pub limits: ConnectionLimits,
    /// TLS of new connections, if any.
    pub tls: ServerTls,
    /// Cancelled when the server stops.
    pub draining: CancellationToken,
    /// Called for each connection that is not served, for metrics.
    pub refused: fn(ConnectionRefusal),
}

impl Port {
    /// Serves connections of `listener` by `service` until `stop` resolves. Then cancels
    /// `draining`, and returns the connections that have not ended yet.
    pub async fn serve_until<S, F, B>(
        &self,
        listener: TcpListener,
        service: S,
        stop: impl Future<Output = ()>,
    ) -> JoinSet<()>
    where
        S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let mut open = JoinSet::new();
        tokio::select! {
            () = stop => {}
            () = self.tls.reload_forever() => {}
            () = self.accept_forever(&listener, service, &mut open) => {}
        }
        drop(listener);
        self.draining.cancel();
        open
    }

    async fn accept_forever<S, F, B>(
        &self,
        listener: &TcpListener,
        service: S,
        open: &mut JoinSet<()>,
    ) where
        S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let connections = Arc::new(Connections::new(&self.limits, self.draining.clone()));
        let permits = Arc::new(Semaphore::new(self.limits.max_connections));
        let mut refusals = Refusals {
            refused: self.refused,
            warning: RareWarning::default(),
        };
        loop {
            let stream = tokio::select! {
                stream = accept(listener, &mut refusals) => stream,
                Some(_) = open.join_next() => continue,
            };
            match Arc::clone(&permits).try_acquire_owned() {
                Ok(permit) => {
                    let (tls, service) = (self.tls.acceptor(), service.clone());
                    let connections = Arc::clone(&connections);
                    open.spawn(async move {
                        connections.serve(stream, permit, tls, service).await;
                    });
                }
                // Closed at once, so that the peer can turn to another server.
                Err(_) => refusals.add(ConnectionRefusal::Full, || {
                    let most = self.limits.max_connections;
                    format!(
                        "all {most} connections (server.max_connections) are open; closing further \
                         ones"
                    )
                }),
            }
        }
    }
}

/// Accepts the next connection. An error of one peer is ignored. When the system lacks descriptors
/// or memory, this waits until it has some.
async fn accept(listener: &TcpListener, refusals: &mut Refusals) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _peer)) => return stream,
            Err(error) if is_of_one_peer(&error) => {}
            Err(error) => {
                refusals.add(ConnectionRefusal::System, || {
                    format!(
                        "cannot accept connections: {error}; trying again; if files ran out, allow \
                         more (ulimit -n)"
                    )
                });
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Connections that are not served: all are counted, and few are logged.
struct Refusals {
    refused: fn(ConnectionRefusal),
    warning: RareWarning,
}

impl Refusals {
    fn add(&mut self, refusal: ConnectionRefusal, reason: impl Fn() -> String) {
        (self.refused)(refusal);
        if let Some(refused) = self.warning.note() {
            tracing::warn!(refused, "{}", reason());
        }
    }
}
