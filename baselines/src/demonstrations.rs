//! Demonstrations: trajectories of a scripted policy in the environment, for supervised
//! fine-tuning.
//!
//! The rollout that samples from models produces them, so their tokens are those that a model would
//! see and sample. Only the tokens of completions have mask 1.

use actor::{ActorError, EpisodeSettings, EpisodeSpec, Policy, RolloutOutcome, run_episodes};
use policy::{Coordinates, random::derive_seed};
use proto::{
    has_reason,
    v1::{ErrorReason, Segment, Trajectory},
};

/// Which demonstrations to run.
#[derive(Clone, Debug)]
pub struct Demonstrations<'a> {
    /// The question id of each demonstration. A repeated question has other random draws.
    pub question_ids: &'a [String],
    /// The seed of all random draws.
    pub seed: u64,
    /// Episodes at a time. It does not change the demonstrations.
    pub concurrency: usize,
}

/// Runs the demonstrations and returns their trajectories in the order of the questions.
/// `policies` are copies of one policy, for instance one for each engine. Calls `on_done` with the
/// number of finished episodes.
///
/// Episodes that failed are left out. So are episodes with more tokens than a context, or with
/// several segments: their later turns refer to results that are no longer in the segment.
pub async fn demonstrate(
    policies: &[&dyn Policy],
    settings: &EpisodeSettings,
    wanted: &Demonstrations<'_>,
    on_done: impl FnMut(usize),
) -> Vec<Trajectory> {
    let limit = settings.limits.max_context_tokens;
    let played = play(policies, settings, wanted, on_done).await;
    let trajectories = played.into_iter().map(|outcome| outcome.trajectory);
    let usable = trajectories.filter(|it| it.scored && fits(it, limit));
    usable.collect()
}

/// Runs the demonstrations of a policy that knows the solutions, and returns what it shows of each
/// question, in order; none if it does not answer it without an error, or not within one context.
///
/// # Errors
/// Returns the first question whose episode failed, and why.
pub async fn demonstrate_correctly(
    policy: &dyn Policy,
    settings: &EpisodeSettings,
    wanted: &Demonstrations<'_>,
) -> Result<Vec<Option<Segment>>, (String, ActorError)> {
    let limit = settings.limits.max_context_tokens;
    let shown = |outcome: RolloutOutcome| {
        let mut trajectory = outcome.trajectory;
        match outcome.error {
            Some(error) if !takes_too_long(&error) => Err((trajectory.question_id, error)),
            Some(_) => Ok(None),
            None => {
                let is_shown = is_solution(&trajectory) && fits(&trajectory, limit);
                Ok(is_shown.then(|| trajectory.segments.remove(0)))
            }
        }
    };
    let played = play(&[policy], settings, wanted, drop).await;
    played.into_iter().map(shown).collect()
}

/// Returns whether the gold SQL exceeds the wall clock, so that no later attempt helps.
fn takes_too_long(error: &ActorError) -> bool {
    match error {
        ActorError::Call { status, .. } => has_reason(status, ErrorReason::WallClock),
        _ => false,
    }
}

/// Returns whether an episode shows how its question is answered.
fn is_solution(trajectory: &Trajectory) -> bool {
    let mut turns = trajectory.turns.iter();
    trajectory.scored && trajectory.correct && turns.all(|turn| !turn.observation_is_error)
}

async fn play(
    policies: &[&dyn Policy],
    settings: &EpisodeSettings,
    wanted: &Demonstrations<'_>,
    mut on_done: impl FnMut(usize),
) -> Vec<RolloutOutcome> {
    let run_seed = derive_seed(wanted.seed, "demonstrations");
    let spec = |(index, question_id): (usize, &String)| EpisodeSpec {
        question_id: question_id.clone(),
        coordinates: Coordinates {
            run_seed,
            group: index as u64,
            ..Coordinates::default()
        },
    };
    let specs: Vec<EpisodeSpec> = wanted.question_ids.iter().enumerate().map(spec).collect();
    let count = |done, _: &Trajectory| on_done(done);
    run_episodes(policies, settings, &specs, wanted.concurrency, count).await
}

/// Returns whether a trajectory is one segment within the limit. Scripted policies ignore the token
/// limit of a completion, and the rollout never truncates the last one.
fn fits(trajectory: &Trajectory, max_context_tokens: usize) -> bool {
    let segments = &trajectory.segments;
    segments.len() == 1 && segments[0].tokens.len() <= max_context_tokens
}
