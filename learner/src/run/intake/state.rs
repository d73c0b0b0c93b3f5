//! What claims, submissions and steps share under one lock.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    error::LearnerError,
    group::{Group, StepGroups},
    metrics,
    questions::Questions,
    scheduler::{Admission, Batch, Scheduler},
};

/// The work, the groups in memory and whether the run ends.
pub(super) struct IntakeState {
    pub(super) scheduler: Scheduler,
    pub(super) questions: Questions,
    pub(super) groups: BTreeMap<u64, JournaledGroup>,
    /// How often each group from the next step on was accepted. A step takes back what it cannot
    /// train on.
    pub(super) records: BTreeMap<u64, u32>,
    pub(super) stopping: bool,
    /// A group that could not be journaled, which ends the run.
    pub(super) fault: Option<LearnerError>,
}

/// A group whose step is not made yet, and the position of its record in the journal.
pub(super) struct JournaledGroup {
    pub(super) group: Arc<Group>,
    pub(super) journal_offset: u64,
}

impl IntakeState {
    /// Judges a group, see [`Scheduler::judge`].
    pub(super) fn judge(&mut self, group: &Group) -> Admission {
        let (oldest, newest) = (group.summary.oldest_version, group.newest_version());
        self.scheduler.judge(&group.head, oldest, newest)
    }

    /// Holds a recorded group until its step is made.
    pub(super) fn hold(&mut self, group: Group, journal_offset: u64) {
        let group = Arc::new(group);
        let journaled = JournaledGroup {
            group: Arc::clone(&group),
            journal_offset,
        };
        self.groups.insert(group.head.number, journaled);
    }

    /// Records in the metrics where the groups are, and how many leases have expired.
    pub(super) fn report(&mut self, now: Duration) {
        self.scheduler.note_expired(now);
        metrics::set_groups(self.scheduler.leased(now), self.groups.len());
        metrics::set_expired_leases(self.scheduler.expired_leases());
    }

    pub(super) fn step_groups(&self, batch: &Batch) -> StepGroups {
        let pick = |indices: &[u64]| {
            let group = |index| Arc::clone(&self.groups[index].group);
            indices.iter().map(group).collect()
        };
        StepGroups {
            kept: pick(&batch.group_indices),
            left_out: pick(&batch.left_out),
            demonstrations: Vec::new(),
            demonstrated: Vec::new(),
        }
    }
}
