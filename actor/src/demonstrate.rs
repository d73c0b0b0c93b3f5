//! Demonstrations: trajectories of a scripted policy in the real environment, ready for imitation.
//!
//! They are made by the rollout that sampling uses, so their tokens are those that a model would see and sample: assistant
//! tokens bear mask 1, each run of tokens was encoded on its own.

use policy::{Coordinates, random::derive_seed};
use proto::v1::Trajectory;

use crate::{
    play::{Seat, Table},
    policies::Policy,
};

/// Which demonstrations to make.
#[derive(Clone, Debug)]
pub struct Demonstrations<'a> {
    /// Question ids, one for each demonstration; repeated ones are played with other chances.
    pub question_ids: &'a [String],
    /// All chances derive from it.
    pub seed: u64,
    /// Episodes at a time; it changes nothing else.
    pub concurrency: usize,
}

/// Has a scripted policy play the questions, in their order. An episode that broke off is left out, and so is one that is
/// longer than a context, or was cut into several segments, so that what its later turns answer is no longer in sight.
pub async fn demonstrate(
    policy: &dyn Policy,
    table: &Table,
    wanted: &Demonstrations<'_>,
    mut progress: impl FnMut(usize, usize),
) -> Vec<Trajectory> {
    let run_seed = derive_seed(wanted.seed, "demonstrations");
    let seat = |(index, question_id): (usize, &String)| Seat {
        question_id: question_id.clone(),
        coordinates: Coordinates {
            run_seed,
            group: index as u64,
            ..Coordinates::default()
        },
    };
    let seats: Vec<Seat> = wanted.question_ids.iter().enumerate().map(seat).collect();
    let mut done = 0;
    let on_done = |_: &Trajectory| {
        done += 1;
        progress(done, seats.len());
    };
    let played = table
        .play_all(policy, &seats, wanted.concurrency, on_done)
        .await;
    played
        .into_iter()
        .map(|played| played.trajectory)
        .filter(|trajectory| trajectory.scored && fits(trajectory, table.limits.max_context_tokens))
        .collect()
}

/// Scripts heed no limit on tokens, and a last answer is never cut; what is trained on must be bounded.
fn fits(trajectory: &Trajectory, max_context_tokens: usize) -> bool {
    matches!(trajectory.segments.as_slice(), [segment] if segment.tokens.len() <= max_context_tokens)
}
