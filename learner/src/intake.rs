//! What stands behind Claim and Submit: the scheduler, the groups in memory and the journal.
//!
//! Invariant: a group is in the journal before it is recorded, and recorded before it is acknowledged; every record has
//! its group here until its step is made. Submissions hold the journal's lock from judgement to record, so that each
//! group is counted once; claims need the other lock only and never wait for the disk. The journal's lock comes first.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use proto::v1::SubmitRequest;

use crate::{
    error::{LearnerError, Result},
    group::{Group, GroupRules},
    journal::Journal,
    scheduler::{Batch, Claim, Scheduler, Verdict},
    trainer::StepGroups,
};

/// Work going out, groups coming in.
pub(crate) struct Intake {
    rules: GroupRules,
    journal: Mutex<Journal>,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    scheduler: Scheduler,
    groups: BTreeMap<u64, Held>,
    stopping: bool,
    /// What ends the run: a group that could not be journalled.
    fault: Option<LearnerError>,
}

/// A group whose step is not made yet, and where its record lies in the journal.
struct Held {
    group: Arc<Group>,
    journal_offset: u64,
}

/// Why a group was not taken.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It breaks the contract; sending it again is useless.
    Invalid(String),
    /// It could not be journalled, for this reason; the run stops.
    Failed(String),
}

impl Intake {
    /// Opens the journal and takes back in all groups from `journal_offset` on whose step is still to come.
    pub(crate) fn open(
        mut scheduler: Scheduler,
        rules: GroupRules,
        journal: &Path,
        journal_offset: u64,
    ) -> Result<Self> {
        let (open, entries) = Journal::open(journal, journal_offset)?;
        let mut groups = BTreeMap::new();
        let start = scheduler.start();
        for entry in entries
            .into_iter()
            .filter(|entry| entry.request.group_index >= start)
        {
            let group = Group::new(entry.request, &rules).map_err(|fault| {
                LearnerError::broken(journal, format!("{fault}; was the model changed?"))
            })?;
            scheduler.record(group.index, group.outcome);
            groups.insert(
                group.index,
                Held {
                    group: Arc::new(group),
                    journal_offset: entry.offset,
                },
            );
        }
        let inner = Inner {
            scheduler,
            groups,
            stopping: false,
            fault: None,
        };
        Ok(Self {
            rules,
            journal: Mutex::new(open),
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn claim(&self, now: Duration, actor_version: u64) -> Claim {
        let mut inner = self.lock();
        if inner.stopping {
            return Claim::Wait;
        }
        inner.scheduler.claim(now, actor_version)
    }

    /// Journals a needed group; blocks on the disk.
    pub(crate) fn submit(&self, request: &SubmitRequest) -> Result<Verdict, Refusal> {
        let index = request.group_index;
        let group = Group::new(request.clone(), &self.rules).map_err(Refusal::Invalid)?;
        let mut journal = self.lock_journal();
        let verdict = self.lock().judge(&group, request.lease_id);
        if verdict != Verdict::Accept {
            return Ok(verdict);
        }
        let appended = journal.append(request);
        let mut inner = self.lock();
        // The trainer's thread waits for the group, or for the fault.
        self.changed.notify_all();
        match appended {
            Ok(journal_offset) => {
                inner.scheduler.record(index, group.outcome);
                let group = Arc::new(group);
                inner.groups.insert(
                    index,
                    Held {
                        group,
                        journal_offset,
                    },
                );
                Ok(Verdict::Accept)
            }
            Err(fault) => {
                let reason = fault.to_string();
                inner.stopping = true;
                inner.fault = Some(fault);
                Err(Refusal::Failed(reason))
            }
        }
    }

    /// Blocks until the next step's groups are in; none if the intake was stopped.
    ///
    /// # Errors
    /// A group could not be journalled.
    pub(crate) fn wait_for_batch(&self) -> Result<Option<(Batch, StepGroups)>> {
        let mut inner = self.lock();
        loop {
            if let Some(fault) = inner.fault.take() {
                return Err(fault);
            }
            if inner.stopping {
                return Ok(None);
            }
            if let Some(batch) = inner.scheduler.batch() {
                let groups = inner.step_groups(&batch);
                return Ok(Some((batch, groups)));
            }
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The step on `batch` is made and its version published.
    pub(crate) fn advance(&self, batch: &Batch) {
        let mut inner = self.lock();
        inner.scheduler.advance(batch);
        let start = inner.scheduler.start();
        inner.groups = inner.groups.split_off(&start);
    }

    /// Forgets the groups whose step is to come: a checkpoint written now lies behind their records, and a resumed run
    /// hands them out again.
    pub(crate) fn forget_groups(&self) {
        let mut inner = self.lock();
        inner.stopping = true;
        inner.groups.clear();
    }

    /// Leases that ran out so far.
    pub(crate) fn expired_leases(&self) -> u64 {
        self.lock().scheduler.expired_leases()
    }

    /// The newest version.
    pub(crate) fn version(&self) -> u64 {
        self.lock().scheduler.version()
    }

    /// The first group of the next step, and the byte of the journal before which all records are used up.
    pub(crate) fn cursor(&self) -> (u64, u64) {
        let journal = self.lock_journal();
        let inner = self.lock();
        let oldest = inner.groups.values().map(|held| held.journal_offset).min();
        (
            inner.scheduler.start(),
            oldest.unwrap_or_else(|| journal.end()),
        )
    }

    /// Hands out no more work and ends [`Self::wait_for_batch`].
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    fn lock_journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A group that a version to come has sampled is from before a restart, as is one that cannot have been handed out.
    fn judge(&mut self, group: &Group, lease_id: u64) -> Verdict {
        if group.newest_version() > Some(self.scheduler.version()) {
            return Verdict::Unknown;
        }
        self.scheduler
            .judge(group.index, lease_id, group.outcome.oldest_version)
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
