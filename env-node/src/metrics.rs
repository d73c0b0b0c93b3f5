//! Names of the env-node's metrics, each defined once. They go to the recorder that the process
//! installs. `env` defines those of episodes and queries.
//!
//! Invariant: every metric exists from [`describe`] on, so that an alert never waits for a first
//! event.

use std::time::Duration;

use env::Observation;
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use proto::{TOOLS, serve::ConnectionRefusal};

const STEPS: &str = "env_steps_total";
const STEP_SECONDS: &str = "env_step_seconds";
const CALLS_IN_FLIGHT: &str = "env_calls_in_flight";
const SESSIONS: &str = "env_sessions";
const REFUSED: &str = "env_refused_calls_total";
const CONNECTIONS_REFUSED: &str = "env_refused_connections_total";

const COUNTERS: [(&str, &str); 3] = [
    (
        STEPS,
        "Env steps served, by action and whether the action succeeded.",
    ),
    (
        REFUSED,
        "Calls refused, by protocol and code: grpc and http by their status, openenv by \
         CAPACITY_REACHED, OVERLOADED or DEADLINE_EXCEEDED.",
    ),
    (
        CONNECTIONS_REFUSED,
        "Connections not served, by reason: the server is full, or the system gave no descriptor.",
    ),
];
const GAUGES: [(&str, &str); 2] = [
    (
        CALLS_IN_FLIGHT,
        "Resets and steps that are being served, those that wait for a thread included.",
    ),
    (SESSIONS, "Open OpenEnv sessions."),
];

/// An action that is none of the environment's.
const UNKNOWN_ACTION: &str = "unknown";
const OPENENV: &str = "openenv";
/// All sessions are taken.
pub(crate) const CAPACITY_REACHED: &str = "CAPACITY_REACHED";
/// A frame found too many calls in flight, or a socket too many bytes.
pub(crate) const OVERLOADED: &str = "OVERLOADED";
/// A frame had no response in time.
pub(crate) const DEADLINE_EXCEEDED: &str = "DEADLINE_EXCEEDED";

/// The refusals that alerts look for; others appear with their first call.
const REFUSALS: [(&str, &str); 8] = [
    ("grpc", "ResourceExhausted"),
    ("grpc", "Unavailable"),
    ("grpc", "DeadlineExceeded"),
    ("grpc", "Internal"),
    ("grpc", "Unauthenticated"),
    (OPENENV, CAPACITY_REACHED),
    (OPENENV, OVERLOADED),
    (OPENENV, DEADLINE_EXCEEDED),
];

/// Describes every metric to the installed recorder, and makes all of them exist.
pub fn describe() {
    for (name, description) in COUNTERS {
        describe_counter!(name, description);
    }
    for (name, description) in GAUGES {
        describe_gauge!(name, description);
        gauge!(name).set(0.0);
    }
    describe_histogram!(
        STEP_SECONDS,
        Unit::Seconds,
        "Time to serve an env step, by action."
    );
    let actions = TOOLS.iter().map(|tool| tool.action_type);
    for action in actions.chain([UNKNOWN_ACTION]) {
        for ok in ["true", "false"] {
            counter!(STEPS, "action" => action, "ok" => ok).increment(0);
        }
        let _registered = histogram!(STEP_SECONDS, "action" => action);
    }
    for (protocol, code) in REFUSALS {
        counter!(REFUSED, "protocol" => protocol, "code" => code).increment(0);
    }
    for refusal in ConnectionRefusal::ALL {
        counter!(CONNECTIONS_REFUSED, "reason" => refusal.name()).increment(0);
    }
}

pub(crate) fn step_served(action_type: &str, observation: &Observation, took: Duration) {
    // A client's own words would make a metric for each.
    let action = TOOLS
        .iter()
        .map(|tool| tool.action_type)
        .find(|name| name.eq_ignore_ascii_case(action_type.trim()))
        .unwrap_or(UNKNOWN_ACTION);
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

/// Counts a refusal over a socket or MCP, which has no HTTP status.
pub(crate) fn openenv_refused(code: &'static str) {
    counter!(REFUSED, "protocol" => OPENENV, "code" => code).increment(1);
}

pub(crate) fn call_refused(protocol: &'static str, code: String) {
    counter!(REFUSED, "protocol" => protocol, "code" => code).increment(1);
}

pub(crate) fn connection_refused(reason: &'static str) {
    counter!(CONNECTIONS_REFUSED, "reason" => reason).increment(1);
}

/// A call that is being served, until it is dropped. Its client may be gone before its end.
pub(crate) struct CallInFlight;

impl CallInFlight {
    pub(crate) fn begin() -> Self {
        gauge!(CALLS_IN_FLIGHT).increment(1.0);
        Self
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        gauge!(CALLS_IN_FLIGHT).decrement(1.0);
    }
}
