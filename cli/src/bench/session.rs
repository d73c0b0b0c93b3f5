//! One live episode on a server, over either face.
//!
//! Invariant: a reply is checked as far as a trainer reads it (done, reward, error of the transport), no further, so that
//! the client costs little beside the server it measures.

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

/// What a reply says of the episode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) done: bool,
    pub(super) reward: f64,
}

/// One live episode.
pub(super) enum Session {
    /// gRPC: the state is the token, held here.
    Grpc { client: EnvClient, token: Vec<u8> },
    /// OpenEnv's WebSocket: the state is behind the socket.
    WebSocket(Box<WebSocketStream<MaybeTlsStream<TcpStream>>>),
}

impl Session {
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

    /// Starts an episode; a server that knows no question ids gets the database's name.
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
                let frame = json!({"type": "reset", "data": data});
                exchange(socket, frame.to_string()).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn step(&mut self, action_type: &str, argument: &str) -> Result<Reply> {
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
                Ok(Reply {
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

/// The part of a frame that a trainer reads.
#[derive(Deserialize)]
struct Frame {
    #[serde(rename = "type")]
    kind: String,
    data: Body,
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    done: bool,
    #[serde(default)]
    reward: Option<f64>,
    #[serde(default)]
    message: Option<String>,
}

/// Sends one frame and reads its answer.
async fn exchange(
    socket: &mut WebSocketStream<MaybeTlsStream<TcpStream>>,
    frame: String,
) -> Result<Reply> {
    socket.send(Message::text(frame)).await?;
    loop {
        let message = socket
            .next()
            .await
            .ok_or_else(|| anyhow!("the server closed the socket"))??;
        match message {
            Message::Text(text) => {
                let frame: Frame = serde_json::from_str(&text)?;
                ensure!(
                    frame.kind == "observation",
                    "{}",
                    frame.data.message.unwrap_or(frame.kind)
                );
                return Ok(Reply {
                    done: frame.data.done,
                    reward: frame.data.reward.unwrap_or(0.0),
                });
            }
            Message::Ping(_) | Message::Pong(_) => {}
            other => bail!("an unexpected frame: {other:?}"),
        }
    }
}
