//! Plays the episodes of submitted groups again, so that no reward and no observation is taken on
//! trust.
//!
//! Invariant: a group is accepted only if its actions give the recorded results at the learner's
//! own env-node. An episode is a function of the question, its settings and the actions, so honest
//! actors cannot differ; and replaying needs no keys, unlike results that env-nodes sign, and also
//! finds env-nodes that are broken. It doubles the work of env-nodes, which is small beside that of
//! sampling. An env-node that is away delays the answer to the actor, and decides nothing.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use futures::future::{BoxFuture, try_join_all};
use proto::{
    EnvClient, may_pass, status_text,
    v1::{
        Action, Observation, ResetRequest, ResetResponse, RewardComponents, StepRequest,
        StepResponse, Trajectory, Turn,
    },
};
use tokio::time::sleep;
use tonic::{Response, Status};

use crate::{config::LearnerConfig, group::Group};

/// Attempts of a call whose status may pass, and the pause between them.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// A call in progress.
type Call<T> = BoxFuture<'static, Result<Response<T>, Status>>;

/// Plays groups again at an env-node.
pub(crate) struct Verifier {
    env: EnvClient,
    run_seed: u64,
    reward_profile: String,
    step_budget: u32,
    share: f64,
    /// Actors cannot tell which groups are played again.
    secret: RandomState,
}

/// Why a group is not accepted.
#[derive(Debug)]
pub(crate) enum VerifyError {
    /// Its actions give another result than it records.
    Differs(String),
    /// The env-node could not answer; the group may be submitted again.
    EnvAway(String),
}

impl Verifier {
    pub(crate) fn new(env: EnvClient, config: &LearnerConfig, run_seed: u64) -> Self {
        Self {
            env,
            run_seed,
            reward_profile: config.rollout.reward_profile.clone(),
            step_budget: config.rollout.step_budget,
            share: config.trust.verified_share,
            secret: RandomState::new(),
        }
    }

    /// Plays the scored episodes of a group again, unless it is not in the share.
    pub(crate) async fn verify(&self, group: &Group) -> Result<(), VerifyError> {
        if !self.is_in_share(group) {
            return Ok(());
        }
        let mut replays: Vec<BoxFuture<'_, Result<(), VerifyError>>> = Vec::new();
        for trajectory in group.trajectories.iter().filter(|it| it.scored) {
            replays.push(Box::pin(self.replay(group.index, trajectory)));
        }
        try_join_all(replays).await.map(drop)
    }

    fn is_in_share(&self, group: &Group) -> bool {
        let draw = self.secret.hash_one((group.index, group.lease_id));
        // The 53 bits that an f64 holds.
        let uniform = (draw >> 11) as f64 / (1_u64 << 53) as f64;
        uniform < self.share
    }

    async fn replay(&self, group: u64, trajectory: &Trajectory) -> Result<(), VerifyError> {
        let member = trajectory.member;
        let named = |problem: String| {
            VerifyError::Differs(format!(
                "group {group}, member {member}: {problem}; the env-node of the actor serves other \
                 data, or the actor does not record what it gets"
            ))
        };
        let mut token = self.reset(group, trajectory).await?;
        let (mut episode_return, mut is_done, mut is_correct) = (0.0, false, false);
        for (number, turn) in trajectory.turns.iter().enumerate() {
            if is_done {
                return Err(named(format!(
                    "turn {number} follows the end of the episode"
                )));
            }
            let response = self
                .step(&token, turn.action.clone().unwrap_or_default())
                .await?;
            let observation = response.observation.unwrap_or_default();
            check_turn(turn, &observation, response.reward_components)
                .map_err(|problem| named(format!("turn {number}: {problem}")))?;
            episode_return += turn.reward;
            (is_done, is_correct) = (observation.done, response.correct);
            token = response.token;
        }
        if !is_done {
            return Err(named(
                "is scored, but its actions do not end the episode".to_owned(),
            ));
        }
        let recorded = (trajectory.episode_return, trajectory.correct);
        match recorded == (episode_return, is_correct) {
            true => Ok(()),
            false => Err(named(format!(
                "records the return {} (correct: {}), but its actions give {episode_return} \
                 (correct: {is_correct})",
                recorded.0, recorded.1
            ))),
        }
    }

    /// Starts the episode as its actor did.
    async fn reset(&self, group: u64, trajectory: &Trajectory) -> Result<Vec<u8>, VerifyError> {
        let request = ResetRequest {
            question_id: trajectory.question_id.clone(),
            seed: self.run_seed,
            episode_id: format!("{:x}/{group}/{}", self.run_seed, trajectory.member),
            reward_profile: self.reward_profile.clone(),
            step_budget: self.step_budget,
            ..ResetRequest::default()
        };
        let reset = || -> Call<ResetResponse> {
            let (mut env, request) = (self.env.clone(), request.clone());
            Box::pin(async move { env.reset(request).await })
        };
        Ok(patiently(reset).await?.token)
    }

    async fn step(&self, token: &[u8], action: Action) -> Result<StepResponse, VerifyError> {
        let request = StepRequest {
            token: token.to_vec(),
            action: Some(action),
        };
        let step = || -> Call<StepResponse> {
            let (mut env, request) = (self.env.clone(), request.clone());
            Box::pin(async move { env.step(request).await })
        };
        patiently(step).await
    }
}

/// Compares a recorded turn with what its action gives.
fn check_turn(
    turn: &Turn,
    observation: &Observation,
    components: Option<RewardComponents>,
) -> Result<(), String> {
    let reward = observation.reward.unwrap_or_default();
    if turn.reward != reward || turn.reward_components != components {
        return Err(format!(
            "records the reward {} ({:?}), but its action gives {reward} ({components:?})",
            turn.reward, turn.reward_components
        ));
    }
    let is_error = !observation.error.is_empty();
    let text = match is_error {
        true => &observation.error,
        false => &observation.result,
    };
    match (turn.observation_is_error, &turn.observation_text) == (is_error, text) {
        true => Ok(()),
        false => Err("records another observation than its action gives".to_owned()),
    }
}

/// Repeats a call while its status may pass.
async fn patiently<T>(attempt: impl Fn() -> Call<T>) -> Result<T, VerifyError> {
    let mut left = ATTEMPTS;
    loop {
        match attempt().await {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) if left > 0 && may_pass(&status) => {
                left -= 1;
                sleep(PAUSE).await;
            }
            Err(status) => return Err(VerifyError::EnvAway(status_text(&status))),
        }
    }
}
