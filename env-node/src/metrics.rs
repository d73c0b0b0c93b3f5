//! Names of the env-node's metrics, each defined once. They go to the recorder that the process
//! installs. `env` defines those of episodes and queries.

use std::time::Duration;

use env::Observation;
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use proto::TOOLS;

/// Steps, by `action` and `ok`.
const STEPS: &str = "env_steps_total";
/// Time to serve a step, by `action`.
const STEP_SECONDS: &str = "env_step_seconds";
/// Open OpenEnv sessions.
const SESSIONS: &str = "env_sessions";
/// Calls refused, by `protocol` and `code`.
const REFUSED: &str = "env_refused_calls_total";
/// Connections not served, by `reason`: full, system.
const CONNECTIONS_REFUSED: &str = "env_refused_connections_total";

/// Describes every metric to the recorder, which the process installs before it opens a node.
pub(crate) fn describe() {
    describe_counter!(
        STEPS,
        "Steps served, by action and whether the action succeeded"
    );
    describe_histogram!(
        STEP_SECONDS,
        Unit::Seconds,
        "Time to serve a step, by action"
    );
    describe_gauge!(SESSIONS, Unit::Count, "Open OpenEnv sessions");
    describe_counter!(
        REFUSED,
        "Calls refused, by protocol and code: grpc and http by their status, openenv by \
         CAPACITY_REACHED"
    );
    describe_counter!(
        CONNECTIONS_REFUSED,
        "Connections not served: the server is full, or the system gave no descriptor"
    );
}

pub(crate) fn step_served(action_type: &str, observation: &Observation, took: Duration) {
    // A client's own words would make a metric for each.
    let action = TOOLS
        .iter()
        .map(|tool| tool.action_type)
        .find(|name| name.eq_ignore_ascii_case(action_type.trim()))
        .unwrap_or("unknown");
    let ok = if observation.error.is_empty() {
        "true"
    } else {
        "false"
    };
    counter!(STEPS, "action" => action, "ok" => ok).increment(1);
    histogram!(STEP_SECONDS, "action" => action).record(took);
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
