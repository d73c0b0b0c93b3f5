//! The open sockets of a server, which a shutdown asks to close and waits for.

use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// All sockets of a server. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Sockets {
    draining: CancellationToken,
    open: TaskTracker,
}

impl Sockets {
    /// Makes an empty set. Once `draining` is cancelled, each socket finishes the frame at hand and
    /// closes with "going away".
    pub(crate) fn new(draining: CancellationToken) -> Self {
        let open = TaskTracker::new();
        // `TaskTracker::wait` ends only on a closed tracker. A closed one still hands out tokens.
        open.close();
        Self { draining, open }
    }

    /// Counts one more open socket, until the token is dropped.
    pub(crate) fn track(&self) -> TaskTrackerToken {
        self.open.token()
    }

    /// Waits until the sockets have to close.
    pub(crate) async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Waits until no socket is open.
    pub(crate) async fn closed(&self) {
        self.open.wait().await;
    }
}
