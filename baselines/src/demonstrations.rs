//! Demonstrations: trajectories of a scripted policy in the environment, for supervised
//! fine-tuning.
//!
//! The rollout that samples from models produces them, so their tokens are those that a model would
//! see and sample. Only the tokens of completions have mask 1.

use actor::{EpisodeSettings, EpisodeSpec, Policy, run_episodes};
use policy::{Coordinates, random::derive_seed};
use proto::v1::Trajectory;

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
    mut on_done: impl FnMut(usize),
) -> Vec<Trajectory> {
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
    let outcomes = run_episodes(policies, settings, &specs, wanted.concurrency, count).await;
    let limit = settings.limits.max_context_tokens;
    outcomes
        .into_iter()
        .map(|outcome| outcome.trajectory)
        .filter(|trajectory| trajectory.scored && fits(trajectory, limit))
        .collect()
}

/// Returns whether a trajectory is one segment within the limit. Scripted policies ignore the token
/// limit of a completion, and the rollout never truncates the last one.
fn fits(trajectory: &Trajectory, max_context_tokens: usize) -> bool {
    let segments = &trajectory.segments;
    segments.len() == 1 && segments[0].tokens.len() <= max_context_tokens
}
