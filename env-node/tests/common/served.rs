//! Serves a node on a port of its own, and speaks HTTP/1.1 to it by hand, with one connection for
//! each request.

use std::{net::SocketAddr, path::Path};

use data::Dataset;
use env::EnvSettings;
use env_node::{EnvNodeSettings, Server, ServerConfig};
use serde_json::Value;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

use super::{Fixture, dataset, http2::read_to_end};

/// A served node. It stops when this is dropped.
pub(crate) struct Served {
    pub(crate) fixture: Fixture,
    pub(crate) address: SocketAddr,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) server: JoinHandle<()>,
}

/// An HTTP/1.1 response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) bytes: Vec<u8>,
}

impl Served {
    /// Serves the dataset that `dataset` makes in a new folder.
    pub(crate) async fn dataset(
        dataset: fn(&Path) -> Dataset,
        env: EnvSettings,
        env_node: EnvNodeSettings,
    ) -> Self {
        let fixture = Fixture::of(dataset, env, env_node);
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

    pub(crate) async fn start_with(env: EnvSettings, env_node: EnvNodeSettings) -> Self {
        Self::dataset(dataset, env, env_node).await
    }

    pub(crate) async fn start(env: EnvSettings) -> Self {
        Self::start_with(env, EnvNodeSettings::default()).await
    }

    pub(crate) async fn with(server: ServerConfig) -> Self {
        let env_node = EnvNodeSettings {
            server,
            ..EnvNodeSettings::default()
        };
        Self::start_with(EnvSettings::default(), env_node).await
    }

    /// Serves OpenEnv's protocols and the page.
    pub(crate) async fn site(env_node: EnvNodeSettings) -> Self {
        Self::start_with(EnvSettings::default(), env_node).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a request: its method and path, header lines, and a body.
    pub(crate) async fn send(&self, line: &str, headers: &[&str], body: &str) -> HttpResponse {
        let line = format!("{line} HTTP/1.1");
        let head = [&[line.as_str()], headers].concat();
        request(self.address, &head, body.as_bytes()).await
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        self.send(&format!("GET {path}"), &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> HttpResponse {
        self.post_text(path, &body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: &str) -> HttpResponse {
        let kind = ["content-type: application/json"];
        self.send(&format!("POST {path}"), &kind, body).await
    }
}

impl HttpResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn body(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap()
    }

    /// Returns the detail of a rejection.
    pub(crate) fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap().to_owned()
    }
}

pub(crate) async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Sends one request on a connection of its own. `head` is the request line and the headers,
/// without the length. A host is added if it names none.
pub(crate) async fn request(address: SocketAddr, head: &[&str], body: &[u8]) -> HttpResponse {
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
    // The server does not read a refused body to its end, so writing may fail.
    let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
    let response = read_to_end(&mut stream).await;
    let split = response
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap();
    let head = String::from_utf8(response[..split].to_vec()).unwrap();
    let body = &response[split + 4..];
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    HttpResponse {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head,
        bytes: if is_chunked {
            dechunk(body)
        } else {
            body.to_vec()
        },
    }
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
