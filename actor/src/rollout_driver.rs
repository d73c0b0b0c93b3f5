//! Runs episodes: carries out a rollout's requests with a policy and an environment.
//!
//! Invariant: training, evaluation and demonstrations run the same code. An episode that fails for
//! a reason outside the agent yields an unscored trajectory and the error. It never stops the other
//! episodes.

use std::{
    collections::BTreeMap,
    iter,
    sync::atomic::{AtomicUsize, Ordering},
};

use futures::{StreamExt, future::join_all, stream};
use parking_lot::Mutex;
use proto::{
    TRACES,
    v1::{Observation, Trajectory},
};
use tracing::Instrument as _;

use crate::{
    env_session::EnvSession,
    episode_settings::{EpisodeSettings, EpisodeSpec},
    error::ActorError,
    metrics::InFlight,
    model_policy::{Policy, TurnView},
    rollout::{Rollout, RolloutRequest, failed_trajectory},
};

/// The result of one rollout.
#[derive(Debug)]
pub struct RolloutOutcome {
    /// What was sampled. The trajectory is unscored if the episode failed.
    pub trajectory: Trajectory,
    /// The error outside the agent that ended the episode, if any.
    pub error: Option<ActorError>,
}

/// Runs one episode. It holds one of the policy's permits until it ends.
pub async fn run_episode(
    policy: &dyn Policy,
    settings: &EpisodeSettings,
    spec: &EpisodeSpec,
) -> RolloutOutcome {
    let _permit = policy.acquire_permit().await;
    let _in_flight = InFlight::episode();
    let (mut trajectory, error) = match start(settings, spec).await {
        Ok(episode) => drive(policy, episode).await,
        Err(error) => {
            let member = spec.coordinates.member;
            (failed_trajectory(member, error.to_string()), Some(error))
        }
    };
    trajectory.question_id.clone_from(&spec.question_id);
    RolloutOutcome { trajectory, error }
}

/// Runs episodes, `concurrency` at a time. Returns the outcomes in the order of `specs`. Calls
/// `on_done` as each episode ends, with the number of those that ended and the trajectory.
///
/// `policies` are copies of one policy, for instance one for each engine. Each begins another
/// episode when one of its own ends.
pub async fn run_episodes(
    policies: &[&dyn Policy],
    settings: &EpisodeSettings,
    specs: &[EpisodeSpec],
    concurrency: usize,
    on_done: impl FnMut(usize, &Trajectory),
) -> Vec<RolloutOutcome> {
    let at_once = concurrency.div_ceil(policies.len().max(1)).max(1);
    let (begun, done) = (AtomicUsize::new(0), Mutex::new((0, on_done)));
    let done = |trajectory: &Trajectory| {
        let mut done = done.lock();
        let (count, on_done) = &mut *done;
        *count += 1;
        on_done(*count, trajectory);
    };
    let share = |policy| run_share(policy, settings, (specs, &begun), at_once, &done);
    let shares = join_all(policies.iter().map(|&policy| share(policy))).await;
    let outcomes: BTreeMap<usize, RolloutOutcome> = shares.into_iter().flatten().collect();
    outcomes.into_values().collect()
}

/// Runs episodes from the number `begun` on, which others count on as well, `at_once` at a time.
async fn run_share(
    policy: &dyn Policy,
    settings: &EpisodeSettings,
    (specs, begun): (&[EpisodeSpec], &AtomicUsize),
    at_once: usize,
    done: impl Fn(&Trajectory),
) -> Vec<(usize, RolloutOutcome)> {
    let next = || {
        let index = begun.fetch_add(1, Ordering::Relaxed);
        specs.get(index).map(|spec| (index, spec))
    };
    // `buffered` would return the outcomes in order, but a slow episode would then hold up the
    // start of later ones.
    let mut running = stream::iter(iter::from_fn(next))
        .map(|(index, spec)| async move {
            let member = spec.coordinates.member;
            let span = tracing::trace_span!(
                target: TRACES, "episode", question = spec.question_id, member
            );
            let outcome = run_episode(policy, settings, spec).instrument(span).await;
            (index, outcome)
        })
        .buffer_unordered(at_once);
    let mut outcomes = Vec::new();
    while let Some((index, outcome)) = running.next().await {
        done(&outcome.trajectory);
        outcomes.push((index, outcome));
    }
    outcomes
}

/// A started episode, with the first request and the newest observation.
type StartedEpisode<'a> = (EnvSession<'a>, Rollout, RolloutRequest, Observation);

async fn start<'a>(
    settings: &'a EpisodeSettings,
    spec: &'a EpisodeSpec,
) -> Result<StartedEpisode<'a>, ActorError> {
    let (session, observation) = EnvSession::reset(settings, spec).await?;
    let (rollout, request) = Rollout::on_reset(
        settings.chat.clone(),
        settings.limits,
        spec.coordinates,
        &observation,
    )?;
    Ok((session, rollout, request, observation))
}

async fn drive(
    policy: &dyn Policy,
    (mut session, mut rollout, mut request, mut observation): StartedEpisode<'_>,
) -> (Trajectory, Option<ActorError>) {
    loop {
        let next = match request {
            RolloutRequest::Done(trajectory) => return (trajectory, None),
            RolloutRequest::Complete(request) => {
                let view = TurnView {
                    question_id: session.question_id(),
                    observation: &observation,
                    request: &request,
                };
                let span = tracing::trace_span!(target: TRACES, "complete");
                let completion = policy.complete(view).instrument(span).await;
                completion.and_then(|completion| Ok(rollout.on_completion(&completion)?))
            }
            RolloutRequest::Step(action) => session.step(action).await.and_then(|response| {
                let request = rollout.on_step(&response)?;
                observation = response.observation.unwrap_or_default();
                Ok(request)
            }),
        };
        request = match next {
            Ok(request) => request,
            Err(error) => return (rollout.fail(error.to_string()), Some(error)),
        };
    }
}
