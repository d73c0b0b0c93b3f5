//! Starts a server on a free port, and talks to it over plain HTTP and sockets.

use std::{future::pending, net::SocketAddr, time::Duration};

use env::EnvSettings;
use env_node::{EnvNodeSettings, OpenEnvConfig, WebConfig};
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, Message},
};

use crate::common::Fixture;

/// Longer than anything here takes.
pub(crate) const HANG: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
    _fixture: Fixture,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start(openenv: OpenEnvConfig) -> Self {
        let env_node = EnvNodeSettings {
            openenv,
            // OpenEnv's own server has no page by default.
            web: WebConfig {
                enabled: false,
                ..WebConfig::default()
            },
            ..EnvNodeSettings::default()
        };
        Self::start_with(EnvSettings::default(), env_node).await
    }

    pub(crate) async fn start_with(env: EnvSettings, env_node: EnvNodeSettings) -> Self {
        let fixture = Fixture::with(env, env_node);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = env_node::Server::open(&fixture.node).unwrap();
        let task = tokio::spawn(server.serve(listener, pending()));
        Self {
            address,
            task,
            _fixture: fixture,
        }
    }

    /// Sends one request on its own connection. Returns the status, the content type and the body.
    pub(crate) async fn http(
        &self,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let body = body.map_or_else(String::new, |body| {
            format!(
                "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        });
        let end = if body.is_empty() { "\r\n" } else { "" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{body}{end}",
            self.address
        );
        // The server does not read a refused body to its end, so writing may fail.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply).await;
        let reply = String::from_utf8(reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let kind = head
            .lines()
            .find_map(|line| line.strip_prefix("content-type: "))
            .unwrap_or_default();
        (status, kind.to_owned(), body.to_owned())
    }

    /// Sends a POST whose reply is JSON.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, _, reply) = self.http("POST", path, Some(&body.to_string())).await;
        (status, serde_json::from_str(&reply).unwrap())
    }

    pub(crate) async fn socket(&self, path: &str) -> Socket {
        let url = format!("ws://{}{path}", self.address);
        Socket(connect_async(url).await.unwrap().0)
    }
}

pub(crate) struct Socket(pub(crate) WebSocketStream<MaybeTlsStream<TcpStream>>);

/// What a client receives on a socket.
#[derive(Debug, PartialEq)]
pub(crate) enum Received {
    Json(Value),
    /// The server closed the socket with this code.
    Closed(u16),
    /// The connection was lost without a close frame.
    Lost,
}

impl Socket {
    pub(crate) async fn send(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> Received {
        loop {
            let message = timeout(HANG, self.0.next()).await.expect("no reply");
            match message {
                Some(Ok(Message::Text(text))) => {
                    return Received::Json(serde_json::from_str(&text).unwrap());
                }
                Some(Ok(Message::Close(Some(frame)))) => {
                    return Received::Closed(frame.code.into());
                }
                Some(Ok(_)) => {}
                Some(Err(Error::ConnectionClosed | Error::Io(_) | Error::Protocol(_))) | None => {
                    return Received::Lost;
                }
                Some(Err(error)) => panic!("{error}"),
            }
        }
    }

    /// Sends a frame and returns the reply to it.
    pub(crate) async fn ask(&mut self, frame: &Value) -> Value {
        self.send(&frame.to_string()).await;
        match self.next().await {
            Received::Json(reply) => reply,
            other => panic!("{other:?} instead of a reply to {frame}"),
        }
    }
}
