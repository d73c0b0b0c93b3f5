//! The warnings of a client. This is a process of its own: `tracing` remembers for a whole process
//! whether a warning is wanted, and a test without a subscriber that comes to it first wants none.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

#[path = "support/servers.rs"]
mod servers;

use std::{
    io::{self, Seek as _},
    sync::atomic::Ordering,
};

use proto::{EnvClient, Transport, v1::ResetRequest};
use servers::{foreign, nobody, serve_counted, serve_full};
use tonic::Code;

/// The other server may serve a retry. However many calls the first one refuses, they are worth one
/// line.
#[tokio::test]
async fn a_server_of_another_environment_ends_no_call_while_another_is_away_or_full() {
    let mut log = tempfile::tempfile().unwrap();
    let logging = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(log.try_clone().unwrap())
        .finish();
    let _logging = tracing::subscriber::set_default(logging);
    let (full, _) = serve_full().await;
    for (other, expected) in [
        (nobody().await, Code::Unavailable),
        (full, Code::ResourceExhausted),
    ] {
        let (changed, calls) = serve_counted(Some(foreign())).await;
        for list in [format!("{changed},{other}"), format!("{other},{changed}")] {
            calls.store(0, Ordering::Relaxed);
            let mut client = EnvClient::new(Transport::dial(&list).unwrap());
            for _ in 0..2 {
                let status = client.reset(ResetRequest::default()).await.unwrap_err();
                assert_eq!(status.code(), expected, "{status}");
            }
            assert_eq!(calls.load(Ordering::Relaxed), 2);
        }
    }
    log.rewind().unwrap();
    let lines = io::read_to_string(log).unwrap();
    let found = lines.matches("is of no use to this run").count();
    assert_eq!(found, 4, "one for each list: {lines}");
}
