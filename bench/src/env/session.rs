//! A client of one live episode, over either protocol.
//!
//! It reads from a response what a trainer reads (done, reward, errors of the transport) and no
//! more, so that its cost is small beside that of the server it measures.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures::{SinkExt as _, StreamExt as _};
use proto::{
    EnvClient,
    v1::{Action, ResetRequest, StepRequest},
};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, tungstenite::Message};

/// The state of the episode after an env step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepStatus {
    pub(super) done: bool,
    pub(super) reward: f64,
}

/// The client of one live episode.
pub(super) enum EpisodeClient {
    /// gRPC: the episode is the token, which the client holds.
    Grpc { client: EnvClient, token: Vec<u8> },
    /// OpenEnv's WebSocket: the server holds the episode for the socket.
    WebSocket(Box<WebSocketStream<MaybeTlsStream<TcpStream>>>),
}

impl EpisodeClient {
    pub(super) fn grpc(client: EnvClient) -> Self {
        Self::Grpc {
            client,
            token: Vec::new(),
        }
    }

    pub(super) async fn web_socket(url: &str) -> Result<Self> {
        let (socket, _) = tokio_tungstenite::connect_async(url)
            .await
            .with_context(|| format!("cannot open {url}"))?;
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_nodelay(true)?;
        }
        Ok(Self::WebSocket(Box::new(socket)))
    }

    /// Starts an episode. The WebSocket request also names the database, for servers that know no
    /// question ids.
    pub(super) async fn reset(&mut self, question_id: &str, database_name: &str) -> Result<()> {
        match self {
            Self::Grpc { client, token } => {
                let request = ResetRequest {
                    question_id: question_id.to_owned(),
                    ..ResetRequest::default()
                };
                *token = client.reset(request).await?.into_inner().token;
            }
            Self::WebSocket(socket) => {
                let data = json!({"question_id": question_id, "database_name": database_name});
                let request = json!({"type": "reset", "data": data});
                exchange(socket, request.to_string()).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn step(&mut self, action_type: &str, argument: &str) -> Result<StepStatus> {
        match self {
            Self::Grpc { client, token } => {
                let action = Action {
                    action_type: action_type.to_owned(),
                    argument: argument.to_owned(),
                };
                let request = StepRequest {
                    token: std::mem::take(token),
                    action: Some(action),
                };
                let response = client.step(request).await?.into_inner();
                *token = response.token;
                let observation = response.observation.unwrap_or_default();
                Ok(StepStatus {
                    done: observation.done,
                    reward: observation.reward.unwrap_or(0.0),
                })
            }
            Self::WebSocket(socket) => {
                let data = json!({"action_type": action_type, "argument": argument});
                exchange(socket, json!({"type": "step", "data": data}).to_string()).await
            }
        }
    }
}

/// The part of a WebSocket message that a trainer reads.
#[derive(Deserialize)]
struct WebSocketReply {
    #[serde(rename = "type")]
    kind: String,
    data: ReplyData,
}

#[derive(Deserialize)]
struct ReplyData {
    #[serde(default)]
    done: bool,
    reward: Option<f64>,
    message: Option<String>,
}

/// Sends a request and returns the response to it.
async fn exchange(
    socket: &mut WebSocketStream<MaybeTlsStream<TcpStream>>,
    request: String,
) -> Result<StepStatus> {
    socket.send(Message::text(request)).await?;
    loop {
        let message = socket
            .next()
            .await
            .ok_or_else(|| anyhow!("the server closed the socket"))??;
        match message {
            Message::Text(text) => {
                let reply: WebSocketReply = serde_json::from_str(&text)?;
                ensure!(
                    reply.kind == "observation",
                    "{}",
                    reply.data.message.unwrap_or(reply.kind)
                );
                return Ok(StepStatus {
                    done: reply.data.done,
                    reward: reply.data.reward.unwrap_or(0.0),
                });
            }
            Message::Ping(_) | Message::Pong(_) => {}
            other => bail!("unexpected WebSocket message: {other:?}"),
        }
    }
}
