//! Talks to OpenEnv's protocols over plain HTTP and sockets.

use std::time::Duration;

use env::EnvSettings;
use env_node::{EnvNodeSettings, OpenEnvConfig, WebConfig};
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, Message},
};

use crate::common::served::{HttpResponse, Served};

/// Longer than anything here takes.
pub(crate) const HANG: Duration = Duration::from_secs(20);

impl Served {
    pub(crate) async fn open_env(openenv: OpenEnvConfig) -> Self {
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

    /// Sends one request on its own connection.
    pub(crate) async fn http(&self, method: &str, path: &str, body: Option<&str>) -> HttpResponse {
        let line = format!("{method} {path}");
        match body {
            Some(body) => {
                let kind = ["content-type: application/json"];
                self.send(&line, &kind, body).await
            }
            None => self.send(&line, &[], "").await,
        }
    }

    /// Sends a POST whose reply is JSON. Returns its status and body.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.post(path, body).await;
        (response.status, response.json())
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
