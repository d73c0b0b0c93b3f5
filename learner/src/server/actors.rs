//! The actors that have called a learner: who is there, and what each reports, for people who watch
//! the run.
//!
//! Pure. Invariant: what actors report decides nothing, so a number that an actor made up can only
//! be shown. Who is connected and who has called decides on shares and leases. Memory is bounded
//! whatever actors send: callers have checked the lengths of names.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use proto::v1::{ActorReport, EndpointReport, Trajectory};

/// Beyond this number, the actor without a weights stream that has been silent for the longest time
/// is forgotten.
const MAX_ACTORS: usize = 1024;
/// Longer addresses of env-nodes are cut.
const MAX_ADDRESS_CHARACTERS: usize = 128;
const MAX_ENV_NODES: usize = 32;
const MAX_LATENCY_BUCKETS: usize = 16;
/// An actor without a connection is forgotten after this time: a pod that was replaced has another
/// name.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// An actor that called within this time may claim again: claims are held for 20 s.
const LATELY: Duration = Duration::from_secs(60);
/// Rates are means over one to two of these.
const RATE_WINDOW: Duration = Duration::from_secs(30);
/// The episodes that are kept for people to read.
const RECENT_EPISODES: usize = 4;

/// What the learner knows of its actors.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActorRegistry {
    actors: BTreeMap<String, KnownActor>,
    recent: VecDeque<RecentEpisode>,
}

/// An episode of a group that was just accepted.
#[derive(Clone, Debug)]
pub struct RecentEpisode {
    /// The group.
    pub group_index: u64,
    /// The actor that played it.
    pub actor_id: String,
    /// The first member of the group.
    pub trajectory: Arc<Trajectory>,
}

/// What is known of an actor at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedActor {
    /// Its name. Actors choose it, so it may contain anything.
    pub id: String,
    /// The policy version of its last claim.
    pub policy_version: Option<u64>,
    /// Whether it has a weights stream open.
    pub is_connected: bool,
    /// The time since its last call.
    pub silent: Duration,
    /// Groups that it holds under a lease.
    pub groups_in_flight: u64,
    /// Groups of it that were accepted.
    pub groups_done: u64,
    /// Sampled tokens per second of the last minute. Absent before its second report.
    pub tokens_per_second: Option<f64>,
    /// Share of the last minute in which its engine computed; absent as above.
    pub busy_share: Option<f64>,
}

/// What actors report about an env-node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedEnvNode {
    /// HOST:PORT as actors were given it.
    pub address: String,
    /// Calls since the actors started.
    pub calls: u64,
    /// Calls without a response or with UNAVAILABLE since the actors started.
    pub errors: u64,
    /// The calls of the last minute.
    pub recent: EndpointReport,
}

#[derive(Clone, Debug, Default)]
struct KnownActor {
    last_call: Duration,
    policy_version: Option<u64>,
    streams: u64,
    groups_done: u64,
    reports: Reports,
}

/// The newest report and two older ones, at which rates begin.
#[derive(Clone, Debug, Default)]
struct Reports {
    base: Option<(Duration, ActorReport)>,
    next_base: Option<(Duration, ActorReport)>,
    newest: Option<(Duration, ActorReport)>,
}

impl ActorRegistry {
    /// Notes a call of an actor.
    pub(crate) fn called(&mut self, now: Duration, id: &str) {
        self.actor(now, id);
    }

    /// Notes a claim.
    pub(crate) fn claimed(
        &mut self,
        now: Duration,
        id: &str,
        policy_version: u64,
        report: Option<ActorReport>,
    ) {
        let actor = self.actor(now, id);
        actor.policy_version = Some(policy_version);
        if let Some(report) = report {
            actor.reports.add(now, bounded(report));
        }
    }

    /// Notes that an actor submitted a group, and shows its first episode if it was accepted.
    pub(crate) fn submitted(
        &mut self,
        now: Duration,
        id: &str,
        group_index: u64,
        accepted: Option<Trajectory>,
    ) {
        let actor = self.actor(now, id);
        actor.groups_done += u64::from(accepted.is_some());
        if let Some(trajectory) = accepted {
            self.recent.truncate(RECENT_EPISODES - 1);
            self.recent.push_front(RecentEpisode {
                group_index,
                actor_id: id.to_owned(),
                trajectory: Arc::new(trajectory),
            });
        }
    }

    /// Notes that an actor opened a weights stream.
    pub(crate) fn connected(&mut self, now: Duration, id: &str) {
        self.actor(now, id).streams += 1;
    }

    /// Notes that a weights stream ended.
    pub(crate) fn disconnected(&mut self, now: Duration, id: &str) {
        // An actor that was forgotten meanwhile stays forgotten.
        if let Some(actor) = self.actors.get_mut(id) {
            actor.streams = actor.streams.saturating_sub(1);
            actor.last_call = now;
        }
    }

    /// Returns whether an actor has a weights stream open.
    pub(crate) fn is_connected(&self, id: &str) -> bool {
        let actor = self.actors.get(id);
        actor.is_some_and(|actor| actor.streams > 0)
    }

    /// Returns how many actors have a weights stream open.
    pub(crate) fn count_connected(&self) -> usize {
        let actors = self.actors.values();
        actors.filter(|actor| actor.streams > 0).count()
    }

    /// Returns whether an actor has no weights stream and has not called since a time.
    pub(crate) fn is_silent_since(&self, id: &str, time: Duration) -> bool {
        let actor = self.actors.get(id);
        actor.is_none_or(|actor| actor.streams == 0 && actor.last_call <= time)
    }

    /// Returns whether other actors than these have an open weights stream or have called lately.
    pub(crate) fn has_others(&self, now: Duration, actors: &BTreeSet<&str>) -> bool {
        let is_other = |(id, actor): (&String, &KnownActor)| {
            let is_near = actor.streams > 0 || now.saturating_sub(actor.last_call) < LATELY;
            is_near && !actors.contains(id.as_str())
        };
        self.actors.iter().any(is_other)
    }

    /// Returns the actors in the order of their names. `leased` says how many groups each holds.
    pub(crate) fn actors(
        &self,
        now: Duration,
        leased: &BTreeMap<String, usize>,
    ) -> Vec<ObservedActor> {
        let known = self.actors.iter().filter(|(_, it)| !it.is_gone(now));
        let observe = |(id, actor): (&String, &KnownActor)| {
            let groups_in_flight = leased.get(id).copied().unwrap_or(0) as u64;
            actor.observe(now, id, groups_in_flight)
        };
        known.map(observe).collect()
    }

    /// Returns the env-nodes of the actors that are known, in the order of their addresses.
    pub(crate) fn env_nodes(&self, now: Duration) -> Vec<ObservedEnvNode> {
        let mut nodes: BTreeMap<String, ObservedEnvNode> = BTreeMap::new();
        let known = self.actors.values().filter(|it| !it.is_gone(now));
        for reports in known.map(|actor| &actor.reports) {
            let Some((_, newest)) = &reports.newest else {
                continue;
            };
            for total in &newest.env_nodes {
                let node = nodes.entry(total.address.clone()).or_default();
                node.address.clone_from(&total.address);
                node.calls = node.calls.saturating_add(total.calls);
                node.errors = node.errors.saturating_add(total.errors);
                let base = reports.start().map(|(_, report)| report.env_nodes.iter());
                let base = base.and_then(|mut it| it.find(|base| base.address == total.address));
                add_difference(&mut node.recent, total, base);
            }
        }
        nodes.into_values().collect()
    }

    /// Returns the newest episodes, newest first.
    pub(crate) fn recent_episodes(&self) -> Vec<RecentEpisode> {
        self.recent.iter().cloned().collect()
    }

    /// Returns an actor after noting that it called, and makes room for it if it is new.
    fn actor(&mut self, now: Duration, id: &str) -> &mut KnownActor {
        if !self.actors.contains_key(id) {
            self.actors.retain(|_, actor| !actor.is_gone(now));
            if self.actors.len() >= MAX_ACTORS {
                // One with a stream is there, however silent, and the streams are limited.
                let away = self.actors.iter().filter(|(_, it)| it.streams == 0);
                let silent = away.min_by_key(|(_, it)| it.last_call);
                if let Some(silent) = silent.map(|(id, _)| id.clone()) {
                    self.actors.remove(&silent);
                }
            }
        }
        let actor = self.actors.entry(id.to_owned()).or_default();
        actor.last_call = now;
        actor
    }
}

impl KnownActor {
    fn is_gone(&self, now: Duration) -> bool {
        self.streams == 0 && now.saturating_sub(self.last_call) > FORGET_AFTER
    }

    fn observe(&self, now: Duration, id: &str, groups_in_flight: u64) -> ObservedActor {
        let rate = |total: fn(&ActorReport) -> f64| self.reports.per_second(total);
        ObservedActor {
            id: id.to_owned(),
            policy_version: self.policy_version,
            is_connected: self.streams > 0,
            silent: now.saturating_sub(self.last_call),
            groups_in_flight,
            groups_done: self.groups_done,
            tokens_per_second: rate(|report| report.sampled_tokens as f64),
            busy_share: rate(|report| report.busy_seconds).map(|share| share.clamp(0.0, 1.0)),
        }
    }
}

impl Reports {
    fn add(&mut self, now: Duration, report: ActorReport) {
        let went_back = |(_, last): &(Duration, ActorReport)| {
            report.sampled_tokens < last.sampled_tokens || report.busy_seconds < last.busy_seconds
        };
        if self.newest.as_ref().is_some_and(went_back) {
            // The actor was restarted under its old name.
            *self = Self::default();
        }
        let is_due = |at: &Option<(Duration, ActorReport)>| {
            at.as_ref()
                .is_none_or(|(at, _)| now.saturating_sub(*at) >= RATE_WINDOW)
        };
        if is_due(&self.next_base) {
            self.base = self.next_base.replace((now, report.clone()));
        }
        self.newest = Some((now, report));
    }

    /// Returns the report at which rates begin.
    fn start(&self) -> Option<&(Duration, ActorReport)> {
        self.base.as_ref().or(self.next_base.as_ref())
    }

    /// Returns how fast a count grows; none before the second report.
    fn per_second(&self, total: fn(&ActorReport) -> f64) -> Option<f64> {
        let ((start, first), (end, last)) = (self.start()?, self.newest.as_ref()?);
        let seconds = end.saturating_sub(*start).as_secs_f64();
        (seconds > 0.0).then(|| (total(last) - total(first)).max(0.0) / seconds)
    }
}

/// Adds the calls between two reports of an actor; without an older one, all calls.
fn add_difference(
    sum: &mut EndpointReport,
    newer: &EndpointReport,
    older: Option<&EndpointReport>,
) {
    let less = |newer: u64, older: Option<u64>| newer.saturating_sub(older.unwrap_or(0));
    let calls = less(newer.calls, older.map(|it| it.calls));
    sum.calls = sum.calls.saturating_add(calls);
    let errors = less(newer.errors, older.map(|it| it.errors));
    sum.errors = sum.errors.saturating_add(errors);
    let seconds = newer.latency_seconds - older.map_or(0.0, |it| it.latency_seconds);
    sum.latency_seconds += seconds.max(0.0);
    let length = sum.latency_buckets.len().max(newer.latency_buckets.len());
    sum.latency_buckets.resize(length, 0);
    for (index, (sum, newer)) in sum
        .latency_buckets
        .iter_mut()
        .zip(&newer.latency_buckets)
        .enumerate()
    {
        let older = older.and_then(|it| it.latency_buckets.get(index)).copied();
        *sum = sum.saturating_add(less(*newer, older));
    }
}

/// Cuts what is too long and replaces numbers that are not.
fn bounded(mut report: ActorReport) -> ActorReport {
    let number = |value: f64| {
        if value.is_finite() {
            value.max(0.0)
        } else {
            0.0
        }
    };
    report.busy_seconds = number(report.busy_seconds);
    report.env_nodes.truncate(MAX_ENV_NODES);
    report.env_nodes.shrink_to_fit();
    for node in &mut report.env_nodes {
        let address = node.address.chars().take(MAX_ADDRESS_CHARACTERS);
        node.address = address.collect();
        node.latency_seconds = number(node.latency_seconds);
        node.latency_buckets.truncate(MAX_LATENCY_BUCKETS);
        node.latency_buckets.shrink_to_fit();
    }
    report
}

#[cfg(test)]
mod tests;
