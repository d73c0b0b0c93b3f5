//! Speaks HTTP/2 by hand over TCP. The tests of `learner` and `env-node` use it.

#![allow(dead_code, reason = "each test file uses a part")]

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Kinds of frames.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RESET_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GO_AWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
/// Flags of frames.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
/// The largest frame that a peer takes by default.
pub(crate) const FRAME_BYTES: usize = 16_384;

/// What a client sends first.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The start of a connection: the preface and empty settings.
pub(crate) const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Longer than any limit that these tests set.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a connection on which the server may send `window` bytes on each stream.
pub(crate) async fn connect(address: SocketAddr, window: u32) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let initial = [&[0, 4][..], &window.to_be_bytes()].concat();
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &initial)].concat();
    stream.write_all(&hello).await.unwrap();
    // From the acknowledgement on, the server's windows are those that it has set. That of the
    // connection has an update of its own.
    frame_of(&mut stream, SETTINGS).await;
    frame_of(&mut stream, WINDOW_UPDATE).await;
    let ack = frame(SETTINGS, ACK, 0, &[]);
    stream.write_all(&ack).await.unwrap();
    stream
}

/// Reads until the peer closes or resets the connection, which it must do in time.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset ends the connection too.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes))
        .await
        .expect("the peer did not close the connection");
    bytes
}

/// Reads frames until one of `kind` comes. Returns its payload.
pub(crate) async fn frame_of(stream: &mut TcpStream, kind: u8) -> Vec<u8> {
    let search = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            stream.read_exact(&mut payload).await.unwrap();
            if head[3] == kind {
                return payload;
            }
        }
    };
    timeout(PATIENCE, search).await.expect("no such frame came")
}

/// Encodes a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// Encodes the headers of a gRPC call, each as a literal that is not indexed.
pub(crate) fn grpc_headers(path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "server"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// Encodes a message in the framing of gRPC and gRPC-Web.
pub(crate) fn grpc_frame(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u32).to_be_bytes();
    [&[0][..], &length, message].concat()
}

/// Encodes the frames of a gRPC call on stream `id`.
pub(crate) fn grpc_call(path: &str, id: u32, message: &[u8]) -> Vec<u8> {
    let body = grpc_frame(message);
    let mut frames = frame(HEADERS, END_HEADERS, id, &grpc_headers(path));
    let parts = body.chunks(FRAME_BYTES);
    let last = parts.len() - 1;
    for (number, part) in parts.enumerate() {
        let flags = if number == last { END_STREAM } else { 0 };
        frames.extend(frame(DATA, flags, id, part));
    }
    frames
}
