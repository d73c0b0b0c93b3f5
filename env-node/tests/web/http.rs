//! Starts a node on a real port, and speaks HTTP/1.1 by hand with one connection for each request.

use crate::common;
use env::EnvSettings;
use env_node::{EnvNodeSettings, Server};
use serde_json::Value;
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A served node. Its folder lives as long as this.
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    _folder: TempDir,
}

/// An HTTP response.
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Site {
    /// Serves the dataset that `dataset` makes in a new folder.
    pub(crate) async fn serve(
        dataset: fn(&std::path::Path) -> data::Dataset,
        env_node: EnvNodeSettings,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dataset = dataset(folder.path());
        let node = common::node(dataset, EnvSettings::default(), env_node);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::open(&node).unwrap();
        tokio::spawn(server.serve(listener, std::future::pending()));
        Self {
            address,
            _folder: folder,
        }
    }

    /// Sends a request. `head` holds further header lines, each with its line end.
    pub(crate) async fn send(&self, line: &str, head: &str, body: &str) -> HttpResponse {
        let request = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n{head}\r\n{body}",
            self.address,
            body.len()
        );
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // The server does not read a refused body to its end, so writing may fail.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        HttpResponse {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        self.send(&format!("GET {path}"), "", "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> HttpResponse {
        self.post_text(path, &body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: &str) -> HttpResponse {
        self.send(
            &format!("POST {path}"),
            "Content-Type: application/json\r\n",
            body,
        )
        .await
    }
}

impl HttpResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns the value of a header.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let start = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&start))
    }

    /// Returns the detail of a rejection.
    pub(crate) fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap().to_owned()
    }
}
