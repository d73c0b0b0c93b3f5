//! The state behind `Claim` and `Submit`: the scheduler, the groups in memory and the journal.
//!
//! Invariant: a group is journaled before it is recorded and recorded before it is acknowledged;
//! every recorded group is held here until its step is made. A submission holds the journal's lock
//! from its judgement to its record, so that each group is counted once. Claims need only the other
//! lock and never wait for the disk. The journal's lock is taken first.

mod read_back;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use proto::{EncodedGroup, WaitReminder};
use tokio::sync::watch;
use tonic::Status;

use crate::{
    clock::now,
    error::{LearnerError, Result},
    group::{Group, GroupHead, GroupRules, StepGroups},
    journal::{Journal, NewTerm},
    metrics::{self, Stopwatch, WAITING},
    object_storage::ObjectLog,
    refusals::{RefusalReason, RefusedGroup},
    scheduler::{Admission, Batch, Claim, Scheduler, Submission},
};
use read_back::read_back;

/// After how long without a group the learner says so, for the first time and again.
const NO_GROUP: Duration = Duration::from_secs(60);
const NO_GROUP_AGAIN: Duration = Duration::from_secs(300);

/// How often a group is rolled out that steps cannot train on.
const MAX_ROLLOUTS: u32 = 3;

/// The work that is handed out and the groups that are submitted.
pub(crate) struct Intake {
    rules: GroupRules,
    /// Groups that wait for the journal.
    waiting: Mutex<Vec<WaitingGroup>>,
    journal: Mutex<Journal>,
    state: Mutex<IntakeState>,
    /// Wakes the trainer's thread.
    groups_changed: Condvar,
    /// Wakes claims that wait for work.
    work_changed: watch::Sender<()>,
}

struct IntakeState {
    scheduler: Scheduler,
    groups: BTreeMap<u64, JournaledGroup>,
    /// How often each group from the next step on was accepted. A step takes back what it cannot
    /// train on.
    records: BTreeMap<u64, u32>,
    stopping: bool,
    /// A group that could not be journaled, which ends the run.
    fault: Option<LearnerError>,
}

/// A checked group on its way into the journal.
struct WaitingGroup {
    group: Group,
    answer: SyncSender<Result<Admission, SubmitError>>,
}

/// A group whose step is not made yet, and the position of its record in the journal.
struct JournaledGroup {
    group: Arc<Group>,
    journal_offset: u64,
}

/// Why a group was refused.
#[derive(Clone, Debug)]
pub(crate) enum SubmitError {
    /// Its content is refused, for a reason and the same in words; submitting it again is useless.
    Refused(GroupHead, RefusalReason, String),
    /// It names another run, or the learner is broken.
    OtherRun(Status),
    /// The learner's env-node is away, so the group could not be verified.
    EnvAway(Status),
    /// It could not be journaled, for this reason; the run stops.
    Journal(String),
}

impl Intake {
    /// Opens the journal and records all groups from `journal_offset` on whose step is still to be
    /// made.
    pub(crate) fn open(
        scheduler: Scheduler,
        rules: GroupRules,
        (run_dir, term): (&Path, NewTerm),
        objects: Option<ObjectLog>,
        journal_offset: u64,
    ) -> Result<Self> {
        let (mut journal, entries) = term.open(journal_offset)?;
        journal.attach(objects);
        let place = (scheduler.start(), scheduler.version());
        let read = read_back(entries, &rules, place, run_dir)?;
        let mut state = IntakeState {
            scheduler,
            groups: BTreeMap::new(),
            records: read.records,
            stopping: false,
            fault: None,
        };
        for (group, offset) in read.groups {
            state.scheduler.record(group.index, group.summary);
            state.hold(group, offset);
        }
        Ok(Self {
            rules,
            waiting: Mutex::default(),
            journal: Mutex::new(journal),
            state: Mutex::new(state),
            groups_changed: Condvar::new(),
            work_changed: watch::Sender::new(()),
        })
    }

    /// Claims a group for an actor. If the claim is refused, the second value says when time alone
    /// may free a group for it.
    pub(crate) fn claim(
        &self,
        now: Duration,
        actor_id: &str,
        actor_version: u64,
    ) -> (Claim, Option<Duration>) {
        let mut state = self.lock();
        if state.stopping {
            return (Claim::Wait, None);
        }
        let claim = state.scheduler.claim(now, actor_id, actor_version);
        let held_back = state.scheduler.held_back_until(now, actor_id);
        let expiry = state.scheduler.next_expiry(now);
        (claim, held_back.into_iter().chain(expiry).min())
    }

    /// Returns the limits of episodes.
    pub(crate) fn rules(&self) -> &GroupRules {
        &self.rules
    }

    /// Wakes claims that wait for work.
    pub(crate) fn wake_claims(&self) {
        self.work_changed.send_replace(());
    }

    /// Returns a receiver that sees each change that may turn a refused claim into a group.
    pub(crate) fn work_changes(&self) -> watch::Receiver<()> {
        self.work_changed.subscribe()
    }

    /// Decodes and checks a group.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(&self, encoded: EncodedGroup) -> Result<Group, String> {
        Group::new(encoded, &self.rules)
    }

    /// Judges a checked group before the work of verifying it. [`Self::submit`] judges it again.
    pub(crate) fn judge(&self, group: &Group) -> Admission {
        let admission = self.lock().judge(group);
        if admission == Admission::Stale {
            // Its lease has ended, so a waiting claim may get the group.
            self.notify();
        }
        admission
    }

    /// Ends the lease of a group that is refused, so that another actor gets the group at once.
    /// Returns whether the actor was given the group.
    pub(crate) fn refuse(&self, now: Duration, head: &GroupHead) -> bool {
        let was_given = self.lock().scheduler.refuse(now, head.submission());
        self.notify();
        was_given
    }

    /// Ends the leases of an actor that is gone, and returns how many there were.
    pub(crate) fn left(&self, now: Duration, actor_id: &str) -> usize {
        self.lock().scheduler.left(now, actor_id)
    }

    /// Notes that an actor has joined, see [`Scheduler::joined`].
    pub(crate) fn joined(&self, now: Duration, actor_id: &str, is_alone: bool) {
        self.lock().scheduler.joined(now, actor_id, is_alone);
        self.notify();
    }

    /// Journals a checked group if it is needed; blocks on the disk and on the object store.
    ///
    /// Groups that wait for the journal at the same time are journaled together, by the first that
    /// gets it: waiting for a disk or a store takes as long for many as for one.
    pub(crate) fn submit(&self, group: Group) -> Result<Admission, SubmitError> {
        let (answer, answered) = sync_channel(1);
        lock(&self.waiting).push(WaitingGroup { group, answer });
        // Two submissions of one group must not both be judged as new, so the journal stays locked
        // until the groups are recorded. Claims only need the state's lock and continue meanwhile.
        let mut journal = self.lock_journal();
        let waiting = first_of_each_group(&mut lock(&self.waiting));
        self.journal_groups(&mut journal, waiting);
        drop(journal);
        self.notify();
        let unanswered = |_| SubmitError::Journal("the journal's thread panicked".to_owned());
        answered.recv().map_err(unanswered)?
    }

    /// Journals and records those of the groups that are needed, and answers all.
    fn journal_groups(&self, journal: &mut Journal, waiting: Vec<WaitingGroup>) {
        let mut needed = Vec::new();
        for waiting in waiting {
            match self.lock().judge(&waiting.group) {
                Admission::Accept => needed.push(waiting),
                // The lease of a stale group has ended, so a waiting claim may get the group.
                refused => waiting.answer(Ok(refused)),
            }
        }
        if needed.is_empty() {
            return;
        }
        let encoded: Vec<_> = needed.iter().map(|it| it.group.encoded.clone()).collect();
        let appended = journal.append(&encoded);
        let mut state = self.lock();
        match appended {
            Ok(offsets) => {
                for (WaitingGroup { group, answer }, offset) in needed.into_iter().zip(offsets) {
                    metrics::group_journaled(group.encoded.bytes().len());
                    let (actor_id, index) = (group.actor_id.as_str(), group.index);
                    state.scheduler.record_of(actor_id, index, group.summary);
                    *state.records.entry(index).or_insert(0) += 1;
                    state.hold(group, offset);
                    // A submission whose caller is gone is recorded all the same.
                    let _ = answer.send(Ok(Admission::Accept));
                }
            }
            Err(fault) => {
                let reason = SubmitError::Journal(fault.to_string());
                state.stopping = true;
                state.fault.get_or_insert(fault);
                for waiting in needed {
                    waiting.answer(Err(reason.clone()));
                }
            }
        }
    }

    /// Records that a version is published.
    ///
    /// # Errors
    /// Another learner has opened the run, or the object store fails.
    pub(crate) fn publish(&self, version: u64) -> Result<()> {
        let published = self.lock_journal().publish(version);
        // The reason is that of a group that could not be journaled before, if there is one.
        published.map_err(|fault| self.lock().fault.take().unwrap_or(fault))
    }

    /// Checks that no other learner has opened the run.
    ///
    /// # Errors
    /// One has, or the object store fails.
    pub(crate) fn check_newest(&self) -> Result<()> {
        self.lock_journal().check_newest()
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
        let upload = match self.lock_journal().objects() {
            Some(objects) => objects.checkpoint_upload(step),
            None => return Ok(()),
        };
        upload.run(folder)?;
        // The files of the run have one name for all its learners.
        self.check_newest()?;
        upload.run_files(run_dir)?;
        let mut journal = self.lock_journal();
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
        let mut state = self.lock();
        let mut arrived = state.groups.len();
        let mut reminder = WaitReminder::new(now(), NO_GROUP, NO_GROUP_AGAIN);
        let mut stopwatch = Stopwatch::start();
        loop {
            // In each round, so that a long wait shows before it ends.
            stopwatch.lap(&WAITING);
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
            (state, _) = self
                .groups_changed
                .wait_timeout(state, NO_GROUP)
                .unwrap_or_else(PoisonError::into_inner);
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
                state = self.lock();
            }
        }
    }

    /// Continues with the next step, after the step on `batch` is made and its version published.
    pub(crate) fn advance(&self, now: Duration, batch: &Batch) {
        let mut state = self.lock();
        state.scheduler.advance(now, batch);
        let start = state.scheduler.start();
        state.groups = state.groups.split_off(&start);
        state.records = state.records.split_off(&start);
        drop(state);
        self.notify();
    }

    /// Returns whether [`Self::take_back`] would hand the group out again.
    pub(crate) fn may_be_rolled_out_again(&self, group_index: u64) -> bool {
        let state = self.lock();
        state.records.get(&group_index).copied().unwrap_or(0) < MAX_ROLLOUTS
    }

    /// Takes back groups that a step cannot train on. They are handed out again, unless they were
    /// rolled out [`MAX_ROLLOUTS`] times: then the step is made without them.
    pub(crate) fn take_back(&self, refused: &[RefusedGroup]) {
        let mut state = self.lock();
        for group in refused {
            let records = state.records.get(&group.index).copied().unwrap_or(0);
            let is_dropped = records >= MAX_ROLLOUTS;
            state.scheduler.take_back(group.index, is_dropped);
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
        let mut state = self.lock();
        state.stopping = true;
        state.groups.clear();
    }

    /// Records in the metrics where the groups are.
    pub(crate) fn report(&self, now: Duration) {
        let state = self.lock();
        metrics::set_groups(state.scheduler.leased(now), state.groups.len());
    }

    /// Returns how many expired leases were handed out again so far.
    pub(crate) fn expired_leases(&self) -> u64 {
        self.lock().scheduler.expired_leases()
    }

    /// Returns the newest policy version.
    pub(crate) fn version(&self) -> u64 {
        self.lock().scheduler.version()
    }

    /// Returns the first group of the next step, and the byte of the journal before which no record
    /// is needed any more.
    pub(crate) fn cursor(&self) -> (u64, u64) {
        let journal = self.lock_journal();
        let state = self.lock();
        let offsets = state.groups.values().map(|group| group.journal_offset);
        (
            state.scheduler.start(),
            offsets.min().unwrap_or_else(|| journal.end()),
        )
    }

    /// Hands out no more work and ends [`Self::wait_for_batch`].
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.notify();
    }

    fn notify(&self) {
        self.groups_changed.notify_all();
        self.work_changed.send_replace(());
    }

    fn lock_journal(&self) -> MutexGuard<'_, Journal> {
        lock(&self.journal)
    }

    fn lock(&self) -> MutexGuard<'_, IntakeState> {
        lock(&self.state)
    }
}

impl WaitingGroup {
    fn answer(self, answer: Result<Admission, SubmitError>) {
        // The caller may be gone.
        let _ = self.answer.send(answer);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the first of each group's submissions; the others wait for its verdict.
fn first_of_each_group(waiting: &mut Vec<WaitingGroup>) -> Vec<WaitingGroup> {
    let mut indices = BTreeSet::new();
    let all = std::mem::take(waiting);
    let is_first = |it: &WaitingGroup| indices.insert(it.group.index);
    let (first, others) = all.into_iter().partition(is_first);
    *waiting = others;
    first
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

impl IntakeState {
    /// Judges a group. One that a later version sampled is from before a restart that took the run
    /// back.
    fn judge(&mut self, group: &Group) -> Admission {
        if group.newest_version() > Some(self.scheduler.version()) {
            return Admission::Unknown;
        }
        self.scheduler.judge(Submission {
            group_index: group.index,
            lease_id: group.lease_id,
            actor_id: &group.actor_id,
            oldest_version: group.summary.oldest_version,
        })
    }

    /// Holds a recorded group until its step is made.
    fn hold(&mut self, group: Group, journal_offset: u64) {
        let group = Arc::new(group);
        let journaled = JournaledGroup {
            group: Arc::clone(&group),
            journal_offset,
        };
        self.groups.insert(group.index, journaled);
    }

    fn step_groups(&self, batch: &Batch) -> StepGroups {
        let pick = |indices: &[u64]| {
            let group = |index| Arc::clone(&self.groups[index].group);
            indices.iter().map(group).collect()
        };
        StepGroups {
            kept: pick(&batch.group_indices),
            left_out: pick(&batch.left_out),
        }
    }
}
