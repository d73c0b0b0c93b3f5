//! The server: every protocol of a node on one port.
//!
//! Invariant: a connection that fails, stalls or floods affects only itself (`proto::serve`). Only
//! `shutdown` ends the accept loop. What the protocols serve is left to `grpc.rs`, `openenv` and
//! `web`.

mod auth;
pub(crate) mod call_limits;
pub(crate) mod config;
mod cors;
mod protocols;
mod refusals;

use std::{future::Future, time::Duration};

use proto::{ServerTls, serve::Port, v1::env_server::EnvServer};
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::server::NamedService;
use tonic_health::{ServingStatus, server::HealthReporter};

pub use config::ServerConfig;

use self::protocols::Protocols;
use crate::{error::SettingError, metrics, node::EnvNode, openenv::Sockets};

/// A node's server, ready to serve.
pub struct Server {
    config: ServerConfig,
    protocols: Protocols,
    port: Port,
    health: HealthReporter,
    sockets: Sockets,
}

impl Server {
    /// Opens the files that the settings of `node` name.
    ///
    /// # Errors
    /// A certificate, key or token file cannot be used.
    pub fn open(node: &EnvNode) -> Result<Self, SettingError> {
        let config = node.settings().server.clone();
        let draining = CancellationToken::new();
        let sockets = Sockets::new(draining.clone());
        let health = HealthReporter::new();
        Ok(Self {
            protocols: Protocols::new(node, &config, &health, &sockets)?,
            port: Port {
                limits: config.connection_limits(),
                tls: ServerTls::open(config.tls.as_ref())?,
                draining,
                refused: |refusal| metrics::connection_refused(refusal.name()),
            },
            config,
            health,
            sockets,
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
        report(&self.health, ServingStatus::Serving).await;
        let drained = async {
            shutdown.await;
            report(&self.health, ServingStatus::NotServing).await;
            sleep(Duration::from_secs_f64(self.config.drain_seconds)).await;
        };
        let protocols = self.protocols.on(listener.local_addr().ok());
        let respond = move |request| protocols.respond(request);
        let mut connections = self.port.serve_until(listener, respond, drained).await;
        let ended = async {
            while connections.join_next().await.is_some() {}
            // Upgraded sockets have left the tasks of their connections.
            self.sockets.closed().await;
        };
        let grace = Duration::from_secs_f64(self.config.connection_grace_seconds);
        if timeout(grace, ended).await.is_err() {
            tracing::warn!(
                "connections were cut: their calls did not end within connection_grace_seconds"
            );
        }
    }
}

/// Sets the health of the `Env` service, and of the server as a whole.
async fn report(reporter: &HealthReporter, status: ServingStatus) {
    for name in [<EnvServer<EnvNode> as NamedService>::NAME, ""] {
        reporter.set_service_status(name, status).await;
    }
}

#[cfg(test)]
mod tests;
