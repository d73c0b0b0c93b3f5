//! WebSockets that watch the shared episode: `/ws/ui`.
//!
//! Invariant: a watcher gets the newest state. A slow one skips states and delays nobody: the text
//! of a state is made once, and each watcher takes the newest when it has sent the last. A watcher
//! that is gone is dropped after a ping period, or when it takes too long to read.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{State, ws::WebSocketUpgrade},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use proto::serve::ReceivedBytes;
use tokio::time::timeout;

use super::shared_environment::SharedEnvironment;
use crate::{
    monitored_socket::{GOING_AWAY, MonitoredSocket, SocketEnd},
    rejection::Rejection,
};

/// A watcher that does not read holds its share of the budget, and delays a shutdown, for so long.
const SEND_DEADLINE: Duration = Duration::from_secs(10);
/// What watchers send is read and dropped.
const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Proxies often cut a socket that is silent for a minute. A watcher is pinged after half of this.
const MOST_PING_SECONDS: f64 = 40.0;

/// Opens a watcher's socket if a permit is free.
pub(super) async fn watch(
    State(environment): State<Arc<SharedEnvironment>>,
    Extension(received): Extension<ReceivedBytes>,
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
        .on_upgrade(async move |socket| {
            let ping_seconds = environment.node.settings().openenv.ping_seconds;
            let ping_seconds = ping_seconds.min(MOST_PING_SECONDS);
            let limits = &environment.limits;
            let mut socket = MonitoredSocket::new(socket, received, limits, ping_seconds);
            let end = send_updates(&mut socket, &environment).await;
            socket.end(end).await;
            drop((open, permit));
        })
}

/// Sends updates until the watcher is gone or the server stops. Returns how to end the socket.
async fn send_updates(socket: &mut MonitoredSocket, environment: &SharedEnvironment) -> SocketEnd {
    let mut updates = environment.updates.subscribe();
    // A new watcher gets the present state at once.
    updates.mark_changed();
    loop {
        let served = tokio::select! {
            () = environment.sockets.draining() => return GOING_AWAY,
            Ok(()) = updates.changed() => {
                let message = updates.borrow_and_update().message.clone();
                let sent = timeout(SEND_DEADLINE, socket.send_text(message)).await;
                sent.unwrap_or(Err(SocketEnd::Lost))
            }
            received = socket.next() => received.map(drop),
        };
        if let Err(end) = served {
            return end;
        }
    }
}
