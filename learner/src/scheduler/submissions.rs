//! What becomes of the groups that actors hold: results, refusals, and actors that leave.

use std::time::Duration;

use super::{Admission, GroupState, GroupSummary, Scheduler};
use crate::{group::SubmissionHead, leases::LeasedWork};

impl Scheduler {
    /// Decides whether the run takes a finished group, which the policy versions from
    /// `oldest_version` to `newest_version` sampled. The lease of a stale group ends, so that the
    /// group is handed out again, unless another actor holds it by now.
    pub fn judge(
        &mut self,
        head: &SubmissionHead,
        oldest_version: u64,
        newest_version: Option<u64>,
    ) -> Admission {
        let index = head.number;
        let is_in = self
            .groups
            .get(&index)
            .is_some_and(|it| it.summary.is_some());
        let is_made = index < self.start;
        if (is_in || is_made) && self.was_given(head) {
            self.leases.forgive(&head.actor_id);
        }
        if is_made || is_in || self.was_given_before(head) {
            Admission::Duplicate
        } else if !self.was_given(head) {
            Admission::Unknown
        } else if newest_version > Some(self.version) || self.is_stale(oldest_version) {
            self.end_lease(index, head.lease_id);
            Admission::Stale
        } else {
            // The first result of a group counts, even if its lease has expired. The content of a
            // group does not depend on the actor, so a late result is as good as a repeated one.
            Admission::Accept
        }
    }

    /// Ends the lease of a group that is refused for its content, so that the group is handed out
    /// again. Other actors have the first chance to take it, and results under earlier leases still
    /// count. Returns false, and changes nothing, if the actor was not given the group under this
    /// lease.
    pub fn refuse(&mut self, now: Duration, head: &SubmissionHead) -> bool {
        let was_given = self.was_given(head);
        if was_given {
            self.distrust(&head.actor_id);
        }
        let state = self.groups.get_mut(&head.number);
        let unfinished = state.filter(|it| was_given && it.summary.is_none());
        if let Some(state) = unfinished {
            state.work.refuse(now, head.lease_id);
        }
        was_given
    }

    /// Ends the leases of an actor that is gone, so that its groups are handed out again. Its
    /// results still count. Returns how many there were.
    pub fn left(&mut self, now: Duration, actor_id: &str) -> usize {
        let unfinished = self.groups.values_mut().filter(|it| it.summary.is_none());
        unfinished
            .map(|state| usize::from(state.work.leave(now, actor_id)))
            .sum()
    }

    /// Notes that an actor joins. If no other process of that name is connected, its former leases
    /// are those of a process that has ended, so they end. It no longer counts as late.
    pub fn joined(&mut self, now: Duration, actor_id: &str, is_alone: bool) {
        if is_alone {
            self.left(now, actor_id);
        }
        self.note_expired(now);
        self.leases.forgive(actor_id);
    }

    /// Treats an actor as one that let a lease expire.
    pub fn distrust(&mut self, actor_id: &str) {
        self.leases.distrust(actor_id);
    }

    /// Returns whether the group was handed out to the actor under this lease.
    fn was_given(&self, head: &SubmissionHead) -> bool {
        match self.groups.get(&head.number) {
            Some(state) => state.work.was_given(head.lease_id, &head.actor_id),
            None => self.was_given_before(head),
        }
    }

    /// Returns whether the group was handed out for an earlier step, which may have been made
    /// without it.
    fn was_given_before(&self, head: &SubmissionHead) -> bool {
        let work = self.made.get(&head.number);
        work.is_some_and(|it| it.was_given(head.lease_id, &head.actor_id))
    }

    /// Ends a lease, so that the group is handed out again, unless another actor holds it by now.
    fn end_lease(&mut self, group_index: u64, lease_id: u64) {
        let is_it = |state: &GroupState| state.summary.is_none() && state.work.is_last(lease_id);
        if self.groups.get(&group_index).is_some_and(is_it) {
            self.groups.remove(&group_index);
        }
    }

    fn is_stale(&self, oldest_version: u64) -> bool {
        oldest_version.saturating_add(self.settings.max_staleness) < self.version
    }

    /// Records an accepted group of an actor, see [`Self::record`].
    pub fn record_of(&mut self, actor_id: &str, group_index: u64, summary: GroupSummary) -> bool {
        self.leases.accepted(actor_id);
        self.record(group_index, summary)
    }

    /// Records an accepted group, or one read back from the journal, which may belong to any later
    /// step. Returns false for one that no step will look at.
    pub fn record(&mut self, group_index: u64, mut summary: GroupSummary) -> bool {
        let is_stale = self.is_stale(summary.oldest_version);
        if group_index < self.start || (is_stale && self.settings.max_staleness == 0) {
            return false;
        }
        summary.kept &= !is_stale;
        self.groups.entry(group_index).or_default().summary = Some(summary);
        true
    }

    /// Takes a recorded group back: it is handed out again, as free from `now` on, or counts as not
    /// kept if `is_dropped`.
    pub fn take_back(&mut self, now: Duration, group_index: u64, is_dropped: bool) {
        if !is_dropped {
            let free = GroupState {
                work: LeasedWork::new(now),
                summary: None,
            };
            self.groups.insert(group_index, free);
        } else if let Some(state) = self.groups.get_mut(&group_index)
            && let Some(summary) = &mut state.summary
        {
            summary.kept = false;
        }
    }
}
