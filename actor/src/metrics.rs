//! The metrics of the actor: all names and their descriptions.

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use proto::v1::Trajectory;

const EPISODES: &str = "actor_episodes_total";
const TURNS: &str = "actor_turns_total";
const MALFORMED: &str = "actor_malformed_calls_total";
const SAMPLED: &str = "actor_sampled_tokens_total";
const COMPUTED: &str = "actor_computed_tokens_total";
const REUSED: &str = "actor_reused_tokens_total";
const RUNNING: &str = "actor_running_rows";
const WAITING: &str = "actor_waiting_rows";
const PASS_SECONDS: &str = "actor_pass_seconds";
const POLICY_VERSION: &str = "actor_policy_version";
const GROUPS: &str = "actor_groups_total";
const IDLE_SECONDS: &str = "actor_idle_seconds";
const RETRIES: &str = "actor_retries_total";
const REPLAYS: &str = "actor_replays_total";

const COUNTERS: [(&str, &str); 9] = [
    (EPISODES, "Episodes, by outcome: correct, wrong, unscored."),
    (TURNS, "Turns, each one completion and one action."),
    (MALFORMED, "Turns without a well-formed tool call."),
    (SAMPLED, "Sampled tokens."),
    (COMPUTED, "Tokens computed in prefill and decode."),
    (REUSED, "Context tokens that the KV cache already held."),
    (GROUPS, "Submitted groups, by the learner's verdict."),
    (RETRIES, "Retried calls, by call."),
    (
        REPLAYS,
        "Episodes replayed after env-node rejected a token.",
    ),
];
const GAUGES: [(&str, &str); 3] = [
    (RUNNING, "Completions being sampled."),
    (WAITING, "Completions that wait for a slot of the KV cache."),
    (
        POLICY_VERSION,
        "Policy version that samples new completions.",
    ),
];
const HISTOGRAMS: [(&str, &str); 2] = [
    (PASS_SECONDS, "Duration of a forward pass with sampling."),
    (
        IDLE_SECONDS,
        "Time from a claim to its group, including the wait for work.",
    ),
];

/// Describes all metrics to the installed recorder.
pub fn describe() {
    for (name, description) in COUNTERS {
        describe_counter!(name, description);
    }
    for (name, description) in GAUGES {
        describe_gauge!(name, description);
    }
    for (name, description) in HISTOGRAMS {
        describe_histogram!(name, Unit::Seconds, description);
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
    let malformed = trajectory
        .turns
        .iter()
        .filter(|turn| turn.malformed)
        .count();
    counter!(MALFORMED).increment(malformed as u64);
}

pub(crate) fn record_pass(computed_tokens: usize, sampled_tokens: usize, seconds: f64) {
    counter!(COMPUTED).increment(computed_tokens as u64);
    counter!(SAMPLED).increment(sampled_tokens as u64);
    histogram!(PASS_SECONDS).record(seconds);
}

pub(crate) fn count_reused(tokens: usize) {
    counter!(REUSED).increment(tokens as u64);
}

pub(crate) fn set_rows(running: usize, waiting: usize) {
    gauge!(RUNNING).set(running as f64);
    gauge!(WAITING).set(waiting as f64);
}

pub(crate) fn set_policy_version(version: u64) {
    gauge!(POLICY_VERSION).set(version as f64);
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

pub(crate) fn count_retry(call: &'static str) {
    counter!(RETRIES, "call" => call).increment(1);
}
