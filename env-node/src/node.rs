//! An environment as its servers call it: with the clock, with metrics, and with their settings.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use env::{Action, EnvError, Environment, EpisodeSpec, ResetResult, StepResult};
use tokio::time::timeout_at;

use crate::{
    clock::now_unix_seconds,
    error::SettingError,
    metrics::{self, CallInFlight},
    settings::EnvNodeSettings,
};

/// Bytes of the results of one replay. Each result holds the history, in the token and in the
/// observation.
const REPLAY_BYTES: usize = 1 << 20;

/// Returns the bytes of the texts of a result.
fn result_bytes(step: &StepResult) -> usize {
    let seen = &step.observation;
    let texts = [&seen.question, &seen.schema_info, &seen.result, &seen.error];
    let texts = texts.into_iter().chain(&seen.action_history);
    step.token.len() + texts.map(String::len).sum::<usize>()
}

/// Serves the episodes of an environment. Cheap to clone; all clones share the environment.
#[derive(Clone)]
pub struct EnvNode {
    environment: Environment,
    settings: Arc<EnvNodeSettings>,
}

impl EnvNode {
    /// Checks the settings.
    ///
    /// # Errors
    /// A setting is out of range, or does not let the longest argument of an action through.
    pub fn new(environment: Environment, settings: EnvNodeSettings) -> Result<Self, SettingError> {
        settings.validate(environment.settings())?;
        settings.web.check_paths()?;
        Ok(Self {
            environment,
            settings: Arc::new(settings),
        })
    }

    /// Returns the environment.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Returns the settings of the servers.
    pub(crate) fn settings(&self) -> &EnvNodeSettings {
        &self.settings
    }

    /// Starts an episode.
    pub(crate) fn reset(&self, spec: EpisodeSpec) -> Result<ResetResult, EnvError> {
        let _call = CallInFlight::begin();
        self.environment.reset(spec, now_unix_seconds())
    }

    /// Applies one action and records how long that took.
    #[expect(clippy::disallowed_methods, reason = "times the call for a metric")]
    pub(crate) async fn step(
        &self,
        token: Vec<u8>,
        action: &Action,
    ) -> Result<StepResult, EnvError> {
        let _call = CallInFlight::begin();
        let began = Instant::now();
        let now = now_unix_seconds();
        let result = self.environment.step(token, action, now).await?;
        metrics::step_served(&action.action_type, &result.observation, began.elapsed());
        Ok(result)
    }

    /// Applies actions until one ends the episode or fails, until the call has taken a quarter of
    /// its time, or until the results take [`REPLAY_BYTES`]. An action after the first one is given
    /// up when three quarters have passed, so that none brings the call to its end without a
    /// response. The call has the time that the caller `requested`, and at most this node's limit.
    ///
    /// # Errors
    /// The first action failed.
    #[expect(clippy::disallowed_methods, reason = "keeps the call within its time")]
    pub(crate) async fn replay(
        &self,
        mut token: Vec<u8>,
        actions: impl Iterator<Item = Action> + Send,
        requested: Option<Duration>,
    ) -> Result<Vec<StepResult>, EnvError> {
        let began = Instant::now();
        let most = Duration::from_secs_f64(self.settings.server.max_call_seconds);
        let enough = requested.map_or(most, |it| it.min(most)) / 4;
        let last = began + enough * 3;
        let mut steps: Vec<StepResult> = Vec::new();
        let mut bytes = 0;
        for action in actions {
            // An action without SQL does not wait for anything.
            tokio::task::yield_now().await;
            let step = match self.step(token, &action) {
                first if steps.is_empty() => first.await?,
                // The caller meets the fault if it goes on.
                later => match timeout_at(last.into(), later).await {
                    Ok(Ok(step)) => step,
                    Ok(Err(_)) | Err(_) => break,
                },
            };
            token = step.token.clone();
            bytes += result_bytes(&step);
            let is_over =
                step.observation.done || began.elapsed() >= enough || bytes >= REPLAY_BYTES;
            steps.push(step);
            if is_over {
                break;
            }
        }
        Ok(steps)
    }
}
