//! A client for the admin ports, for Prometheus and for an object store.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Returns a free address of this machine. By default Linux gives no port below 32768 to a socket
/// that asks for any, so that no other test takes this one before it is used.
pub(crate) fn free_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut candidates = (0..1_000).map(|_| {
        let number = process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        format!("127.0.0.1:{}", 20_000 + number % 10_000)
    });
    let free = candidates.find(|address| TcpListener::bind(address).is_ok());
    free.expect("no port from 20000 to 30000 is free")
}

/// Sends a request without a body, such as `GET /`, and returns the head and the body of the
/// response, or none if the server is away.
pub(crate) fn request(address: &str, request: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    // Version 1.0 has no chunks.
    write!(
        stream,
        "{request} HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n"
    )
    .ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

/// Returns the body of a page, or none if the server is away or refuses.
pub(crate) fn get(address: &str, path: &str) -> Option<String> {
    let (head, body) = request(address, &format!("GET {path}"))?;
    let status = head.split(' ').nth(1)?;
    (status == "200").then_some(body)
}
