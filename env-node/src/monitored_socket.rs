//! WebSockets that notice when their peer is gone: pings a silent peer, drops one that stops
//! reading, and closes with a code.
//!
//! Invariant: a socket ends at once when the connection is lost, and half a ping period after a
//! ping to which the peer sends nothing. A quiet peer that answers pings stays, unless it leaves a
//! message unfinished. The bytes of a message count from their arrival until it is dropped, and the
//! bytes of a text until it is sent.

use std::{error::Error, io, time::Duration};

use axum::{
    body::Bytes,
    extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code},
};
use proto::serve::{BodyReservation, ReceivedBytes, ReceivedTooMuch, UnreadBudget};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite;

use crate::{metrics, serve::call_limits::CallLimits};

/// How long the peer may take to close its side of a socket that is closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a control frame besides its contents: the head and the mask.
const CONTROL_FRAME_BYTES: usize = 6;

/// Why a socket ends, which decides what is left to do.
pub(crate) enum SocketEnd {
    /// The connection is lost, or the peer fell silent or stopped reading.
    Lost,
    /// The peer sent a close frame.
    ClosedByPeer,
    /// The server closes it.
    Close { code: u16, reason: &'static str },
}

pub(crate) const NORMAL: SocketEnd = SocketEnd::Close {
    code: close_code::NORMAL,
    reason: "",
};

pub(crate) const GOING_AWAY: SocketEnd = SocketEnd::Close {
    code: close_code::AWAY,
    reason: "the server stops",
};

/// A message, with its share of the budget for bytes.
pub(crate) struct Received {
    pub(crate) message: Message,
    _share: Option<BodyReservation>,
}

/// A socket that notices when its peer is gone.
pub(crate) struct MonitoredSocket {
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
    /// Starts to count what the socket receives.
    pub(crate) fn new(
        socket: WebSocket,
        received: ReceivedBytes,
        limits: &CallLimits,
        ping_seconds: f64,
    ) -> Self {
        limits.count_messages(&received);
        Self {
            socket,
            received,
            unread: limits.unread.clone(),
            period: Duration::from_secs_f64(ping_seconds),
            last_received: Instant::now(),
            pinged_at: None,
            unfinished_since: None,
        }
    }

    /// Returns the next text or binary frame. Meanwhile it pings a peer that was silent for half a
    /// period, and drops a peer that is still silent half a period after the ping.
    ///
    /// Cancel safe: no frame is lost, and the rest of a pong is sent before the next frame.
    pub(crate) async fn next(&mut self) -> Result<Received, SocketEnd> {
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
    pub(crate) async fn send_text(&mut self, text: Utf8Bytes) -> Result<(), SocketEnd> {
        let Some(_share) = self.unread.share(text.len()) else {
            return Err(overloaded());
        };
        self.send(Message::Text(text)).await
    }

    /// Sends the text after which the socket closes.
    pub(crate) async fn send_last(&mut self, text: String) -> SocketEnd {
        match self.send_text(text.into()).await {
            Ok(()) => NORMAL,
            Err(end) => end,
        }
    }

    /// Does what is left to do: sends the close frame, if any, and reads to the end.
    pub(crate) async fn end(mut self, end: SocketEnd) {
        let close = async {
            match end {
                SocketEnd::Lost => {}
                SocketEnd::ClosedByPeer => self.drain().await,
                SocketEnd::Close { code, reason } => self.close(code, reason).await,
            }
        };
        let _ = timeout(CLOSE_TIMEOUT, close).await;
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
