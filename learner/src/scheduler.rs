//! The scheduler: which group an actor gets with its next claim, and which groups make a learner
//! step. Pure.
//!
//! A state machine without I/O; `now` is an argument. Groups are numbered 0, 1, 2 … without end,
//! and [`crate::questions`] gives each its question. A group is *kept* if it can be trained on,
//! which excludes zero-variance groups under dynamic sampling. Step s begins at some index b and
//! takes the first N (`groups_per_step`) kept groups in index order; the next step begins behind
//! the last group it looked at. This is dynamic sampling (DAPO,
//! <https://arxiv.org/abs/2503.14476>): further groups replace zero-variance ones. A step looks at
//! no more than M (`max_groups_per_step`) groups and then trains on those that were kept.
//!
//! **The batch does not depend on timing.** Let `max_staleness` be 0. Index i >= b is handed out
//! only while fewer than N of the indices in b..i are kept or leased. Claim: i is ever handed out
//! if and only if fewer than N of b..i are kept *in the end*.
//!
//! * If i is handed out, the groups kept in the end are among those that are kept or leased at that
//!   time, so they are fewer than N.
//! * If fewer than N are kept in the end, nothing holds i back once all of b..i are finished. All
//!   of them do finish, because an expired lease is handed out again.
//!
//! So the set of groups handed out depends on the groups' contents alone, and the batch does too. A
//! group's content is a function of its index, its question and the policy version, which all
//! groups of a step share. The question follows from earlier steps. The whole run is therefore
//! independent of the number, speed and failures of actors. No group beyond those needed is rolled
//! out.
//!
//! With `oversampling` above 1, more groups may be leased than kept ones are missing, so that
//! actors do not wait for one another when many groups have zero variance. Which groups are handed
//! out then depends on timing. The batch still does not: it is the first N kept groups in index
//! order, and those behind it are dropped. The next step hands them out anew.
//!
//! No actor holds up the others (see `Leases`). At the beginning of a step an actor holds no more
//! than its share of the groups at a time, because the one that has the new weights first would
//! take all of them. After a tenth of the time that the last step took, and ten seconds at most, it
//! may have the rest. A result counts once under any lease that was given for the group, also an
//! expired one.
//!
//! With `max_staleness` K > 0 actors work up to K steps ahead, and (K + 1) N replaces N in the
//! rule; no group is dropped before it is too old. Batches are then a function of the journal
//! (contents in index order), and contents depend on the weights version that an actor had.

mod claims;
mod messages;
mod submissions;

use std::{collections::BTreeMap, time::Duration};

use crate::leases::{LeasedWork, Leases};
pub use messages::{Admission, Batch, Claim, GroupSummary, Lease, SchedulerSettings};

/// A group that was handed out or recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GroupState {
    work: LeasedWork,
    /// None until it is recorded.
    summary: Option<GroupSummary>,
}

impl GroupState {
    fn is_leased(&self, now: Duration) -> bool {
        self.summary.is_none() && self.work.is_held(now)
    }
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Scheduler {
    settings: SchedulerSettings,
    version: u64,
    start: u64,
    groups: BTreeMap<u64, GroupState>,
    /// Who was given the groups of the last step, and the dropped groups that no step has looked at
    /// since. A late result is a result.
    made: BTreeMap<u64, LeasedWork>,
    leases: Leases,
    expired_leases: u64,
    /// When the step began, with which its groups could be handed out.
    began: Duration,
    /// How long the step before it took.
    last_step_time: Duration,
    /// Actors among which the groups are shared; at least 1.
    actors: usize,
}

impl Scheduler {
    /// Creates a scheduler that has made `version` steps and continues at group `start`; (0, 0) for
    /// a new run. The ids of its leases follow from `secret`, and nothing else does.
    pub fn new(settings: SchedulerSettings, version: u64, start: u64, secret: u64) -> Self {
        Self {
            settings,
            version,
            start,
            groups: BTreeMap::new(),
            made: BTreeMap::new(),
            leases: Leases::new(settings.lease, settings.max_leases_per_actor, secret),
            expired_leases: 0,
            began: Duration::ZERO,
            last_step_time: Duration::ZERO,
            actors: 1,
        }
    }

    /// Notes how many actors there are.
    pub fn set_actors(&mut self, count: usize) {
        self.actors = count.max(1);
    }

    /// Returns the newest policy version, which is the number of steps made.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns whether all groups of a step are sampled with its weights.
    pub fn is_synchronous(&self) -> bool {
        self.settings.max_staleness == 0
    }

    /// Returns the first group that the next step looks at.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns how many leases have expired so far before the result of their group arrived.
    pub fn expired_leases(&self) -> u64 {
        self.expired_leases
    }

    /// Returns how many groups are with actors whose leases have not expired.
    pub fn leased(&self, now: Duration) -> usize {
        let groups = self.groups.values();
        groups.filter(|state| state.is_leased(now)).count()
    }

    /// Returns how many groups each actor holds that has some.
    pub fn leased_by_actor(&self, now: Duration) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        let unfinished = self.groups.values().filter(|it| it.summary.is_none());
        for actor_id in unfinished.filter_map(|it| it.work.holder(now)) {
            *counts.entry(actor_id.to_owned()).or_insert(0) += 1;
        }
        counts
    }

    /// Returns the next step's batch, once all its groups are recorded.
    pub fn batch(&self) -> Option<Batch> {
        let (mut group_indices, mut left_out) = (Vec::new(), Vec::new());
        let end = self.start + self.settings.max_groups_per_step;
        let mut index = self.start;
        while index < end && (group_indices.len() as u64) < self.settings.groups_per_step {
            let summary = self.groups.get(&index)?.summary?;
            let list = if summary.kept {
                &mut group_indices
            } else {
                &mut left_out
            };
            list.push(index);
            index += 1;
        }
        Some(Batch {
            group_indices,
            left_out,
            next_start: index,
        })
    }

    /// Continues with the next step, after the step on `batch` is made and its version published.
    /// Groups that are now too stale are dropped when a step looks at them. Returns those that are
    /// dropped at once, because they can be sampled again for their step.
    pub fn advance(&mut self, now: Duration, batch: &Batch) -> Vec<u64> {
        self.last_step_time = now.saturating_sub(self.began);
        self.began = now;
        self.version += 1;
        self.made.retain(|index, _| *index >= self.start);
        self.start = batch.next_start;
        let later = self.groups.split_off(&self.start);
        let made = std::mem::take(&mut self.groups);
        let (later, dropped): (BTreeMap<_, _>, _) =
            later.into_iter().partition(|(_, state)| self.lasts(state));
        self.groups = later;
        let dropped_indices = dropped.keys().copied().collect();
        for (index, state) in made.into_iter().chain(dropped) {
            self.made.entry(index).or_default().append(state.work);
        }
        let oldest_allowed = self.version.saturating_sub(self.settings.max_staleness);
        for state in self.groups.values_mut() {
            if let Some(summary) = &mut state.summary {
                summary.kept &= summary.oldest_version >= oldest_allowed;
            }
        }
        dropped_indices
    }

    /// Returns whether a group of a later step is still of use after a step.
    fn lasts(&self, state: &GroupState) -> bool {
        // A group without a turn failed, and names no version.
        let is_current = |it: GroupSummary| (self.version..u64::MAX).contains(&it.oldest_version);
        !self.is_synchronous() || state.summary.is_some_and(is_current)
    }
}
