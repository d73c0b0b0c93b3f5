//! Sockets that watch the shared episode: `/ws/ui`.
//!
//! Invariant: a watcher gets the newest state, whose text is made once for all; a slow one skips states and holds nobody
//! up. One that is gone is dropped within a ping period, or as soon as it takes too long to read.

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

use super::{refusal::Refusal, shared::Shared};

const PING_PERIOD: Duration = Duration::from_secs(20);
const SEND_DEADLINE: Duration = Duration::from_secs(10);
/// Watchers have nothing to say; what they send is read and dropped.
const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// Opens a watcher's socket where a seat is free.
pub(super) async fn watch(
    State(shared): State<Arc<Shared>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let Ok(seat) = Arc::clone(&shared.seats).try_acquire_owned() else {
        return Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "all places to watch are taken; retry after a pause",
        )
        .into_response();
    };
    upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .on_upgrade(async move |socket| {
            follow(socket, &shared).await;
            drop(seat);
        })
}

async fn follow(mut socket: WebSocket, shared: &Shared) {
    let mut updates = shared.updates.subscribe();
    updates.mark_changed();
    let mut pings = interval(PING_PERIOD);
    let mut heard = true;
    loop {
        let message = tokio::select! {
            Ok(()) = updates.changed() => {
                let update = updates.borrow_and_update().clone();
                Message::Text(update)
            }
            received = socket.recv() => match received {
                Some(Ok(_)) => {
                    heard = true;
                    continue;
                }
                Some(Err(_)) | None => return,
            },
            _ = pings.tick() => {
                if !heard {
                    return;
                }
                heard = false;
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
