//! Leases of work: who was given a piece of it, for how long, and who is left the first chance.
//!
//! Pure. Time is an argument. **No actor holds up the others.** An actor has a limited number of
//! leases. Until its first accepted work, and after each lease that it let expire, its leases last
//! only a tenth of the usual time. After an expiry the other actors have that long, and a minute at
//! most, to take the work first.

use std::{collections::BTreeSet, time::Duration};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng as _, SeedableRng as _},
};

/// By how much shorter the leases are of an actor without accepted work, and their least time.
const UNPROVEN_SHARE: u32 = 10;
const MIN_UNPROVEN: Duration = Duration::from_secs(10);
/// The longest first chance of the other actors. They claim again within seconds, and if all actors
/// are late, nobody works meanwhile. A tenth of a lease may be longer than any run.
const MAX_CHANCE: Duration = Duration::from_secs(60);
/// Actors and former leases that are remembered. Forgetting one costs a rollout.
const MAX_ACTORS: usize = 4_096;
const MAX_HOLDERS: usize = 64;

/// The leases of one kind of work, and what is known of the actors that had them.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    lease: Duration,
    max_per_actor: usize,
    /// Actors cannot guess the ids of others.
    ids: ChaCha8Rng,
    /// Actors whose last lease ended with accepted work.
    proven: BTreeSet<String>,
    /// Actors whose last lease expired.
    late: BTreeSet<String>,
}

impl Leases {
    /// Creates leases of `lease`, of which an actor holds `max_per_actor`. Their ids follow from
    /// `secret`.
    pub(crate) fn new(lease: Duration, max_per_actor: usize, secret: u64) -> Self {
        Self {
            lease,
            max_per_actor,
            ids: ChaCha8Rng::seed_from_u64(secret),
            proven: BTreeSet::new(),
            late: BTreeSet::new(),
        }
    }

    /// Returns the id of the next lease.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.ids.next_u64()
    }

    /// Returns the leases that an actor may hold at a time.
    pub(crate) fn max_per_actor(&self) -> usize {
        self.max_per_actor
    }

    /// Returns how long an actor may hold a piece of work.
    pub(crate) fn time_of(&self, actor_id: &str) -> Duration {
        match self.proven.contains(actor_id) {
            true => self.lease,
            false => self.unproven(),
        }
    }

    fn unproven(&self) -> Duration {
        (self.lease / UNPROVEN_SHARE).max(MIN_UNPROVEN.min(self.lease))
    }

    /// Returns when an actor may first take work that has been free since then. One that let a
    /// lease expire leaves the others some time.
    pub(crate) fn first_chance(&self, free_since: Duration, actor_id: &str) -> Duration {
        match self.late.contains(actor_id) {
            true => free_since + self.unproven().min(MAX_CHANCE),
            false => Duration::ZERO,
        }
    }

    /// Notes that work of an actor was accepted.
    pub(crate) fn accepted(&mut self, actor_id: &str) {
        self.late.remove(actor_id);
        insert(&mut self.proven, actor_id);
    }

    /// Notes that an actor is slow, but works.
    pub(crate) fn forgive(&mut self, actor_id: &str) {
        self.late.remove(actor_id);
    }

    /// Notes that a lease of an actor expired, or that its work was refused.
    pub(crate) fn distrust(&mut self, actor_id: &str) {
        self.proven.remove(actor_id);
        insert(&mut self.late, actor_id);
    }
}

fn insert(actors: &mut BTreeSet<String>, actor_id: &str) {
    if !actors.contains(actor_id) {
        actors.insert(actor_id.to_owned());
    }
    while actors.len() > MAX_ACTORS {
        actors.pop_first();
    }
}

/// A piece of work, and the leases under which actors were given it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeasedWork {
    /// The actors that were given it. The last one holds its newest lease.
    holders: Vec<Holder>,
    /// When the newest lease ends, or since when the work has been free.
    free_from: Duration,
}

/// An actor that was given a piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    lease_id: u64,
    actor_id: String,
    /// Whether the actor was gone before the lease expired.
    has_left: bool,
    /// Whether it is known that the lease has ended. An actor that is forgiven stays so.
    is_noted: bool,
}

impl LeasedWork {
    /// Creates work that is free from `now` on.
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            holders: Vec::new(),
            free_from: now,
        }
    }

    /// Returns when the newest lease ends, or since when the work has been free.
    pub(crate) fn free_from(&self) -> Duration {
        self.free_from
    }

    /// Returns whether an actor has a lease of it that has not ended.
    pub(crate) fn is_held(&self, now: Duration) -> bool {
        now < self.free_from
    }

    /// Returns the actor that has it.
    pub(crate) fn holder(&self, now: Duration) -> Option<&str> {
        let last = self.holders.last().filter(|_| self.is_held(now));
        last.map(|it| it.actor_id.as_str())
    }

    /// Returns whether this actor has it.
    pub(crate) fn is_held_by(&self, now: Duration, actor_id: &str) -> bool {
        self.holder(now) == Some(actor_id)
    }

    /// Returns whether the actor was given the work under this lease, which may have expired.
    pub(crate) fn was_given(&self, lease_id: u64, actor_id: &str) -> bool {
        let is_it = |it: &Holder| it.lease_id == lease_id && it.actor_id == actor_id;
        self.holders.iter().any(is_it)
    }

    /// Returns whether this lease is the newest.
    pub(crate) fn is_last(&self, lease_id: u64) -> bool {
        let last = self.holders.last();
        last.is_some_and(|it| it.lease_id == lease_id)
    }

    /// Gives the work to an actor. Returns the id of the lease.
    pub(crate) fn lease(&mut self, now: Duration, leases: &mut Leases, actor_id: &str) -> u64 {
        let lease_id = leases.next_id();
        if self.holders.len() == MAX_HOLDERS {
            self.holders.remove(0);
        }
        self.holders.push(Holder {
            lease_id,
            actor_id: actor_id.to_owned(),
            has_left: false,
            is_noted: false,
        });
        self.free_from = now + leases.time_of(actor_id);
        lease_id
    }

    /// Adds the leases under which the same work was given later. It is not given any more.
    pub(crate) fn append(&mut self, later: Self) {
        self.holders.extend(later.holders);
        let excess = self.holders.len().saturating_sub(MAX_HOLDERS);
        self.holders.drain(..excess);
    }

    /// Notes that the newest lease has ended, if it has. Returns whether it has expired, and nobody
    /// knew it before.
    pub(crate) fn note_expiry(&mut self, now: Duration, leases: &mut Leases) -> bool {
        let is_held = self.is_held(now);
        let last = self.holders.last_mut();
        let Some(last) = last.filter(|it| !is_held && !it.is_noted) else {
            return false;
        };
        last.is_noted = true;
        leases.distrust(&last.actor_id);
        !last.has_left
    }

    /// Ends the lease of an actor that is gone. Its result still counts. Returns whether it had
    /// one.
    pub(crate) fn leave(&mut self, now: Duration, actor_id: &str) -> bool {
        let is_held = self.is_held_by(now, actor_id);
        if is_held && let Some(last) = self.holders.last_mut() {
            last.has_left = true;
            self.free_from = now;
        }
        is_held
    }

    /// Ends and forgets a lease whose result is refused. Results under other leases still count.
    pub(crate) fn refuse(&mut self, now: Duration, lease_id: u64) {
        if self.is_last(lease_id) {
            self.free_from = now.min(self.free_from);
        }
        self.holders.retain(|it| it.lease_id != lease_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actors_earn_long_leases_and_lose_them() {
        let mut leases = Leases::new(Duration::from_secs(300), 4, 1);
        let (short, long) = (Duration::from_secs(30), Duration::from_secs(300));
        let free_since = Duration::from_secs(7);
        assert_eq!(leases.time_of("a"), short);
        leases.accepted("a");
        assert_eq!(leases.time_of("a"), long);
        assert_eq!(leases.first_chance(free_since, "a"), Duration::ZERO);
        leases.distrust("a");
        assert_eq!(leases.time_of("a"), short);
        assert_eq!(leases.first_chance(free_since, "a"), free_since + short);
        leases.forgive("a");
        assert_eq!(leases.first_chance(free_since, "a"), Duration::ZERO);
        assert_eq!(leases.time_of("a"), short);
    }

    #[test]
    fn invented_actors_and_repeated_leases_take_bounded_memory() {
        let mut leases = Leases::new(Duration::from_secs(300), 4, 1);
        let mut work = LeasedWork::default();
        let mut ids = Vec::new();
        for number in 0..10_000_u64 {
            leases.distrust(&number.to_string());
            leases.accepted(&format!("other {number}"));
            ids.push(work.lease(Duration::ZERO, &mut leases, "a"));
        }
        assert_eq!(leases.late.len(), MAX_ACTORS);
        assert_eq!(leases.proven.len(), MAX_ACTORS);
        assert_eq!(work.holders.len(), MAX_HOLDERS);
        assert!(work.was_given(ids[9_999], "a") && !work.was_given(ids[9_999], "b"));
        assert!(!work.was_given(ids[3], "a"));
        work.refuse(Duration::ZERO, ids[9_999]);
        assert!(!work.was_given(ids[9_999], "a") && work.is_last(ids[9_998]));
    }

    #[test]
    fn ids_follow_from_the_secret_alone() {
        let ids = |secret| {
            let mut leases = Leases::new(Duration::ZERO, 1, secret);
            [leases.next_id(), leases.next_id(), leases.next_id()]
        };
        assert_eq!(ids(1), ids(1));
        let (a, b) = (ids(1), ids(2));
        assert!(a.iter().all(|id| !b.contains(id)));
        assert!(a[0].abs_diff(a[1]) > 1 << 20, "{a:?}");
    }
}
