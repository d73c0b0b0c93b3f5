//! WebSockets: frames in order, pings of our own, deadlines for a peer that stops reading, a farewell when the server stops.
//!
//! Invariant: the session is freed before the peer can see that the socket closed, at once when the peer is gone, and at
//! the latest one ping period after it was last heard; a quiet peer that answers pings stays. Leaves out what frames say.

use std::{error::Error, time::Duration};

use axum::{
    body::Bytes,
    extract::ws::{CloseFrame, Message, WebSocket, close_code},
};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::{Face, mcp, sessions::Lease, ws};

/// How long a socket that we closed may take to close its side.
const CLOSE_SECONDS: u64 = 5;

/// All sockets of a server. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Sockets {
    stopping: CancellationToken,
    open: TaskTracker,
}

impl Sockets {
    /// Once `stopping`, each socket answers the frame it is at and says that the server goes away.
    pub(crate) fn new(stopping: CancellationToken) -> Self {
        let open = TaskTracker::new();
        open.close();
        Self { stopping, open }
    }

    /// Counts one more socket, until the token is dropped.
    pub(super) fn open(&self) -> TaskTrackerToken {
        self.open.token()
    }

    /// Resolves when none is open.
    pub(crate) async fn ended(&self) {
        self.open.wait().await;
    }
}

/// What a socket speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `/ws`: reset, step, state.
    OpenEnv,
    /// `/mcp`: JSON-RPC.
    Mcp,
}

/// What a frame is answered by.
#[derive(Debug)]
pub(super) enum Reply {
    Text(String),
    /// A text, then the end.
    Last(String),
    Close,
}

/// How a socket ends.
enum End {
    /// The peer is lost, fell silent, or stopped reading.
    Gone,
    /// The peer closes it.
    Left,
    /// We close it.
    Close { code: u16, reason: &'static str },
}

const NORMAL: End = End::Close {
    code: close_code::NORMAL,
    reason: "",
};

const GOING_AWAY: End = End::Close {
    code: close_code::AWAY,
    reason: "the server stops",
};

/// Serves a socket until it ends. `admission` is its session, or the last words to a socket that gets none.
pub(super) async fn serve(
    socket: WebSocket,
    face: &Face,
    dialect: Dialect,
    admission: Result<Lease, String>,
) {
    let mut line = Line::new(socket, Duration::from_secs_f64(face.config.ping_seconds));
    let end = match admission {
        // The lease ends here: before the peer is told.
        Ok(lease) => converse(&mut line, face, dialect, lease).await,
        Err(last_words) => line.say_last(last_words).await,
    };
    let farewell = async {
        match end {
            End::Gone => {}
            End::Left => line.drain().await,
            End::Close { code, reason } => line.close(code, reason).await,
        }
    };
    let _ = timeout(Duration::from_secs(CLOSE_SECONDS), farewell).await;
}

/// Answers frame by frame; the lease ends with the conversation.
async fn converse(line: &mut Line, face: &Face, dialect: Dialect, lease: Lease) -> End {
    let mut ahead = None;
    loop {
        let frame = tokio::select! {
            biased;
            () = face.sockets.stopping.cancelled() => return GOING_AWAY,
            frame = line.next_unless(ahead.take()) => frame,
        };
        let frame = match frame {
            Ok(frame) => frame,
            Err(end) => return end,
        };
        let Message::Text(text) = frame else {
            let complaint = ws::error("SESSION_ERROR", "'text'", None);
            return line.say_last(complaint).await;
        };
        let answer = async {
            match dialect {
                Dialect::OpenEnv => ws::answer(face, &lease, &text).await,
                Dialect::Mcp => mcp::over_socket(face, &lease, &text).await,
            }
        };
        tokio::pin!(answer);
        // The peer is watched while its frame is answered; one frame is read ahead, the rest waits in the network.
        let reply = loop {
            tokio::select! {
                biased;
                reply = &mut answer => break reply,
                next = line.next(), if ahead.is_none() => match next {
                    Ok(frame) => ahead = Some(frame),
                    Err(end) => return end,
                },
            }
        };
        match reply {
            Reply::Text(text) => {
                if let Err(end) = line.say(text).await {
                    return end;
                }
            }
            Reply::Last(text) => return line.say_last(text).await,
            Reply::Close => return NORMAL,
        }
    }
}

/// A socket with a watch over its peer.
struct Line {
    socket: WebSocket,
    period: Duration,
    heard: Instant,
    pinged: bool,
}

impl Line {
    fn new(socket: WebSocket, period: Duration) -> Self {
        Self {
            socket,
            period,
            heard: Instant::now(),
            pinged: false,
        }
    }

    /// The frame that was read ahead, or the next one.
    async fn next_unless(&mut self, ahead: Option<Message>) -> Result<Message, End> {
        match ahead {
            Some(frame) => Ok(frame),
            None => self.next().await,
        }
    }

    /// The next text or binary frame; meanwhile a peer that was silent for half a period is pinged, and one that was for
    /// a whole period is given up. May be cancelled: no frame is lost.
    async fn next(&mut self) -> Result<Message, End> {
        loop {
            let patience = if self.pinged {
                self.period
            } else {
                self.period / 2
            };
            tokio::select! {
                biased;
                frame = self.socket.recv() => {
                    self.heard = Instant::now();
                    self.pinged = false;
                    match frame {
                        Some(Ok(frame @ (Message::Text(_) | Message::Binary(_)))) => return Ok(frame),
                        Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                        Some(Ok(Message::Close(_))) => return Err(End::Left),
                        None => return Err(End::Gone),
                        Some(Err(error)) => return Err(verdict(&error)),
                    }
                }
                () = sleep_until(self.heard + patience) => {
                    if self.pinged {
                        tracing::info!("a silent socket is dropped");
                        return Err(End::Gone);
                    }
                    self.pinged = true;
                    self.send(Message::Ping(Bytes::new())).await?;
                }
            }
        }
    }

    async fn say(&mut self, text: String) -> Result<(), End> {
        self.send(Message::Text(text.into())).await
    }

    async fn say_last(&mut self, text: String) -> End {
        match self.say(text).await {
            Ok(()) => NORMAL,
            Err(end) => end,
        }
    }

    /// Sends, unless the peer takes longer than a period to read.
    async fn send(&mut self, message: Message) -> Result<(), End> {
        match timeout(self.period, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(End::Gone),
        }
    }

    /// Closes, and reads on until the peer does too: else it could lose our last words to a reset.
    async fn close(&mut self, code: u16, reason: &'static str) {
        let frame = CloseFrame {
            code,
            reason: reason.into(),
        };
        if self.socket.send(Message::Close(Some(frame))).await.is_ok() {
            self.drain().await;
        }
    }

    /// Reads to the end; this also sends what is owed to a peer that closes.
    async fn drain(&mut self) {
        while let Some(Ok(_)) = self.socket.recv().await {}
    }
}

/// How a socket ends whose frames cannot be read.
fn verdict(error: &axum::Error) -> End {
    let cause = error.source().and_then(<dyn Error>::downcast_ref);
    let (code, reason) = match cause {
        Some(tungstenite::Error::Capacity(_)) => (close_code::SIZE, "message too long"),
        Some(tungstenite::Error::Utf8(_)) => (close_code::INVALID, "text is not UTF-8"),
        Some(tungstenite::Error::Protocol(_)) => (close_code::PROTOCOL, "broken frame"),
        _ => return End::Gone,
    };
    End::Close { code, reason }
}
