//! A session: the newest token of an episode, kept for a client that cannot keep it.
//!
//! Invariant: a failed call leaves the token as it was, so that the client may repeat it. Faults of the machine are
//! retried here, with pauses; only what lasts reaches the client.

use std::time::{Duration, Instant};

use env::{Action, EnvError, EpisodeSpec};

use super::payload::Payload;
use crate::{clock::now_unix_seconds, metrics, node::EnvNode};

/// Pauses before the retries of a step that a busy machine refused; about six seconds in all.
const PAUSES_MILLISECONDS: [u64; 7] = [50, 100, 200, 400, 800, 1_600, 3_200];

/// What a session has to say when it is asked for a step before its first reset.
pub(super) const NO_EPISODE: &str = "no episode runs in this session; reset it first";

/// One client's episode.
pub(crate) struct Session {
    node: EnvNode,
    episode: Option<Episode>,
}

struct Episode {
    token: Vec<u8>,
    id: String,
    step_count: u32,
}

/// Why a session cannot step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// Remedy: reset.
    #[error("{NO_EPISODE}")]
    NoEpisode,
    /// The node refused.
    #[error(transparent)]
    Env(#[from] EnvError),
}

impl Session {
    pub(crate) fn new(node: EnvNode) -> Self {
        Self {
            node,
            episode: None,
        }
    }

    /// Starts an episode in place of the one that runs.
    pub(crate) fn reset(&mut self, spec: EpisodeSpec) -> Result<Payload, EnvError> {
        let (token, payload) = reset(&self.node, spec)?;
        self.episode = Some(Episode {
            token,
            id: payload.metadata.episode_id.clone().unwrap_or_default(),
            step_count: 0,
        });
        Ok(payload)
    }

    /// Applies one action.
    pub(crate) async fn step(&mut self, action: &Action) -> Result<Payload, SessionError> {
        let episode = self.episode.as_mut().ok_or(SessionError::NoEpisode)?;
        let (token, payload) = step(&self.node, &episode.token, action).await?;
        episode.step_count = payload.observation.step_count;
        episode.token = token;
        Ok(payload)
    }

    /// The id of the episode, if there is one, and the steps made in it.
    pub(crate) fn state(&self) -> (Option<&str>, u32) {
        match &self.episode {
            Some(episode) => (Some(&episode.id), episode.step_count),
            None => (None, 0),
        }
    }
}

/// Starts an episode: its token and its first view.
pub(super) fn reset(node: &EnvNode, spec: EpisodeSpec) -> Result<(Vec<u8>, Payload), EnvError> {
    let mut response = node.reset(spec)?;
    let token = std::mem::take(&mut response.token);
    Ok((token, Payload::of_reset(response)))
}

/// Applies one action to the episode in `token`: the next token and what came of it. What a busy machine refuses is tried
/// again.
#[expect(clippy::disallowed_methods, reason = "times the call for a metric")]
pub(super) async fn step(
    node: &EnvNode,
    token: &[u8],
    action: &Action,
) -> Result<(Vec<u8>, Payload), EnvError> {
    let began = Instant::now();
    let mut pauses = PAUSES_MILLISECONDS.iter();
    loop {
        let environment = node.environment();
        let outcome = environment
            .step(token.to_vec(), action, now_unix_seconds())
            .await;
        match (outcome, pauses.next()) {
            (Err(error), Some(&pause)) if is_passing(&error) => {
                tracing::debug!(%error, pause_milliseconds = pause, "the step is tried again");
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            (Ok(mut response), _) => {
                let observation = &response.observation;
                metrics::step_served(&action.action_type, observation, began.elapsed());
                let token = std::mem::take(&mut response.token);
                return Ok((token, Payload::of_step(response)));
            }
            (Err(error), _) => return Err(error),
        }
    }
}

/// Whether the same step may succeed later on this node.
fn is_passing(error: &EnvError) -> bool {
    matches!(
        error,
        EnvError::Overloaded { .. } | EnvError::WallClock { .. } | EnvError::Internal(_)
    )
}
