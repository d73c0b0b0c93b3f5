//! WebSockets that watch the shared episode: `/ws/ui`.
//!
//! Invariant: a watcher gets the newest state. A slow one skips states and delays nobody: the text
//! of a state is made once, and each watcher takes the newest when it has sent the last. A watcher
//! that is gone is dropped after two ping periods at the latest, or when it takes too long to read.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{
        State,
        ws::{Message, WebSocket, WebSocketUpgrade},
    },
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tokio::time::{interval, timeout};

use super::shared_environment::SharedEnvironment;
use crate::rejection::Rejection;

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
    upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .on_upgrade(async move |socket| {
            send_updates(socket, &environment).await;
            drop(permit);
        })
}

async fn send_updates(mut socket: WebSocket, environment: &SharedEnvironment) {
    let mut updates = environment.updates.subscribe();
    // A new watcher gets the present state at once.
    updates.mark_changed();
    let mut pings = interval(PING_PERIOD);
    let mut is_alive = true;
    loop {
        let message = tokio::select! {
            Ok(()) = updates.changed() => {
                let update = updates.borrow_and_update().clone();
                Message::Text(update)
            }
            received = socket.recv() => match received {
                Some(Ok(_)) => {
                    is_alive = true;
                    continue;
                }
                Some(Err(_)) | None => return,
            },
            _ = pings.tick() => {
                if !is_alive {
                    return;
                }
                is_alive = false;
                Message::Ping(Vec::new().into())
            }
        };
        if !matches!(
            timeout(SEND_DEADLINE, socket.send(message)).await,
            Ok(Ok(()))
        ) {
            return;
        }
    }
}
