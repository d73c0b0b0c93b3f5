//! WebSockets that watch the shared episode: `/ws/ui`.
//!
//! Invariant: a watcher gets the newest state. A slow one skips states and delays nobody: the text
//! of a state is made once, and each watcher takes the newest when it has sent the last. A watcher
//! that is gone is dropped after two ping periods at the latest, or when it takes too long to read.
//! What is being sent counts in the budget for what peers have not read.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{
        State,
        ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code},
    },
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tokio::time::{interval, timeout};

use super::shared_environment::SharedEnvironment;
use crate::{metrics, rejection::Rejection};

const PING_PERIOD: Duration = Duration::from_secs(20);
const SEND_DEADLINE: Duration = Duration::from_secs(10);
/// What watchers send is read and dropped.
const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// Opens a watcher's socket if a permit is free.
pub(super) async fn watch(
    State(environment): State<Arc<SharedEnvironment>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let Ok(permit) = Arc::clone(&environment.watcher_permits).try_acquire_owned() else {
        return Rejection::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many watchers; retry after a pause",
        )
        .into_response();
    };
    let open = environment.sockets.track();
    upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .on_upgrade(async move |mut socket| {
            if let Some(close) = send_updates(&mut socket, &environment).await {
                let _ = timeout(SEND_DEADLINE, end(socket, close)).await;
            }
            drop((open, permit));
        })
}

/// Sends updates until the watcher is gone, or returns how to close its socket.
async fn send_updates(
    socket: &mut WebSocket,
    environment: &SharedEnvironment,
) -> Option<CloseFrame> {
    let close = |code, reason: &'static str| CloseFrame {
        code,
        reason: reason.into(),
    };
    let mut updates = environment.updates.subscribe();
    // A new watcher gets the present state at once.
    updates.mark_changed();
    let mut pings = interval(PING_PERIOD);
    let mut is_alive = true;
    loop {
        let message = tokio::select! {
            () = environment.sockets.draining() => {
                return Some(close(close_code::AWAY, "the server stops"));
            }
            Ok(()) = updates.changed() => updates.borrow_and_update().message.clone(),
            received = socket.recv() => match received {
                Some(Ok(received)) => {
                    is_alive = true;
                    // The library queues a pong for each ping, without a bound, and reads on. This
                    // pong replaces it, and holds back a watcher that does not read.
                    if let Message::Ping(contents) = received {
                        send(socket, Message::Pong(contents)).await?;
                    }
                    continue;
                }
                Some(Err(_)) | None => return None,
            },
            _ = pings.tick() => {
                if !is_alive {
                    return None;
                }
                is_alive = false;
                send(socket, Message::Ping(Vec::new().into())).await?;
                continue;
            }
        };
        let Some(_share) = environment.unread.share(message.len()) else {
            metrics::openenv_refused(metrics::OVERLOADED);
            return Some(close(close_code::AGAIN, "too many bytes in flight; retry"));
        };
        send(socket, Message::Text(message)).await?;
    }
}

/// Sends a message. Returns none if the watcher did not read it in time.
async fn send(socket: &mut WebSocket, message: Message) -> Option<()> {
    timeout(SEND_DEADLINE, socket.send(message))
        .await
        .ok()?
        .ok()
}

/// Sends a close frame, and reads until the watcher closes too.
async fn end(mut socket: WebSocket, close: CloseFrame) {
    if socket.send(Message::Close(Some(close))).await.is_ok() {
        while let Some(Ok(_)) = socket.recv().await {}
    }
}
