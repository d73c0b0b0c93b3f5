//! Tests the server over real ports: clients of each protocol, slow and hostile peers,
//! authentication, limits, and shutdown.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod episodes;
mod failover;
mod grpc_web;
mod lifecycle;
mod limits;
mod peers;
mod process;
mod raw;
mod refusals;
mod security;

use std::net::SocketAddr;

use common::Fixture;
use env::EnvSettings;
use env_node::{EnvNodeSettings, Server, ServerConfig};
use proto::{EnvClient, Transport};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

/// A query that runs until its budget ends.
const ENDLESS: &str = "SELECT count(*) FROM Cars a, Cars b, Cars c, Cars d, Cars e, Cars f";

/// A node on a port of its own.
struct Served {
    fixture: Fixture,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
}

impl Served {
    async fn start(env: EnvSettings) -> Self {
        Self::start_with(env, EnvNodeSettings::default()).await
    }

    async fn start_with(env: EnvSettings, env_node: EnvNodeSettings) -> Self {
        let fixture = Fixture::with(env, env_node);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let server = Server::open(&fixture.node).unwrap();
        let server = tokio::spawn(server.serve(listener, async {
            let _ = stopped.await;
        }));
        Self {
            fixture,
            address,
            stop: Some(stop),
            server,
        }
    }

    async fn with(server: ServerConfig) -> Self {
        let env_node = EnvNodeSettings {
            server,
            ..EnvNodeSettings::default()
        };
        Self::start_with(EnvSettings::default(), env_node).await
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn transport(&self) -> Transport {
        Transport::dial(&self.url()).unwrap()
    }

    /// A client with a connection of its own.
    fn client(&self) -> EnvClient {
        EnvClient::new(self.transport())
    }

    /// Starts the shutdown of the server.
    fn tell_to_stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Asserts that the server works, by an episode over its port.
    async fn assert_well(&self) {
        let over_tcp = Fixture {
            client: self.client(),
            folder: tempfile::tempdir().unwrap(),
            node: self.fixture.node.clone(),
        };
        let actions = [
            ("DESCRIBE", "Cars"),
            ("QUERY", "SELECT count(*) FROM Cars"),
            ("ANSWER", "40"),
        ];
        let replies = over_tcp.play("cars-1", "sqlenv-final", &actions).await;
        assert_eq!(common::rewards(&replies), [0.0, 0.15, 1.0]);
    }
}
