//! The state behind `Claim` and `Submit`: the scheduler, the groups in memory and the journal.
//!
//! Invariant: a group is journaled before it is recorded and recorded before it is acknowledged;
//! every recorded group is held here until its step is made. A submission holds the journal's lock
//! from its judgement to its record, so that each group is counted once. Claims need only the other
//! lock and never wait for the disk. The journal's lock is taken first.

mod read_back;
mod state;
mod steps;
mod submit;

use std::{collections::BTreeMap, path::Path, time::Duration};

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::{
    error::Result,
    group::GroupRules,
    journal::{Journal, NewTerm},
    object_storage::ObjectLog,
    questions::Questions,
    scheduler::{Claim, Scheduler},
};
use read_back::{ReadBack, read_back};
use state::IntakeState;
use submit::WaitingGroup;

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

impl Intake {
    /// Opens the journal and records all groups from `journal_offset` on whose step is still to be
    /// made.
    pub(crate) fn open(
        (scheduler, questions): (Scheduler, Questions),
        rules: GroupRules,
        (run_dir, term): (&Path, NewTerm),
        objects: Option<ObjectLog>,
        journal_offset: u64,
    ) -> Result<Self> {
        let (mut journal, entries) = term.open(journal_offset)?;
        journal.attach(objects);
        let (start, is_synchronous) = (scheduler.start(), scheduler.is_synchronous());
        let read = read_back(entries, &rules, start, is_synchronous, run_dir)?;
        let mut state = IntakeState {
            scheduler,
            questions,
            groups: BTreeMap::new(),
            records: BTreeMap::new(),
            stopping: false,
            fault: None,
        };
        for (index, of_group) in read {
            let ReadBack {
                group,
                offset,
                records,
            } = of_group;
            if state.scheduler.record(index, group.summary) {
                state.records.insert(index, records);
                state.hold(group, offset);
            }
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

    /// Claims a group for one of so many actors, and returns the id of its question as well.
    pub(crate) fn claim(
        &self,
        now: Duration,
        (actor_id, actors): (&str, usize),
        actor_version: u64,
    ) -> (Claim, Option<String>) {
        let mut state = self.state.lock();
        if state.stopping {
            return (Claim::Wait(None), None);
        }
        state.scheduler.set_actors(actors);
        let claim = state.scheduler.claim(now, actor_id, actor_version);
        let question = match claim {
            Claim::Group(lease) => state.questions.question(lease.group_index),
            Claim::Wait(_) | Claim::OtherVersion => None,
        };
        let question = question.map(str::to_owned);
        (claim, question)
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

    /// Ends the leases of an actor that is gone, and returns how many there were.
    pub(crate) fn left(&self, now: Duration, actor_id: &str) -> usize {
        self.state.lock().scheduler.left(now, actor_id)
    }

    /// Notes that an actor has joined, see [`Scheduler::joined`].
    pub(crate) fn joined(&self, now: Duration, actor_id: &str, is_alone: bool) {
        self.state.lock().scheduler.joined(now, actor_id, is_alone);
        self.notify();
    }

    /// Records in the metrics where the groups are, and how many leases have expired.
    pub(crate) fn report(&self, now: Duration) {
        self.state.lock().report(now);
    }

    /// Returns how many groups each actor holds that has some.
    pub(crate) fn leased_by_actor(&self, now: Duration) -> BTreeMap<String, usize> {
        self.state.lock().scheduler.leased_by_actor(now)
    }

    /// Returns the newest policy version.
    pub(crate) fn version(&self) -> u64 {
        self.state.lock().scheduler.version()
    }

    /// Hands out no more work and ends [`Self::wait_for_batch`].
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.notify();
    }

    fn notify(&self) {
        self.groups_changed.notify_all();
        self.work_changed.send_replace(());
    }
}

#[cfg(test)]
mod tests;
