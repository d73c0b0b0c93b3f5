//! The metrics of the actor: all names and their descriptions.
//!
//! Invariant: every metric exists from [`describe`] on, with all its labels, so that an alert never
//! waits for a first event. A pass of the engine records a constant number of values, however many
//! tokens it has.

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use proto::v1::{Trajectory, Turn};

const EPISODES: &str = "actor_episodes_total";
const TURNS: &str = "actor_turns_total";
const MALFORMED: &str = "actor_malformed_calls_total";
const TRUNCATED: &str = "actor_truncated_turns_total";
const SAMPLED: &str = "actor_sampled_tokens_total";
const COMPUTED: &str = "actor_computed_tokens_total";
const REUSED: &str = "actor_reused_tokens_total";
const RUNNING: &str = "actor_running_rows";
const WAITING: &str = "actor_waiting_rows";
const SLOTS: &str = "actor_slots";
const GROUPS_IN_FLIGHT: &str = "actor_groups_in_flight";
const EPISODES_IN_FLIGHT: &str = "actor_episodes_in_flight";
const PASS_SECONDS: &str = "actor_pass_seconds";
const CALL_SECONDS: &str = "actor_call_seconds";
const POLICY_VERSION: &str = "actor_policy_version";
const WEIGHTS_BYTES: &str = "actor_weights_received_bytes_total";
const GROUPS: &str = "actor_groups_total";
const IDLE_SECONDS: &str = "actor_idle_seconds";
const RETRIES: &str = "actor_retries_total";
const REPLAYS: &str = "actor_replays_total";

/// A label with the values that it has from the start.
type Label = (&'static str, &'static [&'static str]);
const OUTCOMES: Label = ("outcome", &["correct", "wrong", "unscored"]);
const VERDICTS: Label = (
    "verdict",
    &["accepted", "duplicate", "stale", "unspecified"],
);

/// A counter: its name, its description, and its label.
type DescribedCounter = (&'static str, &'static str, Option<Label>);

const COUNTERS: [DescribedCounter; 10] = [
    (
        EPISODES,
        "Episodes, by outcome: correct, wrong, unscored.",
        Some(OUTCOMES),
    ),
    (TURNS, "Turns, each one completion and one action.", None),
    (MALFORMED, "Turns without a well-formed tool call.", None),
    (
        TRUNCATED,
        "Turns whose completion the token limit cut.",
        None,
    ),
    (SAMPLED, "Sampled tokens.", None),
    (COMPUTED, "Tokens computed in prefill and decode.", None),
    (
        REUSED,
        "Context tokens that the KV cache already held.",
        None,
    ),
    (
        WEIGHTS_BYTES,
        "Bytes of weights received, without framing.",
        None,
    ),
    (
        GROUPS,
        "Submitted groups, by the learner's verdict.",
        Some(VERDICTS),
    ),
    (
        REPLAYS,
        "Episodes replayed after env-node rejected a token.",
        None,
    ),
];
const GAUGES: [(&str, &str); 6] = [
    (RUNNING, "Completions being sampled."),
    (WAITING, "Completions that wait for a slot of the KV cache."),
    (
        SLOTS,
        "Conversations that the KV cache holds: the most completions that run at once.",
    ),
    (GROUPS_IN_FLIGHT, "Groups claimed and not yet submitted."),
    (
        EPISODES_IN_FLIGHT,
        "Episodes that have begun and not ended. Those that are neither running nor waiting rows \
         are at env-node.",
    ),
    (
        POLICY_VERSION,
        "Policy version that samples new completions.",
    ),
];
const HISTOGRAMS: [(&str, &str); 2] = [
    (
        PASS_SECONDS,
        "Duration of a forward pass with sampling. The rate of its sum is the busy share of the \
         engine.",
    ),
    (
        IDLE_SECONDS,
        "Time from a claim to its work, including the wait for work.",
    ),
];

/// The calls of an actor.
const CALLS: [&str; 8] = [
    "Env.Info",
    "Env.Reset",
    "Env.Step",
    "Learner.Join",
    "Learner.Weights",
    "Learner.Claim",
    "Learner.Submit",
    "Learner.SubmitEvaluation",
];

/// Describes all metrics to the installed recorder, and makes all of them exist.
pub fn describe() {
    COUNTERS.into_iter().for_each(begin_counter);
    for (name, description) in GAUGES {
        describe_gauge!(name, description);
        gauge!(name).set(0.0);
    }
    for (name, description) in HISTOGRAMS {
        describe_histogram!(name, Unit::Seconds, description);
        let _registered = histogram!(name);
    }
    describe_calls(&CALLS);
}

/// Describes a counter, and makes it exist with all its labels.
fn begin_counter((name, description, label): DescribedCounter) {
    describe_counter!(name, description);
    match label {
        None => counter!(name).increment(0),
        Some((key, values)) => {
            for &value in values {
                counter!(name, key => value).increment(0);
            }
        }
    }
}

/// Describes what a learner has of these metrics, since it plays the random policy on its env-node
/// as an actor would.
pub fn describe_of_learner() {
    describe_calls(&["Env.ListQuestions", "Env.Reset", "Env.Step"]);
    for (name, description) in GAUGES.iter().filter(|it| it.0 == EPISODES_IN_FLIGHT) {
        describe_gauge!(*name, *description);
        gauge!(*name).set(0.0);
    }
    let counters = COUNTERS.into_iter().filter(|it| it.0 == REPLAYS);
    counters.for_each(begin_counter);
}

/// Describes the metrics of calls, and makes those of some calls exist.
fn describe_calls(calls: &[&'static str]) {
    describe_counter!(RETRIES, "Retried calls, by call.");
    describe_histogram!(
        CALL_SECONDS,
        Unit::Seconds,
        "Duration of an attempt of a call, by call, as its client sees it. The learner holds \
         Learner.Claim while there is no work."
    );
    for &call in calls {
        counter!(RETRIES, "call" => call).increment(0);
        let _registered = histogram!(CALL_SECONDS, "call" => call);
    }
}

pub(crate) fn count_episode(trajectory: &Trajectory) {
    let outcome = match (trajectory.scored, trajectory.correct) {
        (false, _) => "unscored",
        (true, true) => "correct",
        (true, false) => "wrong",
    };
    counter!(EPISODES, "outcome" => outcome).increment(1);
    counter!(TURNS).increment(trajectory.turns.len() as u64);
    let count = |hit: fn(&Turn) -> bool| trajectory.turns.iter().filter(|turn| hit(turn)).count();
    counter!(MALFORMED).increment(count(|turn| turn.malformed) as u64);
    counter!(TRUNCATED).increment(count(|turn| turn.truncated) as u64);
}

pub(crate) fn record_pass(computed_tokens: usize, sampled_tokens: usize, seconds: f64) {
    counter!(COMPUTED).increment(computed_tokens as u64);
    counter!(SAMPLED).increment(sampled_tokens as u64);
    histogram!(PASS_SECONDS).record(seconds);
}

pub(crate) fn count_reused(tokens: usize) {
    counter!(REUSED).increment(tokens as u64);
}

/// An engine's part of the gauges, which are sums over the engines of the process, until it is
/// dropped.
pub(crate) struct EngineRows {
    slots: usize,
    running: usize,
    waiting: usize,
}

impl EngineRows {
    pub(crate) fn begin(slots: usize) -> Self {
        gauge!(SLOTS).increment(slots as f64);
        Self {
            slots,
            running: 0,
            waiting: 0,
        }
    }

    pub(crate) fn set(&mut self, running: usize, waiting: usize) {
        gauge!(RUNNING).increment(running as f64 - self.running as f64);
        gauge!(WAITING).increment(waiting as f64 - self.waiting as f64);
        (self.running, self.waiting) = (running, waiting);
    }
}

impl Drop for EngineRows {
    fn drop(&mut self) {
        self.set(0, 0);
        gauge!(SLOTS).decrement(self.slots as f64);
    }
}

pub(crate) fn set_policy_version(version: u64) {
    gauge!(POLICY_VERSION).set(version as f64);
}

pub(crate) fn count_weights(bytes: usize) {
    counter!(WEIGHTS_BYTES).increment(bytes as u64);
}

pub(crate) fn count_group(verdict: &'static str) {
    counter!(GROUPS, "verdict" => verdict).increment(1);
}

pub(crate) fn record_idle(waited: Duration) {
    histogram!(IDLE_SECONDS).record(waited.as_secs_f64());
}

pub(crate) fn count_replay() {
    counter!(REPLAYS).increment(1);
}

pub(crate) fn record_call(call: &'static str, took: Duration) {
    histogram!(CALL_SECONDS, "call" => call).record(took.as_secs_f64());
}

pub(crate) fn count_retry(call: &'static str) {
    counter!(RETRIES, "call" => call).increment(1);
}

/// Something that an actor is working on, until it is dropped.
pub(crate) struct InFlight(&'static str);

impl InFlight {
    /// Begins a group.
    pub(crate) fn group() -> Self {
        Self::begin(GROUPS_IN_FLIGHT)
    }

    /// Begins an episode.
    pub(crate) fn episode() -> Self {
        Self::begin(EPISODES_IN_FLIGHT)
    }

    fn begin(name: &'static str) -> Self {
        gauge!(name).increment(1.0);
        Self(name)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        gauge!(self.0).decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_call_has_its_metrics_from_the_start() {
        let sources = [
            include_str!("env_session.rs"),
            include_str!("learner_session.rs"),
            include_str!("weights.rs"),
            include_str!("worker.rs"),
        ];
        let calls = sources
            .iter()
            .flat_map(|it| it.split("retry.call(\"").skip(1));
        let made: BTreeSet<&str> = calls.map(|call| call.split('"').next().unwrap()).collect();
        assert_eq!(made, BTreeSet::from(CALLS));
    }
}
