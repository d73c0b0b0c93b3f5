//! The evaluation in progress, between the trainer's thread and the actors.
//!
//! Invariant: the trainer waits until an evaluation is complete or the run is stopped, so the
//! version that is evaluated stays the newest.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use proto::{WaitReminder, v1::Trajectory};

use crate::{
    clock::now,
    evaluation::{EvaluationQueue, EvaluationSet, LeasedPart},
};

/// After how long without a result the trainer says so, for the first time and again.
const NO_RESULT: Duration = Duration::from_secs(60);
const NO_RESULT_AGAIN: Duration = Duration::from_secs(300);

/// What is evaluated, by the version after whose step it is.
pub type EvaluationPlan = BTreeMap<u64, Vec<EvaluationSet>>;

/// The answer to an actor that may play a part of an evaluation.
pub(crate) enum EvaluationLease {
    /// The actor plays this part.
    Part(LeasedPart),
    /// The actor holds other weights than those that are evaluated.
    OtherVersion,
    /// Nothing is to be played. An expired lease may change that at this time.
    None(Option<Duration>),
}

/// The plan, and the set in progress.
#[derive(Default)]
pub(crate) struct Evaluator {
    state: Mutex<EvaluatorState>,
    changed: Condvar,
}

#[derive(Default)]
struct EvaluatorState {
    plan: EvaluationPlan,
    queue: Option<EvaluationQueue>,
    next_part: u64,
    is_recorded: bool,
    is_stopped: bool,
}

impl Evaluator {
    /// Sets what is evaluated.
    pub(crate) fn plan(&self, plan: EvaluationPlan) {
        self.lock().plan = plan;
    }

    /// Returns the sets of a version. They are planned no more.
    pub(crate) fn take_sets(&self, version: u64) -> Vec<EvaluationSet> {
        self.lock().plan.remove(&version).unwrap_or_default()
    }

    /// Begins the evaluation of a set, which actors can then claim.
    pub(crate) fn begin(&self, set: EvaluationSet, version: u64) {
        let mut state = self.lock();
        let queue = EvaluationQueue::new(set, version, state.next_part);
        state.next_part = queue.next_part();
        state.queue = Some(queue);
        state.is_recorded = false;
    }

    /// Blocks until the result of the last set is recorded, or the run is being stopped. Otherwise
    /// a run that is killed could resume behind an evaluation that nobody has.
    pub(crate) fn wait_until_recorded(&self) {
        let mut state = self.lock();
        while !state.is_recorded && !state.is_stopped {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that the result of the last set is recorded.
    pub(crate) fn recorded(&self) {
        self.lock().is_recorded = true;
        self.changed.notify_all();
    }

    /// Blocks until all episodes are finished, and returns them in the order of the questions; none
    /// if the run is being stopped.
    pub(crate) fn wait(&self) -> Option<Vec<Trajectory>> {
        let mut state = self.lock();
        let mut finished = 0;
        let mut reminder = WaitReminder::new(now(), NO_RESULT, NO_RESULT_AGAIN);
        loop {
            if state.is_stopped {
                return None;
            }
            let queue = state.queue.as_mut()?;
            if let Some(episodes) = queue.take() {
                state.queue = None;
                return Some(episodes);
            }
            if queue.finished() != finished {
                finished = queue.finished();
                reminder = WaitReminder::new(now(), NO_RESULT, NO_RESULT_AGAIN);
            } else if let Some(waited) = reminder.due(now()) {
                tracing::warn!(
                    "no actor has sent a result of the evaluation for {} s; start actors, or look \
                     at the logs of those that run",
                    waited.as_secs()
                );
            }
            (state, _) = self
                .changed
                .wait_timeout(state, NO_RESULT)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the wait of the trainer.
    pub(crate) fn stop(&self) {
        self.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Leases a part to an actor that holds the weights of `actor_version`.
    pub(crate) fn lease(
        &self,
        now: Duration,
        lease: Duration,
        actor_version: u64,
    ) -> EvaluationLease {
        let mut state = self.lock();
        if state.is_stopped {
            return EvaluationLease::None(None);
        }
        let Some(queue) = state.queue.as_mut() else {
            return EvaluationLease::None(None);
        };
        if actor_version != queue.version() {
            return EvaluationLease::OtherVersion;
        }
        match queue.lease(now, lease) {
            Some(part) => EvaluationLease::Part(part),
            None => EvaluationLease::None(queue.next_expiry()),
        }
    }

    /// Takes the episodes of a part.
    ///
    /// # Errors
    /// They are not those of the part.
    pub(crate) fn submit(&self, part_id: u64, trajectories: Vec<Trajectory>) -> Result<(), String> {
        let mut state = self.lock();
        let submitted = match state.queue.as_mut() {
            Some(queue) => queue.submit(part_id, trajectories),
            None => Ok(()),
        };
        drop(state);
        self.changed.notify_all();
        submitted
    }

    fn lock(&self) -> MutexGuard<'_, EvaluatorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
