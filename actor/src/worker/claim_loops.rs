//! The loops of an actor: claim, play, submit.
//!
//! Invariant: no piece of work is played while it is being submitted.

use std::{
    collections::BTreeSet,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use futures::stream::{FuturesUnordered, StreamExt};
use proto::{
    TRACES, WaitReminder,
    v1::{EvaluationClaim, GroupClaim, claim_response::Outcome},
};
use tokio::{
    sync::{Mutex, Semaphore, SemaphorePermit},
    time::Instant,
};
use tracing::{Instrument as _, Span, field::Empty};

use super::Actor;
use crate::{
    error::ActorError,
    metrics::{self, InFlight},
};

/// The pause after a claim that gives what is being submitted.
const SUBMITTING_PAUSE: Duration = Duration::from_millis(200);

/// After how long without work an actor says so, for the first time and again.
const NO_WORK: Duration = Duration::from_secs(60);
const NO_WORK_AGAIN: Duration = Duration::from_secs(300);

/// What an actor has claimed.
enum Work {
    Group(GroupClaim),
    Evaluation(EvaluationClaim),
}

/// Names a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorkId {
    Group(u64),
    Part(u64),
}

/// What is being submitted. If its lease has ended, the learner may hand it out again before it has
/// the result.
#[derive(Default)]
pub(super) struct Submissions(std::sync::Mutex<BTreeSet<WorkId>>);

impl Submissions {
    fn begin(&self, work: WorkId) -> Submitting<'_> {
        self.lock().insert(work);
        Submitting(self, work)
    }

    fn contains(&self, work: WorkId) -> bool {
        self.lock().contains(&work)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<WorkId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names work as being submitted until it is dropped.
struct Submitting<'a>(&'a Submissions, WorkId);

impl Drop for Submitting<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Actor {
    /// Plays work until one loop fails. At most `concurrent_groups` loops play at a time, and as
    /// many may submit meanwhile: the learner plays a submitted group again, which takes as long as
    /// its env steps, and the engine would have nothing to sample.
    pub(super) async fn run_claim_loops(&self, concurrent_groups: usize) -> Result<(), ActorError> {
        let (claimer, players) = (Mutex::new(()), Semaphore::new(concurrent_groups));
        let mut loops: FuturesUnordered<_> = (0..2 * concurrent_groups)
            .map(|_| self.claim_and_roll_out(&claimer, &players))
            .collect();
        loops.next().await.unwrap_or(Ok(()))
    }

    /// Claims, rolls out and submits. Only the loop that holds `claimer` claims, so that an actor
    /// has one claim waiting at the learner, not one for each loop.
    async fn claim_and_roll_out(
        &self,
        claimer: &Mutex<()>,
        players: &Semaphore,
    ) -> Result<(), ActorError> {
        loop {
            // The semaphore is never closed.
            let player = players.acquire().await.ok();
            let span = tracing::trace_span!(
                target: TRACES, "work", group = Empty, evaluation_part = Empty, policy_version = Empty
            );
            self.play_next(claimer, player).instrument(span).await?;
        }
    }

    /// Claims one piece of work, plays it, lets another loop play, and submits it.
    async fn play_next(
        &self,
        claimer: &Mutex<()>,
        player: Option<SemaphorePermit<'_>>,
    ) -> Result<(), ActorError> {
        let work = {
            let _permit = claimer.lock().await;
            self.next_work().await?
        };
        let span = Span::current();
        match work {
            Work::Group(claim) => {
                span.record("group", claim.group_index);
                span.record("policy_version", self.version());
                let _in_flight = InFlight::group();
                let trajectories = self.roll_out(&claim).await?;
                let _submitting = self.submissions.begin(WorkId::Group(claim.group_index));
                drop(player);
                self.learner.submit(&claim, trajectories).await
            }
            Work::Evaluation(claim) => {
                span.record("evaluation_part", claim.part_id);
                span.record("policy_version", claim.policy_version);
                let played = self.evaluate(&claim).await?;
                let _submitting = self.submissions.begin(WorkId::Part(claim.part_id));
                drop(player);
                match played {
                    Some(trajectories) => {
                        self.learner.submit_evaluation(&claim, trajectories).await
                    }
                    None => Ok(()),
                }
            }
        }
    }

    /// Claims until there is something to play.
    async fn next_work(&self) -> Result<Work, ActorError> {
        let began = Instant::now();
        let mut reminder = WaitReminder::new(began.into_std(), NO_WORK, NO_WORK_AGAIN);
        loop {
            let version = self.version();
            match self.learner.claim(version, self.report()).await? {
                // Handed out before a restart that took the learner to an older version: the lease
                // is void.
                Some(Outcome::Group(claim)) if claim.min_policy_version > self.version() => {}
                Some(Outcome::Group(claim))
                    if self.submissions.contains(WorkId::Group(claim.group_index)) =>
                {
                    tokio::time::sleep(SUBMITTING_PAUSE).await;
                }
                Some(Outcome::Evaluation(claim))
                    if self.submissions.contains(WorkId::Part(claim.part_id)) =>
                {
                    tokio::time::sleep(SUBMITTING_PAUSE).await;
                }
                Some(Outcome::Group(claim)) => {
                    metrics::record_idle(began.elapsed());
                    return Ok(Work::Group(claim));
                }
                // As above: the learner was restarted, and evaluates another version by now.
                Some(Outcome::Evaluation(claim)) if claim.policy_version != self.version() => {}
                Some(Outcome::Evaluation(claim)) => {
                    metrics::record_idle(began.elapsed());
                    return Ok(Work::Evaluation(claim));
                }
                Some(Outcome::Wait(wait)) => {
                    if let Some(waited) = reminder.due(Instant::now().into_std()) {
                        let seconds = waited.as_secs();
                        tracing::warn!(
                            "the learner has had no work for {seconds} s: it trains, or waits for \
                             groups of other actors"
                        );
                    }
                    self.wait_for_other_than(version, wait.retry_after_milliseconds)
                        .await;
                }
                // Only an older learner returns this. The actor still stops by one route: the end
                // that the weights stream delivers.
                Some(Outcome::Finished(_)) => std::future::pending().await,
                None => {
                    let status = tonic::Status::internal("a claim without an outcome");
                    return Err(ActorError::call("Learner.Claim", status));
                }
            }
        }
    }
}
