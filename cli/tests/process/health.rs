//! Tests the health check of a container: `sqlenv health`.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    process::Command,
    thread,
};

use crate::{
    http::free_address,
    outcomes::{fail, succeed},
    program::{serve, sqlenv},
};

fn health(address: &str) -> Command {
    sqlenv(&["health", address])
}

#[track_caller]
fn fails_with(address: &str, expected: &str) {
    let text = fail(&mut health(address), 1);
    assert!(text.contains(expected) && text.contains(address), "{text}");
}

/// A node that serves is healthy, and one that ended is not.
#[test]
fn a_node_is_healthy_while_it_serves() {
    let admin = free_address();
    let (node, _) = serve(&["env-node", "--listen", "127.0.0.1:0", "--admin", &admin]);
    let port = admin.rsplit(':').next().unwrap();
    for address in [
        &admin,
        &format!("http://{admin}"),
        &format!("localhost:{port}"),
    ] {
        succeed(&mut health(address));
    }
    fail(&mut health("localhost"), 2);
    drop(node);
    fails_with(&admin, "start the role with --admin");
}

/// Answers one request with `response`.
fn answering(response: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(response.as_bytes());
    });
    address
}

#[test]
fn a_role_that_is_not_ready_and_another_server_are_told_apart() {
    let busy = answering("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
    fails_with(&busy, "is not ready");
    let other = answering("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    fails_with(&other, "not the admin port");
    fails_with(&answering("SSH-2.0-OpenSSH\r\n"), "not the admin port");
}
