//! What stands behind Claim and Submit: the scheduler, the journal and the groups in memory, under one lock.
//!
//! Invariant: a group is in the journal before it is recorded, and recorded before it is acknowledged; every record has
//! its group here until its step is made.

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
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    scheduler: Scheduler,
    journal: Journal,
    groups: BTreeMap<u64, Held>,
    stopping: bool,
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
    /// It could not be journalled.
    Failed(LearnerError),
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
            journal: open,
            groups,
            stopping: false,
        };
        Ok(Self {
            rules,
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
        let mut inner = self.lock();
        let verdict = inner.scheduler.judge(index, group.outcome.oldest_version);
        match verdict {
            Verdict::Accept => {
                let journal_offset = inner.journal.append(request).map_err(Refusal::Failed)?;
                inner.scheduler.record(index, group.outcome);
                inner.groups.insert(
                    index,
                    Held {
                        group: Arc::new(group),
                        journal_offset,
                    },
                );
                self.changed.notify_all();
            }
            Verdict::Unknown => {
                return Err(Refusal::Invalid(format!(
                    "group {index} was never handed out"
                )));
            }
            Verdict::Duplicate | Verdict::Stale => {}
        }
        Ok(verdict)
    }

    /// Blocks until the next step's groups are in; none if the intake was stopped.
    pub(crate) fn wait_for_batch(&self) -> Option<(Batch, StepGroups)> {
        let mut inner = self.lock();
        loop {
            if inner.stopping {
                return None;
            }
            if let Some(batch) = inner.scheduler.batch() {
                let groups = inner.step_groups(&batch);
                return Some((batch, groups));
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

    /// The newest version.
    pub(crate) fn version(&self) -> u64 {
        self.lock().scheduler.version()
    }

    /// The first group of the next step, and the byte of the journal before which all records are used up.
    pub(crate) fn cursor(&self) -> (u64, u64) {
        let inner = self.lock();
        let oldest = inner.groups.values().map(|held| held.journal_offset).min();
        (
            inner.scheduler.start(),
            oldest.unwrap_or_else(|| inner.journal.end()),
        )
    }

    /// Hands out no more work and ends [`Self::wait_for_batch`].
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
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
