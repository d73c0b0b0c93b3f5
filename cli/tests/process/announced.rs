//! Tests that servers take memory for the bytes that arrive, and not for those that a peer
//! announces.

#[path = "../../../proto/tests/support/memory.rs"]
mod memory;

use std::{convert::Infallible, process::Child, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::StreamBody;
use hyper::{
    Request,
    body::Frame,
    client::conn::http2,
    header::{CONTENT_TYPE, TE},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, runtime::Runtime, task::JoinSet, time::sleep};

use crate::program::{serve, smoke_learner};

/// Calls at once. If each took one huge page, they would take a gibibyte.
const CALLS: usize = 500;
/// What the calls may take.
const MAX_GROWTH: usize = 100 << 20;

#[test]
fn an_env_node_takes_no_memory_for_announced_bytes() {
    let (env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let growth = growth_by_announcements(&env_node.0, &env, "/sqlenv.v1.Env/Reset", 6 << 20);
    assert!(growth < MAX_GROWTH, "{growth} bytes");
}

#[test]
fn a_learner_takes_no_memory_for_announced_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let (learner, address) = serve(&smoke_learner(&env, run_dir.to_str().unwrap()));
    let submit = "/sqlenv.v1.Learner/Submit";
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    for (path, length) in [(submit, 6 << 20), (reflection, 3 << 20)] {
        let growth = growth_by_announcements(&learner.0, &address, path, length);
        assert!(growth < MAX_GROWTH, "{path}: {growth} bytes");
    }
}

/// Returns the memory that a server takes for calls that announce `length` bytes and send 20.
fn growth_by_announcements(server: &Child, address: &str, path: &str, length: u32) -> usize {
    let resident = || memory::measured(&server.id().to_string(), "VmRSS:");
    let before = resident();
    Runtime::new().unwrap().block_on(async {
        let port = address.strip_prefix("http://").unwrap();
        let stream = TcpStream::connect(port).await.unwrap();
        let connected = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = connected.unwrap();
        tokio::spawn(connection);
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            let request = announcement(&format!("{address}{path}"), length);
            let mut sender = sender.clone();
            calls.spawn(async move { sender.send_request(request).await });
        }
        sleep(Duration::from_secs(2)).await;
        resident().saturating_sub(before)
    })
}

/// Returns a request whose body stays open after 20 bytes of its message.
fn announcement(
    uri: &str,
    length: u32,
) -> Request<StreamBody<impl stream::Stream<Item = Result<Frame<Bytes>, Infallible>> + use<>>> {
    let head = [&[0][..], &length.to_be_bytes(), &[0; 20]].concat();
    let first = stream::once(async { Ok(Frame::data(Bytes::from(head))) });
    Request::post(uri)
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .body(StreamBody::new(first.chain(stream::pending()).boxed()))
        .unwrap()
}
