//! The server: every face of a node on one port.
//!
//! Invariant: a connection that fails, stalls or floods costs itself only; the accept loop ends by `shutdown` and by nothing
//! else. Leaves out what the faces say (`grpc.rs`, `openenv`, `web`).

mod auth;
mod calls;
mod config;
mod connection;
mod cors;
mod faces;
mod tls;

use std::{future::Future, io, sync::Arc, time::Duration};

use proto::v1::env_server::EnvServer;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

pub use config::{ServerConfig, TlsConfig};

use self::{config::seconds, connection::Terms, faces::Faces, tls::Tls};
use crate::{error::EnvError, metrics, node::EnvNode, openenv::Sockets};

/// How long the server waits before it accepts again after the system refused it a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `node` on `listener`: gRPC, gRPC-Web, OpenEnv's faces and the page, until `shutdown` resolves. Then health says
/// NOT_SERVING, new calls are still taken for `drain_seconds`, then sockets are closed between two frames, and calls in
/// flight get `connection_grace_seconds` to end.
///
/// # Errors
/// A certificate, key or token file that the settings name is no use.
pub async fn serve(
    listener: TcpListener,
    node: EnvNode,
    shutdown: impl Future<Output = ()>,
) -> Result<(), EnvError> {
    let config = node.server_config().clone();
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<EnvServer<EnvNode>>().await;
    let draining = CancellationToken::new();
    let sockets = Sockets::new(draining.clone());
    let faces = Faces::new(&node, &config, health_service, sockets.clone())?;
    let tls = Tls::open(config.tls.as_ref())?;
    let terms = Arc::new(Terms::new(&config, draining.clone()));

    let leave = async {
        shutdown.await;
        health.set_not_serving::<EnvServer<EnvNode>>().await;
        health
            .set_service_status("", tonic_health::ServingStatus::NotServing)
            .await;
        sleep(seconds(config.drain_seconds)).await;
    };
    let mut connections = JoinSet::new();
    tokio::select! {
        () = leave => {}
        () = tls.reload_for_ever() => {}
        () = accept_for_ever(&listener, &config, &mut connections, |stream, place| {
            connection::serve(stream, place, tls.acceptor(), faces.clone(), Arc::clone(&terms))
        }) => {}
    }
    drop(listener);
    draining.cancel();
    let ended = async {
        while connections.join_next().await.is_some() {}
        sockets.ended().await;
    };
    if timeout(seconds(config.connection_grace_seconds), ended)
        .await
        .is_err()
    {
        tracing::warn!(
            "connections were cut: their calls did not end within connection_grace_seconds"
        );
    }
    Ok(())
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
