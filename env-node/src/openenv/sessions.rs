//! Admission: how many sessions live, which ones, and who holds them.
//!
//! Invariant: a session lives as long as its socket, which frees it by dropping its [`Lease`], or, made over HTTP, until
//! it is closed; there are never more than the limit. The table holds tokens, no episodes: those are values.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use uuid::Uuid;

use super::session::Session;
use crate::{metrics, node::EnvNode};

/// A session that several requests may want at once; they take turns.
pub(super) type SharedSession = Arc<tokio::sync::Mutex<Session>>;

/// The sessions that live.
pub(super) struct Sessions {
    max_sessions: usize,
    idle: Duration,
    live: Mutex<HashMap<String, Entry>>,
}

struct Entry {
    session: SharedSession,
    holder: Holder,
}

/// Who keeps a session alive.
#[derive(Debug, Clone, Copy)]
enum Holder {
    /// The socket that made it.
    Socket,
    /// Nobody but the table, since this moment.
    Table { since: Instant },
    /// A socket that attached to it; once it leaves, the session ends or goes back to the table.
    Attached { ends: bool },
}

/// Every session is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Server at capacity: {active}/{max} sessions active. Cannot accept new connections.")]
pub(super) struct AtCapacity {
    pub(super) active: usize,
    pub(super) max: usize,
}

impl AtCapacity {
    /// The numbers, under OpenEnv's names.
    pub(super) fn data(&self) -> Value {
        json!({"active_sessions": self.active, "max_sessions": self.max})
    }
}

/// Why a socket cannot attach to a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AttachError {
    #[error("Unknown session_id: {0}")]
    Unknown(String),
    #[error("Session {0} already has an attached WebSocket")]
    Taken(String),
}

/// What came of closing a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    Now,
    /// Once its socket leaves.
    Later,
}

/// A socket's hold on a session.
pub(super) struct Lease {
    sessions: Arc<Sessions>,
    /// Id of the session.
    pub(super) id: String,
    pub(super) session: SharedSession,
}

impl Sessions {
    pub(super) fn new(max_sessions: usize, idle: Duration) -> Self {
        Self {
            max_sessions,
            idle,
            live: Mutex::default(),
        }
    }

    /// A session that lives as long as the lease.
    pub(super) fn lease(self: &Arc<Self>, node: &EnvNode) -> Result<Lease, AtCapacity> {
        let (id, session) = self.insert(node, Holder::Socket)?;
        Ok(Lease {
            sessions: Arc::clone(self),
            id,
            session,
        })
    }

    /// A session that lives until it is closed; its id.
    pub(super) fn create(&self, node: &EnvNode) -> Result<String, AtCapacity> {
        let (id, _) = self.insert(node, Holder::Table { since: now() })?;
        Ok(id)
    }

    /// A session made over HTTP, held by a socket until the lease is dropped.
    pub(super) fn attach(self: &Arc<Self>, id: &str) -> Result<Lease, AttachError> {
        let mut live = self.live();
        let entry = live
            .get_mut(id)
            .ok_or_else(|| AttachError::Unknown(id.to_owned()))?;
        if !matches!(entry.holder, Holder::Table { .. }) {
            return Err(AttachError::Taken(id.to_owned()));
        }
        entry.holder = Holder::Attached { ends: false };
        Ok(Lease {
            sessions: Arc::clone(self),
            id: id.to_owned(),
            session: Arc::clone(&entry.session),
        })
    }

    /// The session of this id, for one request.
    pub(super) fn get(&self, id: &str) -> Option<SharedSession> {
        let mut live = self.live();
        let entry = live.get_mut(id)?;
        if let Holder::Table { since } = &mut entry.holder {
            *since = now();
        }
        Some(Arc::clone(&entry.session))
    }

    /// Ends a session; `None` if there is none of this id.
    pub(super) fn close(&self, id: &str) -> Option<Closed> {
        let mut live = self.live();
        let entry = live.get_mut(id)?;
        match &mut entry.holder {
            Holder::Table { .. } => {
                live.remove(id);
                metrics::sessions(live.len());
                Some(Closed::Now)
            }
            Holder::Attached { ends } => {
                *ends = true;
                Some(Closed::Later)
            }
            Holder::Socket => Some(Closed::Later),
        }
    }

    fn insert(
        &self,
        node: &EnvNode,
        holder: Holder,
    ) -> Result<(String, SharedSession), AtCapacity> {
        let mut live = self.live();
        if live.len() >= self.max_sessions {
            self.remove_idle(&mut live);
        }
        if live.len() >= self.max_sessions {
            // Over sockets and MCP there is no status that would count.
            metrics::call_refused("openenv", "CAPACITY_REACHED".to_owned());
            return Err(AtCapacity {
                active: live.len(),
                max: self.max_sessions,
            });
        }
        let id = Uuid::new_v4().to_string();
        let session = Arc::new(tokio::sync::Mutex::new(Session::new(node.clone())));
        let entry = Entry {
            session: Arc::clone(&session),
            holder,
        };
        live.insert(id.clone(), entry);
        metrics::sessions(live.len());
        Ok((id, session))
    }

    fn remove_idle(&self, live: &mut HashMap<String, Entry>) {
        let now = now();
        live.retain(|_, entry| match entry.holder {
            Holder::Table { since } => now.duration_since(since) < self.idle,
            Holder::Socket | Holder::Attached { .. } => true,
        });
    }

    fn live(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut live = self.sessions.live();
        match live.get_mut(&self.id) {
            Some(entry) if matches!(entry.holder, Holder::Attached { ends: false }) => {
                entry.holder = Holder::Table { since: now() };
            }
            _ => {
                live.remove(&self.id);
                metrics::sessions(live.len());
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "sessions without a socket are judged by how long they idle"
)]
fn now() -> Instant {
    Instant::now()
}
