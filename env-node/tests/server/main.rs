//! Tests the server over real ports: clients of each protocol, slow and hostile peers,
//! authentication, limits, and shutdown.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../../proto/tests/support/authority.rs"]
mod authority;
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
#[path = "../common/transcripts.rs"]
mod transcripts;

use common::{ENDLESS, Fixture, served::Served};
use proto::{EnvClient, Transport};

impl Served {
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
