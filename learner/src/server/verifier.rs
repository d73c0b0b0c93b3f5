//! Plays the episodes of submitted groups and evaluations again, so that no reward and no
//! observation is taken on trust.
//!
//! Invariant: an episode is accepted only if its actions give the recorded results at the learner's
//! own env-node. An episode is a function of the question, its settings and the actions, so honest
//! actors cannot differ; and replaying needs no keys, unlike results that env-nodes sign, and also
//! finds env-nodes that are broken. It doubles the work of env-nodes, which is small beside that of
//! sampling. An env-node that is away delays the answer to the actor, and decides nothing. One that
//! refuses an action decides: no scored episode has such an action.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use policy::random::derive_seed;
use proto::{
    EnvClient, RareWarning, may_pass, status_text,
    v1::{
        Action, ActorIdentity, Observation, ReplayRequest, ReplayResponse, ResetRequest,
        ResetResponse, RewardComponents, StepResponse, Trajectory, Turn,
    },
};
use tokio::time::{sleep, timeout};
use tonic::{Code, Response, Status};

use crate::{
    config::LearnerConfig,
    group::{Group, SubmissionHead},
};

/// Attempts of a call whose status may pass, and the pause between them.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);
/// A replay may last as long as a lease, or this long if that is longer: databases may be slow. A
/// result counts even if its lease has expired.
const MIN_PATIENCE_SECONDS: u32 = 300;

/// Bytes of actions that one call plays. A request also has a token, and a node takes 6 MiB by
/// default.
const REPLAY_BYTES: usize = 256 << 10;

/// A call in progress.
type Call<T> = BoxFuture<'static, Result<Response<T>, Status>>;

/// Plays groups again at an env-node.
pub(crate) struct Verifier {
    env: EnvClient,
    run_seed: u64,
    reward_profile: String,
    /// What actors must play on and run.
    pub(super) expected: ActorIdentity,
    step_budget: u32,
    share: f64,
    /// How long a replay may last. The actor waits as long for the answer, and then submits it
    /// again.
    pub(crate) patience_seconds: u32,
    warning: Mutex<RareWarning>,
    /// Actors cannot tell which groups are played again.
    secret: RandomState,
}

/// Why a group is not accepted.
#[derive(Debug)]
pub(crate) enum VerifyError {
    /// Its actions give another result than it records.
    Differs(String),
    /// The env-node could not answer; the episodes may be submitted again.
    EnvAway(String),
}

/// A submitted episode, and how its actor started it.
struct Played<'a> {
    /// Names it in errors.
    name: String,
    seed: u64,
    group: u64,
    trajectory: &'a Trajectory,
}

impl Played<'_> {
    fn differs(&self, problem: &str) -> VerifyError {
        VerifyError::Differs(format!(
            "{}: {problem}; the env-node of the actor serves other data, or the actor does not \
             record what it gets",
            self.name
        ))
    }
}

impl Verifier {
    /// Creates the verifier of a run whose actors play on `expected`.
    pub(crate) fn new(
        env: EnvClient,
        expected: ActorIdentity,
        config: &LearnerConfig,
        run_seed: u64,
    ) -> Self {
        let profile = match config.rollout.reward_profile.as_str() {
            "" => &expected.reward_profile,
            named => named,
        };
        Self {
            env,
            run_seed,
            reward_profile: profile.to_owned(),
            expected,
            step_budget: config.rollout.step_budget,
            share: config.trust.verified_share,
            patience_seconds: config.lease_seconds.max(MIN_PATIENCE_SECONDS),
            warning: Mutex::default(),
            secret: RandomState::new(),
        }
    }

    /// Plays the scored episodes of a group again, unless it is not in the share.
    pub(crate) async fn verify(&self, group: &Group) -> Result<(), VerifyError> {
        if !self.is_in_share(group.head.number, group.head.lease_id) {
            return Ok(());
        }
        let episodes = scored(&group.trajectories).map(|trajectory| Played {
            name: format!("group {}, member {}", group.head.number, trajectory.member),
            seed: self.run_seed,
            group: group.head.number,
            trajectory,
        });
        self.replay_all(episodes).await
    }

    /// Plays the scored episodes of a part of an evaluation again, unless it is not in the share.
    pub(crate) async fn verify_part(
        &self,
        head: &SubmissionHead,
        seed: u64,
        trajectories: &[Trajectory],
    ) -> Result<(), VerifyError> {
        if !self.is_in_share(head.number, head.lease_id) {
            return Ok(());
        }
        let episodes = scored(trajectories).map(|trajectory| Played {
            name: format!("evaluation, question {:?}", trajectory.question_id),
            seed: derive_seed(seed, &trajectory.question_id),
            group: 0,
            trajectory,
        });
        self.replay_all(episodes).await
    }

    fn is_in_share(&self, work: u64, lease_id: u64) -> bool {
        let draw = self.secret.hash_one((work, lease_id));
        // The 53 bits that an f64 holds.
        let uniform = (draw >> 11) as f64 / (1_u64 << 53) as f64;
        uniform < self.share
    }

    async fn replay_all<'a>(
        &self,
        episodes: impl Iterator<Item = Played<'a>>,
    ) -> Result<(), VerifyError> {
        let seconds = self.patience_seconds;
        let mut replays: Vec<BoxFuture<'_, Result<(), VerifyError>>> = Vec::new();
        for played in episodes {
            replays.push(Box::pin(async move {
                let replayed = timeout(Duration::from_secs(seconds.into()), self.replay(&played));
                let late = |_| Err(VerifyError::EnvAway(format!("no answer for {seconds} s")));
                replayed.await.unwrap_or_else(late)
            }));
        }
        // All of them, also after a refusal: a call that is dropped would count against env-node.
        let faults = join_all(replays).await.into_iter().filter_map(Result::err);
        // An env-node that is away for one episode does not excuse another that differs.
        match faults.min_by_key(|it| matches!(it, VerifyError::EnvAway(_))) {
            None => Ok(()),
            Some(VerifyError::EnvAway(problem)) => Err(self.env_away(&problem)),
            Some(differs) => Err(differs),
        }
    }

    /// Says now and then that the env-node is away.
    fn env_away(&self, problem: &str) -> VerifyError {
        let text = format!("the learner's env-node cannot play episodes again: {problem}");
        if let Some(submissions) = self.warning.lock().note() {
            tracing::warn!(submissions, "{text}; their actors submit them again");
        }
        VerifyError::EnvAway(text)
    }

    async fn replay(&self, played: &Played<'_>) -> Result<(), VerifyError> {
        let trajectory = played.trajectory;
        let mut token = self.reset(played).await?;
        let (mut episode_return, mut is_done, mut is_correct) = (0.0, false, false);
        let mut left = trajectory.turns.iter().enumerate().peekable();
        while let Some((number, _)) = left.peek() {
            let named = |number: usize, problem: String| {
                played.differs(&format!("turn {number} {problem}"))
            };
            if is_done {
                let problem = "follows the end of the episode".to_owned();
                return Err(named(*number, problem));
            }
            let steps = self.steps(&token, &trajectory.turns[*number..]);
            let steps = steps.await.map_err(|fault| match fault {
                StepFault::Refused(status) => named(
                    *number,
                    format!("has an action that the env-node refuses: {status}"),
                ),
                StepFault::Away(status) => VerifyError::EnvAway(status),
            })?;
            for (response, (number, turn)) in steps.into_iter().zip(&mut left) {
                let observation = response.observation.unwrap_or_default();
                check_turn(turn, &observation, response.reward_components)
                    .map_err(|problem| named(number, problem))?;
                episode_return += turn.reward;
                (is_done, is_correct) = (observation.done, response.correct);
                token = response.token;
            }
        }
        if !is_done {
            return Err(played.differs("is scored, but its actions do not end the episode"));
        }
        let recorded = (trajectory.episode_return, trajectory.correct);
        match recorded == (episode_return, is_correct) {
            true => Ok(()),
            false => Err(played.differs(&format!(
                "records the return {} (correct: {}), but its actions give {episode_return} \
                 (correct: {is_correct})",
                recorded.0, recorded.1
            ))),
        }
    }

    /// Starts the episode as its actor did.
    async fn reset(&self, played: &Played<'_>) -> Result<Vec<u8>, VerifyError> {
        let (seed, trajectory) = (played.seed, played.trajectory);
        let request = ResetRequest {
            question_id: trajectory.question_id.clone(),
            seed,
            episode_id: format!("{seed:x}/{}/{}", played.group, trajectory.member),
            reward_profile: self.reward_profile.clone(),
            step_budget: self.step_budget,
            data_sha256: self.expected.data_sha256.clone(),
            environment_version: self.expected.environment_version.clone(),
            ..ResetRequest::default()
        };
        let reset = || -> Call<ResetResponse> {
            let (mut env, request) = (self.env.clone(), request.clone());
            Box::pin(async move { env.reset(request).await })
        };
        let response = patiently(reset).await;
        let away = |status| VerifyError::EnvAway(status_text(&status));
        Ok(response.map_err(away)?.token)
    }

    /// Plays the actions of the first turns, and of at least one, in one call.
    async fn steps(&self, token: &[u8], turns: &[Turn]) -> Result<Vec<StepResponse>, StepFault> {
        let mut request = ReplayRequest {
            token: token.to_vec(),
            actions: first_actions(turns),
        };
        loop {
            let replay = || -> Call<ReplayResponse> {
                let (mut env, request) = (self.env.clone(), request.clone());
                Box::pin(async move { env.replay(request).await })
            };
            let replayed = patiently(replay).await;
            let count = request.actions.len();
            match replayed {
                Ok(ReplayResponse { steps }) if (1..=count).contains(&steps.len()) => {
                    return Ok(steps);
                }
                Ok(ReplayResponse { steps }) => {
                    return Err(StepFault::Away(format!(
                        "the env-node gave {} results for {count} actions",
                        steps.len()
                    )));
                }
                // An env-node may be set to take shorter requests than this one.
                Err(status) if status.code() == Code::OutOfRange && count > 1 => {
                    request.actions.truncate(1);
                }
                Err(status) => return Err(StepFault::from(&status)),
            }
        }
    }
}

/// Returns the episodes that an actor completed.
fn scored(trajectories: &[Trajectory]) -> impl Iterator<Item = &Trajectory> {
    trajectories.iter().filter(|trajectory| trajectory.scored)
}

/// Why an action could not be played, in words.
enum StepFault {
    /// The env-node refuses it.
    Refused(String),
    /// The env-node could not answer.
    Away(String),
}

impl From<&Status> for StepFault {
    fn from(status: &Status) -> Self {
        match status.code() {
            Code::InvalidArgument | Code::OutOfRange => Self::Refused(status_text(status)),
            _ => Self::Away(status_text(status)),
        }
    }
}

/// Returns the actions of the first turns that fit one call, and of at least one.
fn first_actions(turns: &[Turn]) -> Vec<Action> {
    let mut bytes = 0;
    let actions = turns
        .iter()
        .map(|turn| turn.action.clone().unwrap_or_default());
    let fits = |action: &Action| {
        let is_first = bytes == 0;
        bytes += 1 + action.action_type.len() + action.argument.len();
        is_first || bytes <= REPLAY_BYTES
    };
    actions.take_while(fits).collect()
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
async fn patiently<T>(attempt: impl Fn() -> Call<T>) -> Result<T, Status> {
    let mut left = ATTEMPTS;
    loop {
        match attempt().await {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) if left > 0 && may_pass(&status) => {
                left -= 1;
                sleep(PAUSE).await;
            }
            Err(status) => return Err(status),
        }
    }
}

#[cfg(test)]
mod tests;
