//! The loops of an actor: claim, play, submit.
//!
//! Invariant: an actor plays no piece of work twice at a time with weights of the same version.

use std::{collections::BTreeMap, time::Duration};

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

/// The pause after a claim that gives what this actor plays or submits already.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// After how long without work an actor says so, for the first time and again.
const NO_WORK: Duration = Duration::from_secs(60);
const NO_WORK_AGAIN: Duration = Duration::from_secs(300);

/// What an actor has claimed.
enum Work {
    Group(GroupClaim),
    Evaluation(EvaluationClaim),
}

impl Work {
    fn id(&self) -> WorkId {
        match self {
            Self::Group(claim) => WorkId::Group(claim.group_index),
            Self::Evaluation(claim) => WorkId::Part(claim.part_id, claim.policy_version),
        }
    }

    fn lease_id(&self) -> u64 {
        match self {
            Self::Group(claim) => claim.lease_id,
            Self::Evaluation(claim) => claim.lease_id,
        }
    }

    /// Returns whether weights of `version` may sample it. Otherwise it was handed out before a
    /// restart that took the learner to an older version, and its lease is void.
    fn fits(&self, version: u64) -> bool {
        match self {
            Self::Group(claim) => claim.min_policy_version <= version,
            Self::Evaluation(claim) => claim.policy_version == version,
        }
    }

    /// Returns the oldest policy version that may sample it.
    fn min_policy_version(&self) -> u64 {
        match self {
            Self::Group(claim) => claim.min_policy_version,
            Self::Evaluation(claim) => claim.policy_version,
        }
    }
}

/// Names a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorkId {
    Group(u64),
    /// A part of an evaluation of a policy version.
    Part(u64, u64),
}

/// The reminders that there is no work.
struct NoWork(WaitReminder);

impl NoWork {
    fn new(now: Instant) -> Self {
        Self(WaitReminder::new(now.into_std(), NO_WORK, NO_WORK_AGAIN))
    }

    /// Notes a claim that gave no work. Returns how long there has been none if that is worth a
    /// line. While this actor has work in progress, the wait begins anew, because the learner may
    /// be waiting for that work.
    fn note(&mut self, has_work_in_progress: bool, now: Instant) -> Option<Duration> {
        if has_work_in_progress {
            *self = Self::new(now);
        }
        self.0.due(now.into_std())
    }
}

/// What this actor plays or submits, with the version of its policy when it began, and the newest
/// lease of it. If a lease has ended, the learner may hand out the work again before it has the
/// result.
#[derive(Default)]
pub(super) struct WorkInProgress(parking_lot::Mutex<BTreeMap<(WorkId, u64), u64>>);

impl WorkInProgress {
    fn begin(&self, work: &Work, version: u64) -> InProgress<'_> {
        let (key, first_lease_id) = ((work.id(), version), work.lease_id());
        self.0.lock().insert(key, first_lease_id);
        InProgress {
            all: self,
            key,
            first_lease_id,
        }
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Returns whether the result of what is in progress will do for this claim, whose lease it
    /// then takes. It will not if it is too old for the claim, or if the learner was restarted to
    /// an older version in the meantime.
    fn takes(&self, claimed: &Work, version: u64) -> bool {
        let mut in_progress = self.0.lock();
        let of_versions = |version| (claimed.id(), version);
        let (oldest, newest) = (claimed.min_policy_version().min(version), version);
        let found = in_progress
            .range_mut(of_versions(oldest)..=of_versions(newest))
            .next_back();
        found
            .map(|(_, lease_id)| *lease_id = claimed.lease_id())
            .is_some()
    }
}

/// Names work as in progress until it is dropped.
struct InProgress<'a> {
    all: &'a WorkInProgress,
    key: (WorkId, u64),
    first_lease_id: u64,
}

impl InProgress<'_> {
    /// Returns the newest lease of the work.
    fn lease_id(&self) -> u64 {
        let newest = self.all.0.lock().get(&self.key).copied();
        newest.unwrap_or(self.first_lease_id)
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.key);
    }
}

impl Actor {
    /// Plays work until one loop fails. At most `concurrent_groups` loops play at a time, and as
    /// many may submit meanwhile: the learner replays a submitted group, which takes as long as its
    /// env steps, and the engine would have nothing to sample.
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
        let (work, in_progress) = {
            let _permit = claimer.lock().await;
            let work = self.next_work().await?;
            // Before another loop claims.
            let in_progress = self.in_progress.begin(&work, self.version());
            (work, in_progress)
        };
        let _in_flight = matches!(work, Work::Group(_)).then(InFlight::group);
        let span = Span::current();
        let played = match &work {
            Work::Group(claim) => {
                span.record("group", claim.group_index);
                span.record("policy_version", self.version());
                self.roll_out(claim).await?
            }
            Work::Evaluation(claim) => {
                span.record("evaluation_part", claim.part_id);
                span.record("policy_version", claim.policy_version);
                self.evaluate(claim).await?
            }
        };
        drop(player);
        let Some(trajectories) = played else {
            return Ok(());
        };
        let lease_id = in_progress.lease_id();
        match &work {
            Work::Group(claim) => self.learner.submit(claim, lease_id, trajectories).await,
            Work::Evaluation(claim) => {
                let submit = self
                    .learner
                    .submit_evaluation(claim, lease_id, trajectories);
                submit.await
            }
        }
    }

    /// Claims until there is something to play.
    async fn next_work(&self) -> Result<Work, ActorError> {
        let began = Instant::now();
        let mut no_work = NoWork::new(began);
        loop {
            let version = self.version();
            let work = match self.learner.claim(version, self.report()).await? {
                Some(Outcome::Group(claim)) => Work::Group(claim),
                Some(Outcome::Evaluation(claim)) => Work::Evaluation(claim),
                Some(Outcome::Wait(wait)) => {
                    let is_busy = !self.in_progress.is_empty();
                    if let Some(waited) = no_work.note(is_busy, Instant::now()) {
                        let seconds = waited.as_secs();
                        tracing::warn!(
                            "the learner has had no work for {seconds} s: it trains, or waits for \
                             groups of other actors"
                        );
                    }
                    self.wait_for_other_than(version, wait.retry_after_milliseconds)
                        .await;
                    continue;
                }
                None => {
                    let status = tonic::Status::internal("a claim without an outcome");
                    return Err(ActorError::call("Learner.Claim", status));
                }
            };
            if !work.fits(self.version()) {
                continue;
            }
            if self.in_progress.takes(&work, self.version()) {
                tokio::time::sleep(BUSY_PAUSE).await;
                continue;
            }
            metrics::record_idle(began.elapsed());
            return Ok(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(group_index: u64, lease_id: u64, min_policy_version: u64) -> Work {
        Work::Group(GroupClaim {
            group_index,
            lease_id,
            min_policy_version,
            ..GroupClaim::default()
        })
    }

    fn part(policy_version: u64, lease_id: u64) -> Work {
        Work::Evaluation(EvaluationClaim {
            part_id: 3,
            lease_id,
            policy_version,
            ..EvaluationClaim::default()
        })
    }

    #[test]
    fn time_in_which_an_actor_plays_is_not_time_without_work() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let mut no_work = NoWork::new(began);
        let while_playing = (0..=300).filter_map(|second| no_work.note(true, after(second)));
        assert_eq!(while_playing.count(), 0);
        assert_eq!(no_work.note(false, after(301)), None);
        let waited = Duration::from_secs(61);
        assert_eq!(no_work.note(false, after(361)), Some(waited));
        assert_eq!(no_work.note(false, after(362)), None);
    }

    #[test]
    fn work_in_progress_takes_the_newer_lease() {
        let all = WorkInProgress::default();
        for (begun, again) in [
            (group(3, 10, 5), group(3, 11, 5)),
            (part(5, 10), part(5, 11)),
        ] {
            let in_progress = all.begin(&begun, 5);
            assert!(all.takes(&again, 5));
            assert_eq!(in_progress.lease_id(), 11);
            assert!(!all.is_empty());
            drop(in_progress);
            assert!(all.is_empty());
            assert!(!all.takes(&again, 5), "it has ended");
        }
    }

    /// The learner was restarted to an older version, or needs a newer one than the actor had.
    #[test]
    fn work_of_another_version_is_played_again() {
        let all = WorkInProgress::default();
        let in_progress = all.begin(&group(3, 10, 5), 5);
        assert!(!all.takes(&group(3, 11, 4), 4));
        assert!(!all.takes(&group(3, 11, 6), 6));
        assert!(!all.takes(&group(4, 11, 5), 5), "another group");
        assert_eq!(in_progress.lease_id(), 10);
        let newer = all.begin(&group(3, 12, 6), 6);
        assert_eq!(
            (in_progress.lease_id(), newer.lease_id()),
            (10, 12),
            "each has its own lease"
        );
        drop(in_progress);
        assert!(all.takes(&group(3, 13, 6), 6), "the newer one goes on");
        assert_eq!(newer.lease_id(), 13);
        let _part = all.begin(&part(5, 10), 5);
        assert!(!all.takes(&part(4, 11), 4));
    }
}
