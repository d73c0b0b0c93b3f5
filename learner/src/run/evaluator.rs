//! The evaluation in progress, between the trainer's thread and the actors.
//!
//! Invariant: the trainer waits until an evaluation is complete or the run is stopped, so the
//! version that is evaluated stays the newest.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use proto::{WaitReminder, v1::Trajectory};

use crate::{
    clock::now,
    error::Result,
    evaluation_queue::{EvaluationLease, EvaluationQueue, EvaluationSet},
    group::SubmissionHead,
    leases::Leases,
    metrics::{self, EVALUATION, Stopwatch},
};

/// After how long without a result the trainer says so, for the first time and again.
const NO_RESULT: Duration = Duration::from_secs(60);
const NO_RESULT_AGAIN: Duration = Duration::from_secs(300);

/// What is evaluated, by the version after whose step it is.
pub type EvaluationPlan = BTreeMap<u64, Vec<EvaluationSet>>;

/// The plan, and the set in progress.
pub(crate) struct Evaluator {
    state: Mutex<EvaluatorState>,
    changed: Condvar,
}

struct EvaluatorState {
    plan: EvaluationPlan,
    queue: EvaluationQueue,
    /// True from the beginning of a set until its result is recorded.
    is_evaluating: bool,
    is_stopped: bool,
}

impl Evaluator {
    /// Creates an evaluator without a plan. Its parts have other ids than those of the process
    /// before a restart, whose results may still arrive.
    pub(crate) fn new(lease: Duration, max_leases_per_actor: usize) -> Self {
        let random = RandomState::new();
        let leases = Leases::new(lease, max_leases_per_actor, random.hash_one("leases"));
        let state = EvaluatorState {
            plan: EvaluationPlan::new(),
            queue: EvaluationQueue::new(leases, random.hash_one("parts") >> 1),
            is_evaluating: false,
            is_stopped: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Sets what is evaluated from `version` on.
    pub(crate) fn plan(&self, mut plan: EvaluationPlan, version: u64) {
        let later = plan.split_off(&version);
        if !plan.is_empty() {
            let missed: Vec<u64> = plan.into_keys().collect();
            tracing::warn!(
                "the evaluations at steps {missed:?} are not recorded and are left out, because \
                 the run is at step {version}"
            );
        }
        for set in later.values().flatten() {
            metrics::evaluation_planned(&set.name);
        }
        self.state.lock().plan = later;
    }

    /// Returns the sets of a version. They are planned no more.
    pub(crate) fn take_sets(&self, version: u64) -> Vec<EvaluationSet> {
        self.state.lock().plan.remove(&version).unwrap_or_default()
    }

    /// Begins the evaluation of a set, which actors can then claim.
    pub(crate) fn begin(&self, now: Duration, set: EvaluationSet, version: u64) {
        let mut state = self.state.lock();
        state.queue.begin(now, set, version);
        state.is_evaluating = true;
    }

    /// Returns whether a set is being played, or its result is not recorded yet.
    pub(crate) fn is_evaluating(&self) -> bool {
        let state = self.state.lock();
        state.is_evaluating && !state.is_stopped
    }

    /// Notes that the result of the last set is recorded.
    pub(crate) fn recorded(&self) {
        self.state.lock().is_evaluating = false;
    }

    /// Blocks until all episodes are finished, and returns them in the order of the questions; none
    /// if the run is being stopped. Calls `check` now and then while no episode arrives: the actors
    /// may be with a learner that has replaced this one.
    ///
    /// # Errors
    /// `check` failed.
    pub(crate) fn wait(&self, check: impl Fn() -> Result<()>) -> Result<Option<Vec<Trajectory>>> {
        let mut state = self.state.lock();
        let mut finished = 0;
        let mut reminder = WaitReminder::new(now(), NO_RESULT, NO_RESULT_AGAIN);
        let mut stopwatch = Stopwatch::start();
        loop {
            // In each round, so that a long evaluation shows before it ends.
            stopwatch.lap(&EVALUATION);
            if state.is_stopped {
                return Ok(None);
            }
            let Some(now_finished) = state.queue.finished() else {
                return Ok(None);
            };
            if let Some(episodes) = state.queue.take() {
                return Ok(Some(episodes));
            }
            if now_finished != finished {
                finished = now_finished;
                reminder = WaitReminder::new(now(), NO_RESULT, NO_RESULT_AGAIN);
            } else if let Some(waited) = reminder.due(now()) {
                tracing::warn!(
                    "no actor has sent a result of the evaluation for {} s; start actors, or look \
                     at the logs of those that run",
                    waited.as_secs()
                );
                drop(state);
                check()?;
                state = self.state.lock();
                continue;
            }
            self.changed.wait_for(&mut state, NO_RESULT);
        }
    }

    /// Ends the wait of the trainer.
    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Leases a part to an actor that holds the weights of `actor_version`.
    pub(crate) fn lease(
        &self,
        now: Duration,
        actor_id: &str,
        actor_version: u64,
    ) -> EvaluationLease {
        let mut state = self.state.lock();
        match state.is_stopped {
            true => EvaluationLease::None(None),
            false => state.queue.lease(now, actor_id, actor_version),
        }
    }

    /// Checks the episodes of a part. Returns their seed if they are needed.
    ///
    /// # Errors
    /// They are not those of the part, or of another version.
    pub(crate) fn check(
        &self,
        head: &SubmissionHead,
        trajectories: &[Trajectory],
    ) -> Result<Option<u64>, String> {
        self.state.lock().queue.check(head, trajectories)
    }

    /// Takes the checked episodes of a part.
    pub(crate) fn submit(
        &self,
        now: Duration,
        head: &SubmissionHead,
        trajectories: Vec<Trajectory>,
    ) {
        self.state.lock().queue.submit(now, head, trajectories);
        self.changed.notify_all();
    }

    /// Notes that an actor has joined, as [`crate::scheduler::Scheduler::joined`].
    pub(crate) fn joined(&self, now: Duration, actor_id: &str, is_alone: bool) {
        self.state.lock().queue.joined(now, actor_id, is_alone);
    }

    /// Ends the leases of an actor that is gone, and returns how many there were.
    pub(crate) fn left(&self, now: Duration, actor_id: &str) -> usize {
        self.state.lock().queue.left(now, actor_id)
    }

    /// Hands out a part again whose episodes are refused. Returns whether the actor was given it.
    pub(crate) fn refuse(&self, now: Duration, head: &SubmissionHead) -> bool {
        self.state.lock().queue.refuse(now, head)
    }
}

#[cfg(test)]
mod tests {
    use policy::SamplingSettings;

    use super::*;

    fn set() -> EvaluationSet {
        EvaluationSet {
            name: "curve".to_owned(),
            question_ids: ["q".to_owned()].into(),
            sampling: SamplingSettings::greedy(),
            seed: 1,
        }
    }

    #[test]
    fn only_actors_with_the_evaluated_version_get_a_part() {
        let evaluator = Evaluator::new(Duration::from_secs(9), 4);
        let lease = |version| evaluator.lease(Duration::ZERO, "a", version);
        assert!(matches!(lease(2), EvaluationLease::None(None)));
        evaluator.begin(Duration::ZERO, set(), 2);
        for other in [1, 3] {
            assert!(matches!(lease(other), EvaluationLease::OtherVersion));
        }
        assert!(matches!(lease(2), EvaluationLease::Part(_)));
        let expiry = Some(Duration::from_secs(9));
        assert!(matches!(lease(2), EvaluationLease::None(found) if found == expiry));
        evaluator.stop();
        assert!(matches!(lease(2), EvaluationLease::None(None)));
        assert_eq!(evaluator.wait(|| Ok(())).unwrap(), None);
    }

    #[test]
    fn an_evaluation_lasts_until_its_result_is_recorded_or_the_run_is_stopped() {
        let evaluator = Evaluator::new(Duration::from_secs(9), 4);
        assert!(!evaluator.is_evaluating());
        evaluator.begin(Duration::ZERO, set(), 2);
        assert!(evaluator.is_evaluating());
        evaluator.recorded();
        assert!(!evaluator.is_evaluating());
        evaluator.begin(Duration::ZERO, set(), 3);
        assert!(evaluator.is_evaluating());
        evaluator.stop();
        assert!(!evaluator.is_evaluating());
    }

    /// A result that an actor sends again after a restart must not count for another set.
    #[test]
    fn a_restarted_learner_has_other_parts() {
        let parts = [(), ()].map(|()| {
            let evaluator = Evaluator::new(Duration::from_secs(9), 4);
            evaluator.begin(Duration::ZERO, set(), 0);
            match evaluator.lease(Duration::ZERO, "a", 0) {
                EvaluationLease::Part(part) => part.part_id,
                _ => panic!("a part is open"),
            }
        });
        assert_ne!(parts[0], parts[1]);
    }

    #[test]
    fn evaluations_of_passed_versions_are_not_planned() {
        let evaluator = Evaluator::new(Duration::from_secs(9), 4);
        evaluator.plan(
            EvaluationPlan::from([(0, vec![set()]), (5, vec![set()])]),
            5,
        );
        assert_eq!(evaluator.take_sets(0), []);
        assert_eq!(evaluator.take_sets(5), [set()]);
        assert_eq!(evaluator.take_sets(5), []);
    }
}
