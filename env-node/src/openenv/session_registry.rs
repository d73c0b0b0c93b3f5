//! Admission: how many sessions are open, and who keeps each of them open.
//!
//! Invariant: there are never more sessions than the limit. A session that a socket opened lives as
//! long as the socket, which frees it by dropping its [`SessionGuard`]. A session that was created
//! over HTTP lives until it is closed, or makes room for another: anyone can create many of them at
//! once and leave them. Sessions hold tokens, not episodes: an episode is a value.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{session::EpisodeSession, validation::excerpt};
use crate::{metrics, node::EnvNode};

/// How long a session that was created over HTTP may wait for its first episode when another needs
/// its room. Clients start one at once.
const FIRST_EPISODE: Duration = Duration::from_secs(30);

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
    created: Instant,
    owner: SessionOwner,
}

/// Who keeps a session open.
///
/// ```text
/// a socket opens it        Socket    -- the socket ends --> removed
/// HTTP creates it          Registry  -- closed, or makes room --> removed
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
        let mut open = self.open.lock();
        let entry = open
            .get_mut(id)
            .ok_or_else(|| format!("Unknown session_id: {}", excerpt(id)))?;
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
        let mut open = self.open.lock();
        let entry = open.get_mut(id)?;
        if let SessionOwner::Registry { since } = &mut entry.owner {
            *since = now();
        }
        Some(Arc::clone(&entry.session))
    }

    /// Closes a session. Returns `None` if no session has this id.
    pub(super) fn close(&self, id: &str) -> Option<Closed> {
        let mut open = self.open.lock();
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
        let mut open = self.open.lock();
        // Idle sessions cost a token each, so they are removed only when their room is needed.
        if open.len() >= self.max_sessions {
            let now = now();
            open.retain(|_, entry| {
                let has_episode = || entry.has_episode();
                !entry
                    .owner
                    .makes_room(entry.created, has_episode, self.idle, now)
            });
        }
        if open.len() >= self.max_sessions {
            metrics::openenv_refused(metrics::CAPACITY_REACHED);
            return Err(AtCapacity {
                active: open.len(),
                max: self.max_sessions,
            });
        }
        let id = Uuid::new_v4().to_string();
        let session = Arc::new(tokio::sync::Mutex::new(EpisodeSession::new(node.clone())));
        let entry = OpenSession {
            session: Arc::clone(&session),
            created: now(),
            owner,
        };
        open.insert(id.clone(), entry);
        metrics::sessions(open.len());
        Ok((id, session))
    }
}

impl SessionOwner {
    /// Returns whether a session that was `created` then ends when another needs its room: nobody
    /// used it for `idle`, or it is old enough to have had an episode, and had none. Those of
    /// sockets end with their socket instead.
    fn makes_room(
        self,
        created: Instant,
        has_episode: impl FnOnce() -> bool,
        idle: Duration,
        now: Instant,
    ) -> bool {
        match self {
            Self::Registry { since } => {
                now.duration_since(since) >= idle
                    || (now.duration_since(created) >= FIRST_EPISODE && !has_episode())
            }
            Self::Socket | Self::Attached { .. } => false,
        }
    }
}

impl OpenSession {
    fn has_episode(&self) -> bool {
        // A request that uses the session at the moment has it locked.
        let session = self.session.try_lock();
        session.map_or(true, |session| session.state().0.is_some())
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let mut open = self.registry.open.lock();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_sessions_and_those_without_an_episode_make_room() {
        const IDLE: Duration = Duration::from_secs(3_600);
        let created = now();
        let after = |seconds: u64| created + Duration::from_secs(seconds);
        let registry = |since: u64| SessionOwner::Registry {
            since: after(since),
        };
        for (owner, has_episode, seconds, expected) in [
            (registry(0), false, 29, false),
            (registry(0), false, 30, true),
            // Calls that only list the tools do not keep it.
            (registry(39), false, 40, true),
            (registry(0), true, 3_599, false),
            (registry(0), true, 3_600, true),
            (registry(10), true, 3_600, false),
            (SessionOwner::Socket, false, 9_999, false),
            (
                SessionOwner::Attached { is_closing: false },
                false,
                9_999,
                false,
            ),
        ] {
            let makes_room = owner.makes_room(created, || has_episode, IDLE, after(seconds));
            assert_eq!(makes_room, expected, "{owner:?} after {seconds} s");
        }
    }
}
