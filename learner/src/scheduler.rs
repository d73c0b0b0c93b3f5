//! Which group is handed out, to whom, and which groups make a step: a sans-IO state machine, `now` an argument.
//!
//! Groups are numbered 0, 1, 2 … for ever, and group i asks the question that [`QuestionOrder`] gives it. A group is
//! *kept* if it can teach (its rewards have spread). Step s begins at some index b and takes the first N
//! (`groups_per_step`) kept groups in index order; the next step begins behind the last group it looked at. It looks at
//! no more than M (`max_groups_per_step`) groups and then makes do with what was kept.
//!
//! **The batch does not depend on timing.** Let `max_staleness` be 0. Index i >= b is handed out only while fewer than N
//! of the indices in b..i are kept or still out. Claim: i is ever handed out if and only if fewer than N of b..i are kept
//! *in the end*. If it is handed out, the kept ones in the end are among those then kept or out, so fewer than N. If in
//! the end fewer than N are kept, then once all of b..i are in, nothing holds i back; and all of them do come in, since a
//! lost lease is given out again. So the set handed out is a function of the groups' contents alone; so is the batch;
//! and since a group's content is a function of its index and of the version, which all groups of a step share, so is the
//! whole run, whatever the number, speed and deaths of actors. No group beyond those needed is ever rolled out.
//!
//! With `max_staleness` K > 0 actors work up to K steps ahead and K + 1 takes N's share in the rule; batches are then a
//! function of the journal (contents in index order), and contents depend on which version an actor had.

use std::{collections::BTreeMap, time::Duration};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// The terms of the run, all counted in groups, steps or versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerSettings {
    /// Steps of the run.
    pub steps: u64,
    /// N: kept groups in a full batch; at least 1.
    pub groups_per_step: u64,
    /// M: groups looked at for one step; at least N.
    pub max_groups_per_step: u64,
    /// K: how many versions a group may lag at the step that trains on it.
    pub max_staleness: u64,
    /// How long an actor holds a group.
    pub lease: Duration,
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Roll out this group.
    Group(Lease),
    /// Nothing may be handed out now.
    Wait,
    /// All steps are made.
    Finished,
}

/// A group given to an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The group.
    pub group_index: u64,
    /// Unique in the life of the scheduler.
    pub lease_id: u64,
    /// Sample with this version or a newer one.
    pub min_policy_version: u64,
}

/// What a submitted group means to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Needed: journal it, then [`Scheduler::record`] it.
    Accept,
    /// Already in, or its step is over.
    Duplicate,
    /// Sampled with too old a version; the group is given out again.
    Stale,
    /// Not known to this learner: handed out, if at all, before a restart. It will be handed out again.
    Unknown,
}

/// What the scheduler must know of a finished group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the group can teach.
    pub kept: bool,
    /// The oldest version that sampled in it.
    pub oldest_version: u64,
}

/// The groups of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Kept groups in index order; fewer than N where M ran out.
    pub group_indices: Vec<u64>,
    /// Groups looked at that were not kept, in index order.
    pub left_out: Vec<u64>,
    /// Where the next step begins.
    next_start: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Out { lease_id: u64, expires: Duration },
    In(Outcome),
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Scheduler {
    settings: SchedulerSettings,
    version: u64,
    start: u64,
    groups: BTreeMap<u64, State>,
    leases: u64,
    expired_leases: u64,
}

impl Scheduler {
    /// A scheduler that has made `version` steps and goes on at group `start`; (0, 0) for a new run.
    #[must_use]
    pub fn new(settings: SchedulerSettings, version: u64, start: u64) -> Self {
        Self {
            settings,
            version,
            start,
            groups: BTreeMap::new(),
            leases: 0,
            expired_leases: 0,
        }
    }

    /// The newest policy version, which is the number of steps made.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The first group that the next step looks at.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Whether all steps are made.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.version >= self.settings.steps
    }

    /// Leases that ran out so far.
    #[must_use]
    pub fn expired_leases(&self) -> u64 {
        self.expired_leases
    }

    /// Asks for work on behalf of an actor that holds `actor_version`.
    pub fn claim(&mut self, now: Duration, actor_version: u64) -> Claim {
        if self.is_finished() {
            return Claim::Finished;
        }
        let Some((group_index, min_policy_version)) = self.open_group(now) else {
            return Claim::Wait;
        };
        if !(min_policy_version..=self.version).contains(&actor_version) {
            return Claim::Wait;
        }
        self.leases += 1;
        let lease_id = self.leases;
        let state = State::Out {
            lease_id,
            expires: now + self.settings.lease,
        };
        if self.groups.insert(group_index, state).is_some() {
            self.expired_leases += 1;
        }
        Claim::Group(Lease {
            group_index,
            lease_id,
            min_policy_version,
        })
    }

    /// The lowest group that may be handed out, with the oldest version it may be sampled with.
    fn open_group(&self, now: Duration) -> Option<(u64, u64)> {
        let SchedulerSettings {
            groups_per_step,
            max_staleness,
            ..
        } = self.settings;
        let capacity = groups_per_step * self.steps_ahead();
        let mut ahead = 0;
        for index in self.start..self.limit() {
            if ahead >= capacity {
                return None;
            }
            match self.groups.get(&index) {
                Some(State::In(outcome)) => ahead += u64::from(outcome.kept),
                Some(State::Out { expires, .. }) if now < *expires => ahead += 1,
                Some(State::Out { .. }) | None => {
                    let last_step_before = self.version + ahead / groups_per_step;
                    return Some((index, last_step_before.saturating_sub(max_staleness)));
                }
            }
        }
        None
    }

    /// Steps that may be worked on at once: this one, and as many ahead as staleness allows and the run has.
    fn steps_ahead(&self) -> u64 {
        let left = self.settings.steps.saturating_sub(self.version);
        (1 + self.settings.max_staleness).min(left)
    }

    /// No group from here on can have been handed out.
    fn limit(&self) -> u64 {
        self.start + self.settings.max_groups_per_step * self.steps_ahead()
    }

    /// Judges a group finished under `lease_id`. A stale group's lease ends, unless another actor holds it by now, so that
    /// the group is given out again.
    pub fn judge(&mut self, group_index: u64, lease_id: u64, oldest_version: u64) -> Verdict {
        let is_in = matches!(self.groups.get(&group_index), Some(State::In(_)));
        if group_index < self.start || is_in {
            Verdict::Duplicate
        } else if group_index >= self.limit() {
            Verdict::Unknown
        } else if self.is_stale(oldest_version) {
            let holder = self.groups.get(&group_index);
            if matches!(holder, Some(State::Out { lease_id: held, .. }) if *held == lease_id) {
                self.groups.remove(&group_index);
            }
            Verdict::Stale
        } else {
            Verdict::Accept
        }
    }

    fn is_stale(&self, oldest_version: u64) -> bool {
        oldest_version.saturating_add(self.settings.max_staleness) < self.version
    }

    /// Takes in an accepted group, or one read back from the journal, where it may belong to any step to come.
    pub fn record(&mut self, group_index: u64, mut outcome: Outcome) {
        if group_index >= self.start {
            outcome.kept &= !self.is_stale(outcome.oldest_version);
            self.groups.insert(group_index, State::In(outcome));
        }
    }

    /// The next step's batch, once all its groups are in.
    #[must_use]
    pub fn batch(&self) -> Option<Batch> {
        let (mut group_indices, mut left_out) = (Vec::new(), Vec::new());
        let end = self.start + self.settings.max_groups_per_step;
        let mut index = self.start;
        while index < end && (group_indices.len() as u64) < self.settings.groups_per_step {
            let Some(State::In(outcome)) = self.groups.get(&index) else {
                return None;
            };
            let place = if outcome.kept {
                &mut group_indices
            } else {
                &mut left_out
            };
            place.push(index);
            index += 1;
        }
        Some(Batch {
            group_indices,
            left_out,
            next_start: index,
        })
    }

    /// The step on `batch` is made and its version published. Groups that are now too old to be used are left out later.
    pub fn advance(&mut self, batch: &Batch) {
        self.version += 1;
        self.start = batch.next_start;
        self.groups = self.groups.split_off(&self.start);
        let oldest_allowed = self.version.saturating_sub(self.settings.max_staleness);
        for state in self.groups.values_mut() {
            if let State::In(outcome) = state {
                outcome.kept &= outcome.oldest_version >= oldest_allowed;
            }
        }
    }
}

/// The question of every group: one seeded shuffle of all questions per epoch.
#[derive(Clone, Debug)]
pub struct QuestionOrder {
    questions: usize,
    run_seed: u64,
    /// The epoch asked for last, and its order.
    last: Option<(u64, Vec<usize>)>,
}

impl QuestionOrder {
    /// An order of `questions` questions (at least 1).
    #[must_use]
    pub fn new(questions: usize, run_seed: u64) -> Self {
        Self {
            questions,
            run_seed,
            last: None,
        }
    }

    /// The place of group `group_index`'s question in the list: a function of the run's seed and the index alone.
    pub fn question(&mut self, group_index: u64) -> usize {
        let epoch = group_index / self.questions as u64;
        let order = match self.last.take() {
            Some((last, order)) if last == epoch => order,
            _ => self.epoch(epoch),
        };
        let question = order[(group_index % self.questions as u64) as usize];
        self.last = Some((epoch, order));
        question
    }

    /// The order of the questions in one epoch (Fisher–Yates under a ChaCha8 key made of seed and epoch).
    fn epoch(&self, epoch: u64) -> Vec<usize> {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.run_seed.to_le_bytes());
        key[8..16].copy_from_slice(&epoch.to_le_bytes());
        key[16..24].copy_from_slice(b"question");
        shuffled(self.questions, &mut ChaCha8Rng::from_seed(key))
    }
}

/// The numbers `0..len` in an order drawn from `rng`.
pub(crate) fn shuffled(len: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        order.swap(last, below(last as u64 + 1, rng) as usize);
    }
    order
}

/// A uniform number below `bound`: draws from the ragged end of u64's range are thrown away.
fn below(bound: u64, rng: &mut ChaCha8Rng) -> u64 {
    let fair = u64::MAX - u64::MAX % bound;
    loop {
        let draw = rng.next_u64();
        if draw < fair {
            return draw % bound;
        }
    }
}
