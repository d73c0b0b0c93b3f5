//! The server: every face of a node on one port.
//!
//! Invariant: a connection that fails, stalls or floods costs itself only; the accept loop ends by `shutdown` and by nothing
//! else. Leaves out what the faces say (`grpc.rs`, `openenv`, `web`).

mod auth;
mod bodies;
mod calls;
pub(crate) mod config;
mod connection;
mod cors;
mod faces;
mod health;
mod refusals;
mod tls;

use std::{future::Future, io, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic_health::{ServingStatus, server::HealthReporter};

pub use config::{ServerConfig, TlsConfig};

use self::{config::seconds, connection::Terms, faces::Faces, tls::Tls};
use crate::{error::SettingError, metrics, node::EnvNode, openenv::Sockets};

/// How long the server waits before it accepts again after the system refused it a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A node's server, ready to serve.
pub struct Server {
    config: ServerConfig,
    faces: Faces,
    tls: Tls,
    health: HealthReporter,
    sockets: Sockets,
    draining: CancellationToken,
}

impl Server {
    /// Opens what the settings of `node` name.
    ///
    /// # Errors
    /// A certificate, key or token file is no use, or an origin is none.
    pub fn open(node: &EnvNode) -> Result<Self, SettingError> {
        let config = node.settings().server.clone();
        let draining = CancellationToken::new();
        let sockets = Sockets::new(draining.clone());
        let health = HealthReporter::new();
        let watched = health::service(&health, seconds(config.max_call_seconds), draining.clone());
        Ok(Self {
            faces: Faces::new(node, &config, watched, sockets.clone())?,
            tls: Tls::open(config.tls.as_ref())?,
            config,
            health,
            sockets,
            draining,
        })
    }

    /// Serves on `listener`: gRPC, gRPC-Web, OpenEnv's faces and the page, until `shutdown` resolves. Then health says
    /// NOT_SERVING, new calls are still taken for `drain_seconds`, then sockets are closed between two frames, and calls
    /// in flight get `connection_grace_seconds` to end.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        health::report(&self.health, ServingStatus::Serving).await;
        let leave = async {
            shutdown.await;
            health::report(&self.health, ServingStatus::NotServing).await;
            sleep(seconds(self.config.drain_seconds)).await;
        };
        let terms = Arc::new(Terms::new(&self.config, self.draining.clone()));
        let mut connections = JoinSet::new();
        tokio::select! {
            () = leave => {}
            () = self.tls.reload_for_ever() => {}
            () = accept_for_ever(&listener, &self.config, &mut connections, |stream, place| {
                let (acceptor, faces) = (self.tls.acceptor(), self.faces.clone());
                connection::serve(stream, place, acceptor, faces, Arc::clone(&terms))
            }) => {}
        }
        drop(listener);
        self.draining.cancel();
        let ended = async {
            while connections.join_next().await.is_some() {}
            self.sockets.ended().await;
        };
        let grace = seconds(self.config.connection_grace_seconds);
        if timeout(grace, ended).await.is_err() {
            tracing::warn!(
                "connections were cut: their calls did not end within connection_grace_seconds"
            );
        }
    }
}

/// Gives every connection its task, and a place among `max_connections`.
async fn accept_for_ever<F>(
    listener: &TcpListener,
    config: &ServerConfig,
    connections: &mut JoinSet<()>,
    serve: impl Fn(TcpStream, connection::Place) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(config.max_connections));
    loop {
        let stream = tokio::select! {
            stream = accept(listener) => stream,
            Some(_) = connections.join_next() => continue,
        };
        match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => {
                connections.spawn(serve(stream, place));
            }
            // Closed at once, so that the peer can turn to another node.
            Err(_) => metrics::connection_refused("full"),
        }
    }
}

/// The next connection. What ails one peer is passed over; a want of descriptors or memory is waited out.
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
