//! What goes into the scheduler and comes out of it.

use std::time::Duration;

/// Settings of the scheduler, all counted in groups, steps or policy versions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulerSettings {
    /// Steps of the run.
    pub steps: u64,
    /// N: kept groups in a full batch; at least 1.
    pub groups_per_step: u64,
    /// M: groups that dynamic sampling looks at for one step; at least N.
    pub max_groups_per_step: u64,
    /// Groups that are with actors at a time, for each kept group that is still missing; at least
    /// 1.
    pub oversampling: f64,
    /// K: how many versions the weights of a group may lag behind the step that trains on it.
    pub max_staleness: u64,
    /// How long an actor holds a group before the group is handed out again.
    pub lease: Duration,
    /// Groups that one actor holds at a time; at least 1.
    pub max_leases_per_actor: usize,
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The actor rolls out this group.
    Group(Lease),
    /// Nothing can be handed out now: the batch is complete, all that is missing is leased, or all
    /// steps are made. Time alone may change that at this time.
    Wait(Option<Duration>),
    /// There is work, but not for the version that the actor holds: it is too old, or this learner
    /// has not made it (after a restart from an older checkpoint).
    OtherVersion,
}

/// A group given to an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The group.
    pub group_index: u64,
    /// Unique within a scheduler.
    pub lease_id: u64,
    /// The oldest policy version that may sample the group.
    pub min_policy_version: u64,
    /// When the group is handed out again.
    pub expires: Duration,
}

/// What the scheduler decides about a submitted group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The group is needed: journal it, then [`Scheduler::record`](super::Scheduler::record) it.
    Accept,
    /// The group is recorded already, or its step is made, perhaps without it.
    Duplicate,
    /// Sampled with weights that are too old, or that this learner has not made: a restart took the
    /// run back, and the actor still had the weights from before. The group is handed out again.
    Stale,
    /// This learner did not hand the group out to this actor; a learner before a restart may have.
    /// The group is handed out again.
    Unknown,
}

/// What the scheduler must know about a finished group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// Whether the group can be trained on.
    pub kept: bool,
    /// The oldest policy version that sampled in it.
    pub oldest_version: u64,
}

/// The groups of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Kept groups in index order; fewer than N where M was reached.
    pub group_indices: Vec<u64>,
    /// Groups that the step looked at and dropped, in index order.
    pub left_out: Vec<u64>,
    /// Where the next step begins.
    pub(super) next_start: u64,
}
