//! Names of the env-node's metrics, each defined once. Counters and gauges go to whatever recorder the process installs.

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use proto::v1::StepResponse;

use crate::{
    episode::EpisodeState,
    reward::RewardProfile,
    sandbox::{Failure, QueryRun},
};

/// Episodes started, by `profile`.
const EPISODES: &str = "env_episodes_total";
/// Episodes ended, by `outcome`: correct, incorrect, exhausted.
const EPISODES_ENDED: &str = "env_episodes_ended_total";
/// Steps, by `action` and `ok`.
const STEPS: &str = "env_steps_total";
/// Time to serve a step, by `action`.
const STEP_SECONDS: &str = "env_step_seconds";
/// Queries, by `outcome`.
const QUERIES: &str = "env_queries_total";
/// Work units of a query.
const QUERY_WORK_UNITS: &str = "env_query_work_units";
/// Most memory that a query held.
const QUERY_MEMORY_BYTES: &str = "env_query_memory_bytes";
/// Queries that wait for a thread.
const QUEUE_DEPTH: &str = "env_queue_depth";
/// Open sessions of OpenEnv's protocols.
const SESSIONS: &str = "env_sessions";
/// Calls refused, by `protocol` and `code`.
const REFUSED: &str = "env_refused_calls_total";
/// Connections not served, by `reason`: full, system.
const CONNECTIONS_REFUSED: &str = "env_refused_connections_total";

/// Describes every metric to the recorder in place; the process installs it before it opens a node.
pub(crate) fn describe() {
    describe_counter!(EPISODES, "Episodes started, by reward profile");
    describe_counter!(
        EPISODES_ENDED,
        "Episodes ended, by outcome: correct, incorrect, exhausted"
    );
    describe_counter!(
        STEPS,
        "Steps served, by action and whether the action succeeded"
    );
    describe_histogram!(
        STEP_SECONDS,
        Unit::Seconds,
        "Time to serve a step, by action"
    );
    describe_counter!(
        QUERIES,
        "Queries run, by outcome: ok, denied, work_units, memory, wall_clock, error"
    );
    describe_histogram!(
        QUERY_WORK_UNITS,
        Unit::Count,
        "Work units of a query: SQLite virtual machine steps and metered bytes"
    );
    describe_histogram!(
        QUERY_MEMORY_BYTES,
        Unit::Bytes,
        "Most memory that SQLite held for a query"
    );
    describe_gauge!(QUEUE_DEPTH, Unit::Count, "Queries that wait for a thread");
    describe_gauge!(
        SESSIONS,
        Unit::Count,
        "Open sessions of OpenEnv's protocols"
    );
    describe_counter!(
        REFUSED,
        "Calls refused, by protocol and code: grpc and http with their statuses, openenv with CAPACITY_REACHED"
    );
    describe_counter!(
        CONNECTIONS_REFUSED,
        "Connections not served: the server is full, or the system gave no descriptor"
    );
}

pub(crate) fn episode_started(profile: RewardProfile) {
    counter!(EPISODES, "profile" => profile.to_string()).increment(1);
}

pub(crate) fn step_served(action_type: &str, response: &StepResponse, took: Duration) {
    let action = ["DESCRIBE", "SAMPLE", "QUERY", "ANSWER"]
        .into_iter()
        .find(|name| name.eq_ignore_ascii_case(action_type.trim()))
        .unwrap_or("unknown");
    let Some(observation) = &response.observation else {
        return;
    };
    let ok = if observation.error.is_empty() {
        "true"
    } else {
        "false"
    };
    counter!(STEPS, "action" => action, "ok" => ok).increment(1);
    histogram!(STEP_SECONDS, "action" => action).record(took);
}

pub(crate) fn episode_ended(state: &EpisodeState) {
    let answered = state
        .history
        .last()
        .is_some_and(|action| action.starts_with("ANSWER"));
    let outcome = match (state.correct, answered) {
        (true, _) => "correct",
        (false, true) => "incorrect",
        (false, false) => "exhausted",
    };
    counter!(EPISODES_ENDED, "outcome" => outcome).increment(1);
}

pub(crate) fn query_run(run: &QueryRun) {
    let outcome = match run.rows.as_ref().map_err(|error| error.failure) {
        Ok(_) => "ok",
        Err(Failure::Denied) => "denied",
        // It runs again.
        Err(Failure::CutShort) => return,
        Err(Failure::WorkUnits) => "work_units",
        Err(Failure::Memory) => "memory",
        Err(Failure::WallClock) => "wall_clock",
        Err(Failure::Sqlite) => "error",
    };
    counter!(QUERIES, "outcome" => outcome).increment(1);
    histogram!(QUERY_WORK_UNITS).record(run.work_units as f64);
    histogram!(QUERY_MEMORY_BYTES).record(run.peak_bytes as f64);
}

pub(crate) fn queue_depth(waiting: usize) {
    gauge!(QUEUE_DEPTH).set(waiting as f64);
}

pub(crate) fn sessions(open: usize) {
    gauge!(SESSIONS).set(open as f64);
}

pub(crate) fn call_refused(protocol: &'static str, code: String) {
    counter!(REFUSED, "protocol" => protocol, "code" => code).increment(1);
}

pub(crate) fn connection_refused(reason: &'static str) {
    counter!(CONNECTIONS_REFUSED, "reason" => reason).increment(1);
}
