//! WebSockets: responds to frames in order, pings a silent peer, drops one that stops reading, and
//! closes when the server stops.
//!
//! Invariant: the session is freed before the peer can see that the socket closed, so a client that
//! reconnects at once gets a session. It is freed at once when the connection is lost, and half a
//! ping period after a ping to which the peer sends nothing. A quiet peer that answers pings stays,
//! unless it leaves a message unfinished. The bytes of a message count from their arrival until its
//! response is ready, and the bytes of the response until it is sent. The contents of frames are
//! left to `ws.rs` and `mcp.rs`.

use std::{error::Error, io, time::Duration};

use axum::{
    body::Bytes,
    extract::ws::{CloseFrame, Message, WebSocket, close_code},
};
use proto::serve::{BodyReservation, ReceivedBytes, ReceivedTooMuch, UnreadBudget};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite;

use super::{mcp, service::OpenEnvService, session_registry::SessionGuard, ws};
use crate::metrics;

/// How long the peer may take to close its side of a socket that is closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a control frame besides its contents: the head and the mask.
const CONTROL_FRAME_BYTES: usize = 6;

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

/// Why a socket ends, which decides what is left to do.
enum SocketEnd {
    /// The connection is lost, or the peer fell silent or stopped reading.
    Lost,
    /// The peer sent a close frame.
    ClosedByPeer,
    /// The server closes it.
    Close { code: u16, reason: &'static str },
}

const NORMAL: SocketEnd = SocketEnd::Close {
    code: close_code::NORMAL,
    reason: "",
};

const GOING_AWAY: SocketEnd = SocketEnd::Close {
    code: close_code::AWAY,
    reason: "the server stops",
};

/// A message, with its share of the budget for bytes.
struct Received {
    message: Message,
    _share: Option<BodyReservation>,
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
    let period = Duration::from_secs_f64(service.config.ping_seconds);
    let mut socket = MonitoredSocket::new(socket, received, service.unread.clone(), period);
    let end = match admission {
        // This drops the guard, and so frees the session, before the close frame is sent.
        Ok(guard) => serve_frames(&mut socket, service, protocol, guard).await,
        Err(error) => socket.send_last(error).await,
    };
    let close = async {
        match end {
            SocketEnd::Lost => {}
            SocketEnd::ClosedByPeer => socket.drain().await,
            SocketEnd::Close { code, reason } => socket.close(code, reason).await,
        }
    };
    let _ = timeout(CLOSE_TIMEOUT, close).await;
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
                if let Err(end) = socket.send_text(text).await {
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

/// A socket that notices when its peer is gone.
struct MonitoredSocket {
    socket: WebSocket,
    received: ReceivedBytes,
    unread: UnreadBudget,
    /// Twice the time after which a silent peer is pinged, and which it has to answer.
    period: Duration,
    last_received: Instant,
    /// When a ping was sent since then.
    pinged_at: Option<Instant>,
    /// When a message was first seen to be unfinished.
    unfinished_since: Option<Instant>,
}

impl MonitoredSocket {
    fn new(
        socket: WebSocket,
        received: ReceivedBytes,
        unread: UnreadBudget,
        period: Duration,
    ) -> Self {
        Self {
            socket,
            received,
            unread,
            period,
            last_received: Instant::now(),
            pinged_at: None,
            unfinished_since: None,
        }
    }

    /// Returns the next text or binary frame. Meanwhile it pings a peer that was silent for half a
    /// period, and drops a peer that is still silent half a period after the ping.
    ///
    /// Cancel safe: no frame is lost, and the rest of a pong is sent before the next frame.
    async fn next(&mut self) -> Result<Received, SocketEnd> {
        loop {
            // The answer to a ping has half a period of its own. Nobody reads while a frame waits
            // for its turn, so a whole period may have passed before the ping is sent.
            let since = self.pinged_at.unwrap_or(self.last_received);
            tokio::select! {
                biased;
                frame = self.socket.recv() => {
                    self.last_received = Instant::now();
                    self.pinged_at = None;
                    match frame {
                        Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                            self.unfinished_since = None;
                            let share = self.received.take();
                            return Ok(Received { message, _share: share });
                        }
                        Some(Ok(Message::Ping(contents))) => {
                            self.received.discount(CONTROL_FRAME_BYTES + contents.len());
                            // The library queues a pong for each ping, without a bound, and reads
                            // on. This pong replaces it, and holds back a peer that does not read.
                            self.send(Message::Pong(contents)).await?;
                        }
                        Some(Ok(Message::Pong(contents))) => {
                            self.received.discount(CONTROL_FRAME_BYTES + contents.len());
                        }
                        Some(Ok(Message::Close(_))) => return Err(SocketEnd::ClosedByPeer),
                        None => return Err(SocketEnd::Lost),
                        Some(Err(error)) => return Err(end_after(&error)),
                    }
                }
                () = sleep_until(since + self.period / 2) => {
                    if self.pinged_at.is_some() {
                        tracing::info!("dropping a socket whose peer is silent");
                        return Err(SocketEnd::Lost);
                    }
                    self.send(Message::Ping(Bytes::new())).await?;
                    self.pinged_at = Some(Instant::now());
                }
            }
            self.check_unfinished()?;
        }
    }

    /// Ends a socket on which a message stays unfinished for half a period. Its peer may answer
    /// pings between the fragments of a message, so it is not silent.
    fn check_unfinished(&mut self) -> Result<(), SocketEnd> {
        if self.received.unfinished() == 0 {
            self.unfinished_since = None;
            return Ok(());
        }
        let since = *self.unfinished_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.period / 2 {
            return Ok(());
        }
        tracing::info!("closing a socket whose peer does not finish a message");
        Err(SocketEnd::Close {
            code: close_code::POLICY,
            reason: "the message was not completed in time",
        })
    }

    /// Sends a message. A peer that takes longer than a period to read it counts as lost.
    async fn send(&mut self, message: Message) -> Result<(), SocketEnd> {
        match timeout(self.period, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(SocketEnd::Lost),
        }
    }

    /// Sends a text, which counts in the budget for what peers have not read until it is sent.
    async fn send_text(&mut self, text: String) -> Result<(), SocketEnd> {
        let Some(_share) = self.unread.share(text.len()) else {
            return Err(overloaded());
        };
        self.send(Message::Text(text.into())).await
    }

    /// Sends the text after which the socket closes.
    async fn send_last(&mut self, text: String) -> SocketEnd {
        match self.send_text(text).await {
            Ok(()) => NORMAL,
            Err(end) => end,
        }
    }

    /// Sends a close frame, and reads until the peer closes too. If the server closed the
    /// connection with unread bytes in it, TCP would reset it, and the peer could lose what was
    /// sent last.
    async fn close(&mut self, code: u16, reason: &'static str) {
        // Else what the peer still sends would end the connection before it reads the code.
        self.received.close();
        let frame = CloseFrame {
            code,
            reason: reason.into(),
        };
        if self.socket.send(Message::Close(Some(frame))).await.is_ok() {
            self.drain().await;
        }
    }

    /// Reads to the end. This also responds to the peer's close frame.
    async fn drain(&mut self) {
        while let Some(Ok(message)) = self.socket.recv().await {
            match message {
                Message::Text(_) | Message::Binary(_) => drop(self.received.take()),
                Message::Ping(contents) | Message::Pong(contents) => {
                    self.received.discount(CONTROL_FRAME_BYTES + contents.len());
                }
                Message::Close(_) => {}
            }
        }
    }
}

/// Returns how a socket ends after an error of reading.
fn end_after(error: &axum::Error) -> SocketEnd {
    let cause = error.source().and_then(<dyn Error>::downcast_ref);
    let (code, reason) = match cause {
        Some(tungstenite::Error::Capacity(_)) => (close_code::SIZE, "message too long"),
        Some(tungstenite::Error::Utf8(_)) => (close_code::INVALID, "text is not UTF-8"),
        Some(tungstenite::Error::Protocol(_)) => (close_code::PROTOCOL, "broken frame"),
        Some(tungstenite::Error::Io(error)) if is_too_much(error) => return overloaded(),
        _ => return SocketEnd::Lost,
    };
    SocketEnd::Close { code, reason }
}

/// Counts a refusal for want of bytes, and returns how its socket ends.
fn overloaded() -> SocketEnd {
    metrics::openenv_refused(metrics::OVERLOADED);
    SocketEnd::Close {
        code: close_code::AGAIN,
        reason: "too many bytes in flight; retry",
    }
}

/// Returns whether the server did not read further, because messages hold too many bytes.
fn is_too_much(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|cause| cause.is::<ReceivedTooMuch>())
}
