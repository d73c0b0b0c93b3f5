//! What the trainer asks of the intake: the groups of a step, and to record what was made of them.

use std::{path::Path, time::Duration};

use proto::WaitReminder;

use super::{Intake, state::IntakeState};
use crate::{
    clock::now,
    error::Result,
    group::{RefusedGroup, StepGroups},
    metrics::{Stopwatch, WAITING},
    questions::QuestionsState,
    scheduler::Batch,
};

/// After how long without a group the learner says so, for the first time and again.
const NO_GROUP: Duration = Duration::from_secs(60);
const NO_GROUP_AGAIN: Duration = Duration::from_secs(300);

/// How often a group is rolled out that steps cannot train on.
const MAX_ROLLOUTS: u32 = 3;

impl Intake {
    /// Records that a version is published.
    ///
    /// # Errors
    /// Another learner has opened the run, or the object store fails.
    pub(crate) fn publish(&self, version: u64) -> Result<()> {
        let published = self.journal.lock().publish(version);
        // The reason is that of a group that could not be journaled before, if there is one.
        published.map_err(|fault| self.state.lock().fault.take().unwrap_or(fault))
    }

    /// Checks that no other learner has opened the run.
    ///
    /// # Errors
    /// One has, or the object store fails.
    pub(crate) fn check_newest(&self) -> Result<()> {
        self.journal.lock().check_newest()
    }

    /// Puts a checkpoint into the object store, if the run has one. Groups can be submitted
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub(crate) fn upload_checkpoint(
        &self,
        step: u64,
        folder: &Path,
        run_dir: &Path,
        keep_last: usize,
    ) -> Result<()> {
        let upload = match self.journal.lock().objects() {
            Some(objects) => objects.checkpoint_upload(step),
            None => return Ok(()),
        };
        upload.run(folder)?;
        // The files of the run have one name for all its learners.
        self.check_newest()?;
        upload.run_files(run_dir)?;
        let mut journal = self.journal.lock();
        let Some(objects) = journal.objects() else {
            return Ok(());
        };
        objects.append_checkpoint(upload, keep_last)
    }

    /// Blocks until the next step's groups are recorded; none if the intake was stopped. `run_time`
    /// is the clock of claims.
    ///
    /// # Errors
    /// A group could not be journaled.
    pub(crate) fn wait_for_batch(
        &self,
        run_time: impl Fn() -> Duration,
    ) -> Result<Option<(Batch, StepGroups)>> {
        let mut state = self.state.lock();
        let mut arrived = state.groups.len();
        let mut reminder = WaitReminder::new(now(), NO_GROUP, NO_GROUP_AGAIN);
        let mut stopwatch = Stopwatch::start();
        loop {
            // In each round, so that a long wait shows before it ends, and leases that expire
            // while no actor calls.
            stopwatch.lap(&WAITING);
            state.report(run_time());
            if let Some(fault) = state.fault.take() {
                return Err(fault);
            }
            if state.stopping {
                return Ok(None);
            }
            if let Some(batch) = state.scheduler.batch() {
                let groups = state.step_groups(&batch);
                return Ok(Some((batch, groups)));
            }
            self.groups_changed.wait_for(&mut state, NO_GROUP);
            if state.groups.len() != arrived {
                arrived = state.groups.len();
                reminder = WaitReminder::new(now(), NO_GROUP, NO_GROUP_AGAIN);
            } else if let Some(waited) = reminder.due(now()) {
                let (seconds, leased) = (waited.as_secs(), state.scheduler.leased(run_time()));
                tracing::warn!(
                    "no group has arrived for {seconds} s; {}",
                    where_groups_are(leased)
                );
                // The actors may be with a learner that has replaced this one. The journal's lock
                // is taken before the state's.
                drop(state);
                self.check_newest()?;
                state = self.state.lock();
            }
        }
    }

    /// Continues with the next step, after the step on `batch` is made and its version published.
    /// Returns how many of its groups had a question that had come back.
    pub(crate) fn advance(&self, now: Duration, batch: &Batch) -> usize {
        let mut state = self.state.lock();
        let IntakeState {
            scheduler,
            questions,
            groups,
            ..
        } = &mut *state;
        let dropped = scheduler.advance(now, batch);
        let start = scheduler.start();
        let is_answered = |index| groups.get(&index).is_some_and(|it| it.group.is_answered());
        let repeated = questions.advance(start, is_answered);
        state.groups = state.groups.split_off(&start);
        state.records = state.records.split_off(&start);
        for index in dropped {
            state.groups.remove(&index);
            state.records.remove(&index);
        }
        drop(state);
        self.notify();
        repeated
    }

    /// Returns whether [`Self::take_back`] would hand the group out again.
    pub(crate) fn may_be_rolled_out_again(&self, group_index: u64) -> bool {
        let state = self.state.lock();
        state.records.get(&group_index).copied().unwrap_or(0) < MAX_ROLLOUTS
    }

    /// Takes back groups that a step cannot train on. They are handed out again, unless they were
    /// rolled out [`MAX_ROLLOUTS`] times: then the step is made without them.
    pub(crate) fn take_back(&self, now: Duration, refused: &[RefusedGroup]) {
        let mut state = self.state.lock();
        for group in refused {
            let records = state.records.get(&group.index).copied().unwrap_or(0);
            let is_dropped = records >= MAX_ROLLOUTS;
            state.scheduler.take_back(now, group.index, is_dropped);
            if !is_dropped {
                state.groups.remove(&group.index);
            }
            if group.reason.is_of_actor() {
                state.scheduler.distrust(&group.actor_id);
            }
        }
        drop(state);
        self.notify();
    }

    /// Drops the groups whose step is still to be made. A checkpoint written now lies behind their
    /// records, so that a resumed run hands them out again.
    pub(crate) fn forget_groups(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        state.groups.clear();
    }

    /// Returns what the next step's questions follow from.
    pub(crate) fn questions(&self) -> QuestionsState {
        self.state.lock().questions.state().clone()
    }

    /// Returns the first group of the next step, and the byte of the journal before which no record
    /// is needed any more.
    pub(crate) fn cursor(&self) -> (u64, u64) {
        let journal = self.journal.lock();
        let state = self.state.lock();
        let offsets = state.groups.values().map(|group| group.journal_offset);
        (
            state.scheduler.start(),
            offsets.min().unwrap_or_else(|| journal.end()),
        )
    }
}

/// Says what the learner waits for.
fn where_groups_are(leased: usize) -> String {
    match leased {
        0 => {
            "no actor has claimed one; start actors with `sqlenv actor --learner ADDRESS`, or look \
              at the logs of those that run"
                .to_owned()
        }
        leased => format!("{leased} are with actors"),
    }
}
