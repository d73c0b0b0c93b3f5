//! The environment's side of one episode: one Reset, then one Step for each action.
//!
//! Invariant: a restarted env-node costs nothing, even if it lost its keys. It rejects the old
//! token. The session then replays the episode. Equal actions give equal observations, which the
//! session checks, so neither the completions nor the coordinates change. An env-node with other
//! data than the run's refuses the replay.

use policy::Coordinates;
use proto::v1::{Action, Observation, ResetRequest, ResetResponse, StepRequest, StepResponse};

use crate::{
    episode_settings::{EpisodeSettings, EpisodeSpec},
    error::ActorError,
    metrics, retry,
};

/// One env step replays its episode at most this often before the episode fails.
const MAX_REPLAYS: u32 = 8;

/// One episode at an environment.
pub(crate) struct EnvSession<'a> {
    settings: &'a EpisodeSettings,
    spec: &'a EpisodeSpec,
    /// The episode token, which is the whole state of the episode.
    token: Vec<u8>,
    /// The observation of Reset, then the actions taken so far and their observations, kept for a
    /// replay.
    first: Observation,
    history: Vec<(Action, Observation)>,
}

impl<'a> EnvSession<'a> {
    /// Starts the episode. Returns its first observation as well.
    pub(crate) async fn reset(
        settings: &'a EpisodeSettings,
        spec: &'a EpisodeSpec,
    ) -> Result<(Self, Observation), ActorError> {
        let response = reset(settings, spec).await?;
        let first = response.observation.unwrap_or_default();
        let session = Self {
            settings,
            spec,
            token: response.token,
            first: first.clone(),
            history: Vec::new(),
        };
        Ok((session, first))
    }

    /// Returns the question's id.
    pub(crate) fn question_id(&self) -> &'a str {
        &self.spec.question_id
    }

    /// Takes the next action.
    pub(crate) async fn step(&mut self, action: Action) -> Result<StepResponse, ActorError> {
        let mut result = step(self.settings, &self.token, &action).await;
        for _ in 0..MAX_REPLAYS {
            match &result {
                Err(error) if error.is_rejected_token() => {
                    tracing::info!(%error, "replaying the episode");
                    metrics::count_replay();
                    retry::pause().await;
                    result = self.replay_and_step(&action).await;
                }
                _ => break,
            }
        }
        let response = result?;
        self.token.clone_from(&response.token);
        let observation = response.observation.clone().unwrap_or_default();
        self.history.push((action, observation));
        Ok(response)
    }

    /// Replays the episode, and then takes the next action.
    async fn replay_and_step(&self, action: &Action) -> Result<StepResponse, ActorError> {
        let again = reset(self.settings, self.spec).await?;
        check_same("Env.Reset", again.observation.as_ref(), &self.first)?;
        let mut token = again.token;
        for (past_action, observation) in &self.history {
            let response = step(self.settings, &token, past_action).await?;
            check_same("Env.Step", response.observation.as_ref(), observation)?;
            token = response.token;
        }
        step(self.settings, &token, action).await
    }
}

/// Checks that a replayed call returned what it did before. The completions so far followed the old
/// observations. If the new ones differ, the trajectory would describe an episode that never
/// happened.
fn check_same(
    call: &'static str,
    again: Option<&Observation>,
    before: &Observation,
) -> Result<(), ActorError> {
    if again.unwrap_or(&Observation::default()) == before {
        return Ok(());
    }
    let status = tonic::Status::data_loss(
        "a replayed call returned another observation than before env-node restarted; serve the \
         same data on all env-nodes",
    );
    Err(ActorError::call(call, status))
}

async fn reset(
    settings: &EpisodeSettings,
    spec: &EpisodeSpec,
) -> Result<ResetResponse, ActorError> {
    let Coordinates {
        run_seed,
        group,
        member,
        ..
    } = spec.coordinates;
    let request = ResetRequest {
        question_id: spec.question_id.clone(),
        seed: run_seed,
        // A node recognises a retried step by its token. Distinct ids keep episodes with equal
        // actions apart.
        episode_id: format!("{run_seed:x}/{group}/{member}"),
        reward_profile: settings.reward_profile.clone(),
        step_budget: settings.step_budget,
        data_sha256: settings.expected.data_sha256.clone(),
        environment_version: settings.expected.environment_version.clone(),
        ..ResetRequest::default()
    };
    let reset = async || settings.env.clone().reset(request.clone()).await;
    settings.retry.call("Env.Reset", reset).await
}

/// Steps until a response arrives. Step is a pure function of token and action, so a retry is safe.
async fn step(
    settings: &EpisodeSettings,
    token: &[u8],
    action: &Action,
) -> Result<StepResponse, ActorError> {
    let request = StepRequest {
        token: token.to_vec(),
        action: Some(action.clone()),
    };
    let step = async || settings.env.clone().step(request.clone()).await;
    settings.retry.call("Env.Step", step).await
}
