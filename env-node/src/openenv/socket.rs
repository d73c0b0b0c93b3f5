//! WebSockets of sessions: responds to frames in order, and closes when the server stops.
//!
//! Invariant: the session is freed before the peer can see that the socket closed, so a client that
//! reconnects at once gets a session. It is freed at once when [`MonitoredSocket`] notices that the
//! peer is gone. The bytes of a message count until its response is ready. The contents of frames
//! are left to `ws.rs` and `mcp.rs`.

use axum::extract::ws::{Message, WebSocket};
use proto::serve::ReceivedBytes;

use super::{mcp, service::OpenEnvService, session_registry::SessionGuard, ws};
use crate::monitored_socket::{GOING_AWAY, MonitoredSocket, NORMAL, SocketEnd};

/// The protocol of a socket's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketProtocol {
    /// `/ws`: reset, step, state.
    OpenEnv,
    /// `/mcp`: JSON-RPC.
    Mcp,
}

/// The response to a frame.
#[derive(Debug)]
pub(super) enum FrameResponse {
    Text(String),
    /// A text, after which the socket closes.
    Last(String),
    Close,
}

/// Serves a socket until it ends. `admission` is its session, or the error text for a socket that
/// gets none.
pub(super) async fn serve(
    socket: WebSocket,
    received: ReceivedBytes,
    service: &OpenEnvService,
    protocol: SocketProtocol,
    admission: Result<SessionGuard, String>,
) {
    let ping_seconds = service.config.ping_seconds;
    let mut socket = MonitoredSocket::new(socket, received, &service.limits, ping_seconds);
    let end = match admission {
        // This drops the guard, and so frees the session, before the close frame is sent.
        Ok(guard) => serve_frames(&mut socket, service, protocol, guard).await,
        Err(error) => socket.send_last(error).await,
    };
    socket.end(end).await;
}

/// Responds to one frame after the other.
async fn serve_frames(
    socket: &mut MonitoredSocket,
    service: &OpenEnvService,
    protocol: SocketProtocol,
    guard: SessionGuard,
) -> SocketEnd {
    let mut read_ahead = None;
    loop {
        let next = async {
            match read_ahead.take() {
                Some(frame) => Ok(frame),
                None => socket.next().await,
            }
        };
        // The shutdown comes first: a peer that sends without pause must not delay it.
        let frame = tokio::select! {
            biased;
            () = service.sockets.draining() => return GOING_AWAY,
            frame = next => frame,
        };
        let frame = match frame {
            Ok(frame) => frame,
            Err(end) => return end,
        };
        // OpenEnv's server fails on a frame without text, and so ends the session.
        let Message::Text(text) = &frame.message else {
            let error = ws::error("SESSION_ERROR", "send text frames, not binary ones", None);
            return socket.send_last(error).await;
        };
        let responding = respond(service, protocol, &guard, text);
        tokio::pin!(responding);
        // Reading continues meanwhile, so that a lost peer frees its session at once. Only one
        // frame is read ahead, because more would be a queue without a bound. The rest waits in the
        // network, where flow control holds the peer back.
        let response = loop {
            tokio::select! {
                biased;
                response = &mut responding => break response,
                next = socket.next(), if read_ahead.is_none() => match next {
                    Ok(frame) => read_ahead = Some(frame),
                    Err(end) => return end,
                },
            }
        };
        match response {
            FrameResponse::Text(text) => {
                if let Err(end) = socket.send_text(text.into()).await {
                    return end;
                }
            }
            FrameResponse::Last(text) => return socket.send_last(text).await,
            FrameResponse::Close => return NORMAL,
        }
    }
}

/// Responds to a frame within the limits on calls.
async fn respond(
    service: &OpenEnvService,
    protocol: SocketProtocol,
    guard: &SessionGuard,
    text: &str,
) -> FrameResponse {
    let response = async {
        match protocol {
            SocketProtocol::OpenEnv => ws::respond(service, guard, text).await,
            SocketProtocol::Mcp => mcp::over_socket(service, guard, text).await,
        }
    };
    match service.limits.respond_to_frame(response).await {
        Ok(response) => response,
        Err(refusal) => FrameResponse::Text(match protocol {
            SocketProtocol::OpenEnv => ws::error("EXECUTION_ERROR", &refusal, None),
            SocketProtocol::Mcp => mcp::refused(text, &refusal),
        }),
    }
}
