//! The server: every protocol of a node on one port.
//!
//! Invariant: a connection that fails, stalls or floods affects only itself. Only `shutdown` ends
//! the accept loop. What the protocols serve is left to `grpc.rs`, `openenv` and `web`.

mod auth;
mod body_budget;
mod call_limits;
pub(crate) mod config;
mod connection;
mod cors;
mod health;
mod protocols;
mod refusals;

use std::{future::Future, io, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};

pub use config::ServerConfig;
use proto::ServerTls;
pub use proto::TlsConfig;

use self::{
    config::seconds,
    connection::{ConnectionLimits, ConnectionPermit},
    protocols::Protocols,
};
use crate::{error::SettingError, metrics, node::EnvNode, openenv::Sockets};

/// How long the server waits before it accepts again after the system refused it a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A node's server, ready to serve.
pub struct Server {
    config: ServerConfig,
    protocols: Protocols,
    tls: ServerTls,
    health: HealthReporter,
    sockets: Sockets,
    draining: CancellationToken,
}

impl Server {
    /// Opens the files that the settings of `node` name.
    ///
    /// # Errors
    /// A certificate, key or token file cannot be used, or an origin is malformed.
    pub fn open(node: &EnvNode) -> Result<Self, SettingError> {
        let config = node.settings().server.clone();
        let draining = CancellationToken::new();
        let sockets = Sockets::new(draining.clone());
        let health = HealthReporter::new();
        let max_watch = seconds(config.max_call_seconds);
        let health_service = health::service(&health, max_watch, draining.clone());
        Ok(Self {
            protocols: Protocols::new(node, &config, health_service, sockets.clone())?,
            tls: ServerTls::open(config.tls.as_ref())?,
            config,
            health,
            sockets,
            draining,
        })
    }

    /// Serves gRPC, gRPC-Web, OpenEnv's protocols and the page on `listener` until `shutdown`
    /// resolves.
    ///
    /// Then the server drains in three steps. For `drain_seconds` health is NOT_SERVING while new
    /// calls are still taken, so that balancers notice before calls fail. Then it stops listening,
    /// and each connection and socket is asked to end after what it is doing. Whatever has not
    /// ended after `connection_grace_seconds` is cut.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        health::report(&self.health, ServingStatus::Serving).await;
        let drained = async {
            shutdown.await;
            health::report(&self.health, ServingStatus::NotServing).await;
            sleep(seconds(self.config.drain_seconds)).await;
        };
        let limits = Arc::new(ConnectionLimits::new(&self.config, self.draining.clone()));
        let mut connections = JoinSet::new();
        tokio::select! {
            () = drained => {}
            () = self.tls.reload_forever() => {}
            () = accept_forever(&listener, &self.config, &mut connections, |stream, permit| {
                let (acceptor, protocols) = (self.tls.acceptor(), self.protocols.clone());
                connection::serve(stream, permit, acceptor, protocols, Arc::clone(&limits))
            }) => {}
        }
        drop(listener);
        self.draining.cancel();
        let ended = async {
            while connections.join_next().await.is_some() {}
            // Upgraded sockets have left the tasks of their connections.
            self.sockets.closed().await;
        };
        let grace = seconds(self.config.connection_grace_seconds);
        if timeout(grace, ended).await.is_err() {
            tracing::warn!(
                "connections were cut: their calls did not end within connection_grace_seconds"
            );
        }
    }
}

/// Accepts connections and spawns a task for each, at most `max_connections` at once.
async fn accept_forever<F>(
    listener: &TcpListener,
    config: &ServerConfig,
    connections: &mut JoinSet<()>,
    serve: impl Fn(TcpStream, ConnectionPermit) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(config.max_connections));
    loop {
        let stream = tokio::select! {
            stream = accept(listener) => stream,
            Some(_) = connections.join_next() => continue,
        };
        match Arc::clone(&permits).try_acquire_owned() {
            Ok(permit) => {
                connections.spawn(serve(stream, permit));
            }
            // Closed at once, so that the peer can turn to another node.
            Err(_) => metrics::connection_refused("full"),
        }
    }
}

/// Accepts the next connection. An error of one peer is ignored. When the system lacks descriptors
/// or memory, this waits until it has some.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _peer)) => return stream,
            Err(error) if is_of_one_peer(&error) => {}
            Err(error) => {
                metrics::connection_refused("system");
                tracing::warn!(%error, "cannot accept connections; trying again");
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
