//! Speaks HTTP/2 by hand over TCP. HTTP/1.1 is in `common/served.rs`.

use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};

pub(crate) use crate::common::served::{HttpResponse, PATIENCE, connect, read_to_end, request};

/// The start of an HTTP/2 connection: the preface and empty settings.
pub(crate) const HTTP2_HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Reads HTTP/2 frames until one of `kind` comes. Returns its flags and payload.
pub(crate) async fn frame_of(stream: &mut TcpStream, kind: u8) -> (u8, Vec<u8>) {
    let search = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            stream.read_exact(&mut payload).await.unwrap();
            if head[3] == kind {
                return (head[4], payload);
            }
        }
    };
    timeout(PATIENCE, search).await.expect("no such frame came")
}

/// Encodes an HTTP/2 frame.
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
        (":authority", "node"),
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
pub(crate) fn grpc_frame(message: &impl prost::Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[0][..], &length, &body].concat()
}
