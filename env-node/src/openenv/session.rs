//! A session: the newest token of an episode, kept for a client that cannot keep it.
//!
//! Invariant: a failed call leaves the token as it was, so the client may repeat the call. Failures
//! of the machine are retried here, with pauses. Only a failure that lasts reaches the client.

use std::time::Duration;

use env::{Action, EnvError, EpisodeSpec};

use super::payload::Payload;
use crate::node::EnvNode;

/// Pauses before the retries of a step that a busy machine refused: about six seconds in all.
const PAUSES_MILLISECONDS: [u64; 7] = [50, 100, 200, 400, 800, 1_600, 3_200];

/// One client's episode.
pub(crate) struct EpisodeSession {
    node: EnvNode,
    current: Option<CurrentEpisode>,
}

struct CurrentEpisode {
    token: Vec<u8>,
    id: String,
    step_count: u32,
}

/// Why a session cannot step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The session was not reset yet. Remedy: reset it.
    #[error("no episode runs in this session; reset it first")]
    NoEpisode,
    /// The node refused.
    #[error(transparent)]
    Env(#[from] EnvError),
}

impl EpisodeSession {
    pub(crate) fn new(node: EnvNode) -> Self {
        Self {
            node,
            current: None,
        }
    }

    /// Starts an episode, in place of the current one.
    pub(crate) fn reset(&mut self, spec: EpisodeSpec) -> Result<Payload, EnvError> {
        let (token, payload) = reset(&self.node, spec)?;
        self.current = Some(CurrentEpisode {
            token,
            id: payload.metadata.episode_id.clone().unwrap_or_default(),
            step_count: 0,
        });
        Ok(payload)
    }

    /// Applies one action.
    pub(crate) async fn step(&mut self, action: &Action) -> Result<Payload, SessionError> {
        let episode = self.current.as_mut().ok_or(SessionError::NoEpisode)?;
        let (token, payload) = step(&self.node, &episode.token, action).await?;
        episode.step_count = payload.observation.step_count;
        episode.token = token;
        Ok(payload)
    }

    /// Returns the id of the episode, if there is one, and the number of its steps.
    pub(crate) fn state(&self) -> (Option<&str>, u32) {
        match &self.current {
            Some(episode) => (Some(&episode.id), episode.step_count),
            None => (None, 0),
        }
    }
}

/// Starts an episode. Returns its token and its first observation.
pub(super) fn reset(node: &EnvNode, spec: EpisodeSpec) -> Result<(Vec<u8>, Payload), EnvError> {
    let mut result = node.reset(spec)?;
    let token = std::mem::take(&mut result.token);
    Ok((token, result.into()))
}

/// Applies one action to the episode in `token`. Returns the next token and the observation.
///
/// A step is a pure function of its token, so repeating one that a busy machine refused is safe.
pub(super) async fn step(
    node: &EnvNode,
    token: &[u8],
    action: &Action,
) -> Result<(Vec<u8>, Payload), EnvError> {
    let mut pauses = PAUSES_MILLISECONDS.iter();
    loop {
        match (node.step(token.to_vec(), action).await, pauses.next()) {
            (Err(error), Some(&pause)) if is_transient(&error) => {
                tracing::debug!(%error, pause_milliseconds = pause, "retrying the step");
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            (Ok(mut result), _) => {
                let token = std::mem::take(&mut result.token);
                return Ok((token, result.into()));
            }
            (Err(error), _) => return Err(error),
        }
    }
}

/// Returns whether the same step may succeed later on this node.
fn is_transient(error: &EnvError) -> bool {
    matches!(
        error,
        EnvError::Overloaded { .. } | EnvError::WallClock { .. } | EnvError::Internal(_)
    )
}
