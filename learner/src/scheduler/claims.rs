//! Which group an actor gets.

use std::time::Duration;

use super::{Claim, GroupState, Lease, Scheduler, SchedulerSettings};

/// An actor that holds its share leaves the others the first chance to take theirs for the last
/// step's time divided by this, and not longer than [`MAX_SHARE_TIME`]: the time contains waits.
const SHARE_TIME_DIVISOR: u32 = 10;
const MAX_SHARE_TIME: Duration = Duration::from_secs(10);

impl Scheduler {
    /// Claims a group for an actor that holds the weights of `actor_version`. A claim is refused by
    /// any other variant than [`Claim::Group`].
    pub fn claim(&mut self, now: Duration, actor_id: &str, actor_version: u64) -> Claim {
        self.note_expired(now);
        let Some((group_index, min_policy_version)) = self.open_group(now) else {
            return Claim::Wait(self.next_expiry(now));
        };
        let chance = self.first_chance(now, group_index, actor_id);
        if chance > now || self.leases_of(actor_id, now) >= self.leases.max_per_actor() {
            let chance = Some(chance).filter(|chance| *chance > now);
            return Claim::Wait(chance.into_iter().chain(self.next_expiry(now)).min());
        }
        // The staleness gate: work sampled with older weights would be too old when its step trains
        // on it.
        if !(min_policy_version..=self.version).contains(&actor_version) {
            return Claim::OtherVersion;
        }
        Claim::Group(self.lease(now, group_index, min_policy_version, actor_id))
    }

    /// Returns when the next lease expires, which may free a group.
    fn next_expiry(&self, now: Duration) -> Option<Duration> {
        let leased = self.groups.values().filter(|state| state.is_leased(now));
        leased.map(|state| state.work.free_from()).min()
    }

    fn lease(
        &mut self,
        now: Duration,
        group_index: u64,
        min_policy_version: u64,
        actor_id: &str,
    ) -> Lease {
        let work = &mut self.groups.entry(group_index).or_default().work;
        let lease_id = work.lease(now, &mut self.leases, actor_id);
        Lease {
            group_index,
            lease_id,
            min_policy_version,
            expires: work.free_from(),
        }
    }

    /// Notes whose leases have expired.
    pub(crate) fn note_expired(&mut self, now: Duration) {
        for state in self.groups.values_mut().filter(|it| it.summary.is_none()) {
            let has_expired = state.work.note_expiry(now, &mut self.leases);
            self.expired_leases += u64::from(has_expired);
        }
    }

    /// Returns how many leases of an actor have not expired.
    fn leases_of(&self, actor_id: &str, now: Duration) -> usize {
        let is_of =
            |state: &&GroupState| state.summary.is_none() && state.work.is_held_by(now, actor_id);
        self.groups.values().filter(is_of).count()
    }

    /// Returns when an actor may first take an open group.
    fn first_chance(&self, now: Duration, group_index: u64, actor_id: &str) -> Duration {
        let state = self.groups.get(&group_index);
        let free_since = state.map_or(self.began, |it| it.work.free_from());
        let chance = self.leases.first_chance(free_since, actor_id);
        match self.leases_of(actor_id, now) < self.share() {
            true => chance,
            false => {
                let share_time = self.last_step_time / SHARE_TIME_DIVISOR;
                chance.max(self.began + share_time.min(MAX_SHARE_TIME))
            }
        }
    }

    /// Returns an actor's share of the groups that are handed out at a time, rounded up.
    fn share(&self) -> usize {
        let groups = (self.settings.groups_per_step * self.steps_ahead()) as f64;
        let at_a_time = (groups * self.settings.oversampling).ceil() as usize;
        at_a_time.div_ceil(self.actors)
    }

    /// Returns the lowest group that may be handed out, with the oldest version that may sample it.
    fn open_group(&self, now: Duration) -> Option<(u64, u64)> {
        let SchedulerSettings {
            groups_per_step,
            max_groups_per_step,
            max_staleness,
            oversampling,
            ..
        } = self.settings;
        let capacity = groups_per_step * self.steps_ahead();
        let (mut kept, mut leased) = (0, 0);
        // The step that will train on a group if all leased ones are kept, and what it has so far.
        let (mut steps_before, mut of_step, mut looked_at) = (0, 0, 0);
        for index in self.start..self.limit() {
            let missing = capacity.saturating_sub(kept);
            if leased as f64 >= oversampling * missing as f64 {
                return None;
            }
            let state = self.groups.get(&index);
            let is_kept = if let Some(summary) = state.and_then(|it| it.summary) {
                kept += u64::from(summary.kept);
                summary.kept
            } else if state.is_some_and(|it| it.is_leased(now)) {
                leased += 1;
                true
            } else {
                // An expired lease is as good as none: the group is handed out again, in index
                // order, because the batch cannot be complete without it.
                let step = self.version + max_staleness.min(steps_before);
                return Some((index, step.saturating_sub(max_staleness)));
            };
            of_step += u64::from(is_kept);
            looked_at += 1;
            if of_step == groups_per_step || looked_at == max_groups_per_step {
                (steps_before, of_step, looked_at) = (steps_before + 1, 0, 0);
            }
        }
        None
    }

    /// Steps that actors may work on at once: this one, and as many ahead as staleness allows and
    /// the run has.
    fn steps_ahead(&self) -> u64 {
        let left = self.settings.steps.saturating_sub(self.version);
        (1 + self.settings.max_staleness).min(left)
    }

    /// Returns the first group that cannot have been handed out yet.
    fn limit(&self) -> u64 {
        self.start + self.settings.max_groups_per_step * self.steps_ahead()
    }
}
