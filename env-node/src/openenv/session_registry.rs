//! Admission: how many sessions are open, and who keeps each of them open.
//!
//! Invariant: there are never more sessions than the limit. A session that a socket opened lives as
//! long as the socket, which frees it by dropping its [`SessionGuard`]. A session that was created
//! over HTTP lives until it is closed. Sessions hold tokens, not episodes: an episode is a value.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use uuid::Uuid;

use super::session::EpisodeSession;
use crate::{metrics, node::EnvNode};

/// A session that several requests may use. They take turns.
pub(super) type SharedSession = Arc<tokio::sync::Mutex<EpisodeSession>>;

/// The open sessions of a server.
pub(super) struct SessionRegistry {
    max_sessions: usize,
    idle: Duration,
    open: Mutex<HashMap<String, OpenSession>>,
}

struct OpenSession {
    session: SharedSession,
    owner: SessionOwner,
}

/// Who keeps a session open.
///
/// ```text
/// a socket opens it        Socket    -- the socket ends --> removed
/// HTTP creates it          Registry  -- closed, or idle while the registry is full --> removed
/// a socket attaches        Attached  -- the socket ends --> Registry
/// closed while attached    Attached (is_closing)  -- the socket ends --> removed
/// ```
#[derive(Debug, Clone, Copy)]
enum SessionOwner {
    /// The socket that opened it.
    Socket,
    /// Only the registry, since this moment.
    Registry { since: Instant },
    /// A socket that attached to a session created over HTTP.
    Attached { is_closing: bool },
}

/// No further session fits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Server at capacity: {active}/{max} sessions active. Cannot accept new connections.")]
pub(super) struct AtCapacity {
    active: usize,
    max: usize,
}

impl AtCapacity {
    /// Returns the numbers under OpenEnv's names.
    pub(super) fn data(&self) -> Value {
        json!({"active_sessions": self.active, "max_sessions": self.max})
    }
}

/// When a closed session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    Now,
    /// When its socket ends.
    WithItsSocket,
}

/// A socket's hold on a session. Dropping it frees the session.
pub(super) struct SessionGuard {
    registry: Arc<SessionRegistry>,
    /// Id of the session.
    pub(super) id: String,
    pub(super) session: SharedSession,
}

impl SessionRegistry {
    pub(super) fn new(max_sessions: usize, idle: Duration) -> Self {
        Self {
            max_sessions,
            idle,
            open: Mutex::default(),
        }
    }

    /// Opens a session that lives as long as the guard.
    pub(super) fn open(self: &Arc<Self>, node: &EnvNode) -> Result<SessionGuard, AtCapacity> {
        let (id, session) = self.insert(node, SessionOwner::Socket)?;
        Ok(SessionGuard {
            registry: Arc::clone(self),
            id,
            session,
        })
    }

    /// Creates a session that lives until it is closed. Returns its id.
    pub(super) fn create(&self, node: &EnvNode) -> Result<String, AtCapacity> {
        let (id, _) = self.insert(node, SessionOwner::Registry { since: now() })?;
        Ok(id)
    }

    /// Attaches a socket to a session that was created over HTTP.
    pub(super) fn attach(self: &Arc<Self>, id: &str) -> Result<SessionGuard, String> {
        let mut open = self.lock();
        let entry = open
            .get_mut(id)
            .ok_or_else(|| format!("Unknown session_id: {id}"))?;
        if !matches!(entry.owner, SessionOwner::Registry { .. }) {
            return Err(format!("Session {id} already has an attached WebSocket"));
        }
        entry.owner = SessionOwner::Attached { is_closing: false };
        Ok(SessionGuard {
            registry: Arc::clone(self),
            id: id.to_owned(),
            session: Arc::clone(&entry.session),
        })
    }

    /// Returns the session of this id, for one request.
    pub(super) fn get(&self, id: &str) -> Option<SharedSession> {
        let mut open = self.lock();
        let entry = open.get_mut(id)?;
        if let SessionOwner::Registry { since } = &mut entry.owner {
            *since = now();
        }
        Some(Arc::clone(&entry.session))
    }

    /// Closes a session. Returns `None` if no session has this id.
    pub(super) fn close(&self, id: &str) -> Option<Closed> {
        let mut open = self.lock();
        let entry = open.get_mut(id)?;
        match &mut entry.owner {
            SessionOwner::Registry { .. } => {
                open.remove(id);
                metrics::sessions(open.len());
                Some(Closed::Now)
            }
            SessionOwner::Attached { is_closing } => {
                *is_closing = true;
                Some(Closed::WithItsSocket)
            }
            SessionOwner::Socket => Some(Closed::WithItsSocket),
        }
    }

    fn insert(
        &self,
        node: &EnvNode,
        owner: SessionOwner,
    ) -> Result<(String, SharedSession), AtCapacity> {
        let mut open = self.lock();
        // Idle sessions cost a token each, so they are removed only when their room is needed.
        if open.len() >= self.max_sessions {
            self.remove_idle(&mut open);
        }
        if open.len() >= self.max_sessions {
            // Over sockets and MCP this refusal has no HTTP status, so the count of refused
            // responses would miss it.
            metrics::call_refused("openenv", "CAPACITY_REACHED".to_owned());
            return Err(AtCapacity {
                active: open.len(),
                max: self.max_sessions,
            });
        }
        let id = Uuid::new_v4().to_string();
        let session = Arc::new(tokio::sync::Mutex::new(EpisodeSession::new(node.clone())));
        let entry = OpenSession {
            session: Arc::clone(&session),
            owner,
        };
        open.insert(id.clone(), entry);
        metrics::sessions(open.len());
        Ok((id, session))
    }

    /// Removes sessions that nobody used for long. Those of sockets end with their socket instead.
    fn remove_idle(&self, open: &mut HashMap<String, OpenSession>) {
        let now = now();
        open.retain(|_, entry| match entry.owner {
            SessionOwner::Registry { since } => now.duration_since(since) < self.idle,
            SessionOwner::Socket | SessionOwner::Attached { .. } => true,
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, OpenSession>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let mut open = self.registry.lock();
        match open.get_mut(&self.id) {
            // Its client created it over HTTP and may still use it there.
            Some(entry) if matches!(entry.owner, SessionOwner::Attached { is_closing: false }) => {
                entry.owner = SessionOwner::Registry { since: now() };
            }
            _ => {
                open.remove(&self.id);
                metrics::sessions(open.len());
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
