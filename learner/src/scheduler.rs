//! The scheduler: which group an actor gets with its next claim, and which groups make a learner
//! step.
//!
//! A state machine without I/O; `now` is an argument. Groups are numbered 0, 1, 2 … without end,
//! and [`crate::curriculum`] gives group i its question. A group is *kept* if it can be trained on,
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
//! group's content is a function of its index and of the policy version, which all groups of a step
//! share. The whole run is therefore independent of the number, speed and failures of actors. No
//! group beyond those needed is rolled out.
//!
//! No actor holds up the others (see `Leases`). A result counts once under any lease that was given
//! for the group, also an expired one.
//!
//! With `max_staleness` K > 0 actors work up to K steps ahead, and (K + 1) N replaces N in the
//! rule. Batches are then a function of the journal (contents in index order), and contents depend
//! on the weights version that an actor had.

mod messages;

use std::{collections::BTreeMap, time::Duration};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use crate::leases::{Holders, Leases};
pub use messages::{Admission, Batch, Claim, GroupSummary, Lease, SchedulerSettings, Submission};

#[derive(Clone, Debug, PartialEq, Eq)]
enum GroupState {
    Leased {
        holders: Holders,
        expires: Duration,
    },
    Finished {
        summary: GroupSummary,
        holders: Holders,
    },
}

impl GroupState {
    fn holders(self) -> Holders {
        match self {
            Self::Leased { holders, .. } | Self::Finished { holders, .. } => holders,
        }
    }
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Scheduler {
    settings: SchedulerSettings,
    version: u64,
    start: u64,
    groups: BTreeMap<u64, GroupState>,
    /// Who was given the groups of the step that was made last: a result that comes late is a
    /// result.
    made: BTreeMap<u64, Holders>,
    leases: Leases,
    expired_leases: u64,
    /// When the step began, with which its groups could be handed out.
    began: Duration,
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
        }
    }

    /// Returns the newest policy version, which is the number of steps made.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the first group that the next step looks at.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns how many expired leases were handed out again so far.
    pub fn expired_leases(&self) -> u64 {
        self.expired_leases
    }

    /// Returns how many groups are with actors whose leases have not expired.
    pub fn leased(&self, now: Duration) -> usize {
        let leased = |state: &&GroupState| matches!(state, GroupState::Leased { expires, .. } if now < *expires);
        self.groups.values().filter(leased).count()
    }

    /// Returns when the next lease expires, which may turn a claim's [`Claim::Wait`] into a group.
    pub fn next_expiry(&self, now: Duration) -> Option<Duration> {
        let expiries = self.groups.values().filter_map(|state| match state {
            GroupState::Leased { expires, .. } => Some(*expires),
            GroupState::Finished { .. } => None,
        });
        expiries.filter(|expires| *expires > now).min()
    }

    /// Claims a group for an actor that holds the weights of `actor_version`. A claim is refused by
    /// any other variant than [`Claim::Group`].
    pub fn claim(&mut self, now: Duration, actor_id: &str, actor_version: u64) -> Claim {
        self.note_expired(now);
        let Some((group_index, min_policy_version)) = self.open_group(now) else {
            return Claim::Wait;
        };
        if self.leases_of(actor_id, now) >= self.leases.max_per_actor()
            || now < self.first_chance(group_index, actor_id)
        {
            return Claim::Wait;
        }
        // The staleness gate: work sampled with older weights would be too old when its step trains
        // on it.
        if !(min_policy_version..=self.version).contains(&actor_version) {
            return Claim::OtherVersion;
        }
        let expires = now + self.leases.time_of(actor_id);
        Claim::Group(self.lease(group_index, min_policy_version, actor_id, expires))
    }

    /// Returns when an actor that a [`Claim::Wait`] held back may claim again without any other
    /// event; none if nothing holds it back.
    pub fn held_back_until(&self, now: Duration, actor_id: &str) -> Option<Duration> {
        let (group_index, _) = self.open_group(now)?;
        Some(self.first_chance(group_index, actor_id)).filter(|chance| *chance > now)
    }

    fn lease(
        &mut self,
        group_index: u64,
        min_policy_version: u64,
        actor_id: &str,
        expires: Duration,
    ) -> Lease {
        let lease_id = self.leases.next_id();
        let mut holders = match self.groups.remove(&group_index) {
            Some(GroupState::Leased { holders, .. }) => {
                self.expired_leases += 1;
                holders
            }
            Some(GroupState::Finished { .. }) | None => Holders::default(),
        };
        holders.give(lease_id, actor_id);
        let leased = GroupState::Leased { holders, expires };
        self.groups.insert(group_index, leased);
        Lease {
            group_index,
            lease_id,
            min_policy_version,
            expires,
        }
    }

    /// Notes whose leases have expired.
    fn note_expired(&mut self, now: Duration) {
        for state in self.groups.values_mut() {
            if let GroupState::Leased { holders, expires } = state
                && *expires <= now
                && let Some(actor_id) = holders.note_expiry()
            {
                self.leases.distrust(actor_id);
            }
        }
    }

    /// Returns how many leases of an actor have not expired.
    fn leases_of(&self, actor_id: &str, now: Duration) -> usize {
        let is_of = |state: &&GroupState| match state {
            GroupState::Leased { holders, expires } => {
                now < *expires && holders.last_actor() == Some(actor_id)
            }
            GroupState::Finished { .. } => false,
        };
        self.groups.values().filter(is_of).count()
    }

    /// Returns when an actor may first take an open group.
    fn first_chance(&self, group_index: u64, actor_id: &str) -> Duration {
        let free_since = match self.groups.get(&group_index) {
            Some(GroupState::Leased { expires, .. }) => *expires,
            Some(GroupState::Finished { .. }) | None => self.began,
        };
        self.leases.first_chance(free_since, actor_id)
    }

    /// Returns the lowest group that may be handed out, with the oldest version that may sample it.
    fn open_group(&self, now: Duration) -> Option<(u64, u64)> {
        let SchedulerSettings {
            groups_per_step,
            max_staleness,
            ..
        } = self.settings;
        let capacity = groups_per_step * self.steps_ahead();
        let mut ahead = 0;
        for index in self.start..self.limit() {
            // A leased group counts as kept until its result is known. Otherwise the number of
            // groups handed out, and with it the batch, would depend on timing.
            if ahead >= capacity {
                return None;
            }
            match self.groups.get(&index) {
                Some(GroupState::Finished { summary, .. }) => ahead += u64::from(summary.kept),
                Some(GroupState::Leased { expires, .. }) if now < *expires => ahead += 1,
                // An expired lease is as good as none: the group is handed out again, in index
                // order, because the batch cannot be complete without it.
                Some(GroupState::Leased { .. }) | None => {
                    let last_step_before = self.version + ahead / groups_per_step;
                    return Some((index, last_step_before.saturating_sub(max_staleness)));
                }
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

    /// Decides whether the run takes a finished group. The lease of a stale group ends, so that the
    /// group is handed out again, unless another actor holds it by now.
    pub fn judge(&mut self, submission: Submission<'_>) -> Admission {
        let index = submission.group_index;
        let is_in = matches!(self.groups.get(&index), Some(GroupState::Finished { .. }));
        let is_made = index < self.start;
        if (is_in || is_made) && self.was_given(submission) {
            self.leases.forgive(submission.actor_id);
        }
        if is_made || is_in {
            Admission::Duplicate
        } else if !self.was_given(submission) {
            Admission::Unknown
        } else if self.is_stale(submission.oldest_version) {
            self.end_lease(index, submission.lease_id);
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
    pub fn refuse(&mut self, now: Duration, submission: Submission<'_>) -> bool {
        let was_given = self.was_given(submission);
        if was_given {
            self.distrust(submission.actor_id);
        }
        let state = self.groups.get_mut(&submission.group_index);
        if let (true, Some(GroupState::Leased { holders, expires })) = (was_given, state) {
            if holders.is_last(submission.lease_id) {
                *expires = now.min(*expires);
            }
            holders.forget(submission.lease_id);
        }
        was_given
    }

    /// Ends the leases of an actor that is gone, so that its groups are handed out again. Its
    /// results still count. Returns how many there were.
    pub fn left(&mut self, now: Duration, actor_id: &str) -> usize {
        let mut ended = 0;
        for state in self.groups.values_mut() {
            if let GroupState::Leased { holders, expires } = state
                && now < *expires
                && holders.last_actor() == Some(actor_id)
            {
                *expires = now;
                ended += 1;
            }
        }
        ended
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
    fn was_given(&self, submission: Submission<'_>) -> bool {
        let index = submission.group_index;
        let holders = match self.groups.get(&index) {
            Some(GroupState::Leased { holders, .. } | GroupState::Finished { holders, .. }) => {
                Some(holders)
            }
            None => self.made.get(&index),
        };
        holders.is_some_and(|it| it.was_given(submission.lease_id, submission.actor_id))
    }

    /// Ends a lease, so that the group is handed out again, unless another actor holds it by now.
    fn end_lease(&mut self, group_index: u64, lease_id: u64) {
        let holder = self.groups.get(&group_index);
        if matches!(holder, Some(GroupState::Leased { holders, .. }) if holders.is_last(lease_id)) {
            self.groups.remove(&group_index);
        }
    }

    fn is_stale(&self, oldest_version: u64) -> bool {
        oldest_version.saturating_add(self.settings.max_staleness) < self.version
    }

    /// Records an accepted group of an actor.
    pub fn record_of(&mut self, actor_id: &str, group_index: u64, summary: GroupSummary) {
        self.leases.accepted(actor_id);
        self.record(group_index, summary);
    }

    /// Records an accepted group, or one read back from the journal, which may belong to any later
    /// step.
    pub fn record(&mut self, group_index: u64, mut summary: GroupSummary) {
        if group_index >= self.start {
            summary.kept &= !self.is_stale(summary.oldest_version);
            let holders = match self.groups.remove(&group_index) {
                Some(state) => state.holders(),
                None => Holders::default(),
            };
            let finished = GroupState::Finished { summary, holders };
            self.groups.insert(group_index, finished);
        }
    }

    /// Takes a recorded group back: it is handed out again, or counts as not kept if `is_dropped`.
    pub fn take_back(&mut self, group_index: u64, is_dropped: bool) {
        if !is_dropped {
            self.groups.remove(&group_index);
        } else if let Some(GroupState::Finished { summary, .. }) = self.groups.get_mut(&group_index)
        {
            summary.kept = false;
        }
    }

    /// Returns the next step's batch, once all its groups are recorded.
    pub fn batch(&self) -> Option<Batch> {
        let (mut group_indices, mut left_out) = (Vec::new(), Vec::new());
        let end = self.start + self.settings.max_groups_per_step;
        let mut index = self.start;
        while index < end && (group_indices.len() as u64) < self.settings.groups_per_step {
            let Some(GroupState::Finished { summary, .. }) = self.groups.get(&index) else {
                return None;
            };
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
    /// Groups that are now too stale are dropped when a step looks at them.
    pub fn advance(&mut self, now: Duration, batch: &Batch) {
        self.began = now;
        self.version += 1;
        self.start = batch.next_start;
        let later = self.groups.split_off(&self.start);
        let made = std::mem::replace(&mut self.groups, later);
        self.made = made
            .into_iter()
            .map(|(index, it)| (index, it.holders()))
            .collect();
        let oldest_allowed = self.version.saturating_sub(self.settings.max_staleness);
        for state in self.groups.values_mut() {
            if let GroupState::Finished { summary, .. } = state {
                summary.kept &= summary.oldest_version >= oldest_allowed;
            }
        }
    }
}

/// Returns the random generator of an epoch for one purpose.
pub(crate) fn epoch_rng(seed: u64, epoch: u64, purpose: &[u8; 8]) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    key[16..24].copy_from_slice(purpose);
    ChaCha8Rng::from_seed(key)
}

/// Returns the numbers `0..len` in an order drawn from `rng`.
pub(crate) fn shuffled(len: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        order.swap(last, below(last as u64 + 1, rng) as usize);
    }
    order
}

/// Draws a uniform number below `bound`. Draws from the incomplete last range of u64 are rejected,
/// as a remainder of them would be biased.
fn below(bound: u64, rng: &mut ChaCha8Rng) -> u64 {
    let fair = u64::MAX - u64::MAX % bound;
    loop {
        let draw = rng.next_u64();
        if draw < fair {
            return draw % bound;
        }
    }
}
