//! Speaks HTTP/1.1 and HTTP/2 by hand over TCP.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// The start of an HTTP/2 connection: the preface and empty settings.
pub(crate) const HTTP2_HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Longer than any limit that these tests set.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An HTTP/1.1 response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

pub(crate) async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Sends one request on a connection of its own. `head` is the request line and the headers,
/// without the length. A host is added if it names none.
pub(crate) async fn request(address: SocketAddr, head: &[&str], body: &[u8]) -> Answer {
    let mut stream = connect(address).await;
    let head = head.join("\r\n");
    let host = match head.contains("\r\nhost: ") {
        true => "",
        false => "\r\nhost: node",
    };
    let head = format!(
        "{head}{host}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    let split = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap();
    let head = String::from_utf8(answer[..split].to_vec()).unwrap();
    let body = &answer[split + 4..];
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head,
        body: if is_chunked {
            dechunk(body)
        } else {
            body.to_vec()
        },
    }
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

fn dechunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = std::str::from_utf8(&bytes[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend(&bytes[end + 2..][..size]);
        bytes = &bytes[end + 2 + size + 2..];
    }
}
