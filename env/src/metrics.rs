//! Names of the environment's metrics, each defined once. They go to the recorder that the process
//! installs.
//!
//! Invariant: every metric exists from [`describe`] on, with all its labels, so that an alert never
//! waits for a first event.

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::{
    episode::EpisodeState,
    reward::RewardProfile,
    sandbox::{Failure, QueryRun, WorkBudget},
};

const EPISODES: &str = "env_episodes_total";
const EPISODES_ENDED: &str = "env_episodes_ended_total";
const QUERIES: &str = "env_queries_total";
const QUERY_WORK_UNITS: &str = "env_query_work_units";
const QUERY_MEMORY_BYTES: &str = "env_query_memory_bytes";
const QUEUE_DEPTH: &str = "env_queue_depth";
const QUEUE_CAPACITY: &str = "env_queue_capacity";
const THREADS: &str = "env_threads";
const BUSY_THREADS: &str = "env_busy_threads";

const COUNTERS: [(&str, &str); 3] = [
    (EPISODES, "Episodes started, by reward profile."),
    (
        EPISODES_ENDED,
        "Episodes ended, by outcome: correct, incorrect, exhausted.",
    ),
    (
        QUERIES,
        "Queries run, by outcome: ok, denied, work_units, memory, wall_clock, damaged, \
         unreadable, error.",
    ),
];
const GAUGES: [(&str, &str); 4] = [
    (
        QUEUE_DEPTH,
        "Queries that wait for a thread, by lane: quick, full.",
    ),
    (
        QUEUE_CAPACITY,
        "Queries that may wait for a thread, by lane. Further ones are refused.",
    ),
    (THREADS, "Threads that run SQL, by lane."),
    (BUSY_THREADS, "Threads that run SQL at the moment, by lane."),
];

const OUTCOMES: [&str; 3] = ["correct", "incorrect", "exhausted"];
/// The outcome of a query that did not fail.
const OK: &str = "ok";

/// Describes every metric to the installed recorder, and makes all of them exist.
pub fn describe() {
    for (name, description) in COUNTERS {
        describe_counter!(name, description);
    }
    for (name, description) in GAUGES {
        describe_gauge!(name, description);
        for lane in [WorkBudget::Quick, WorkBudget::Full] {
            gauge!(name, "lane" => lane.name()).set(0.0);
        }
    }
    describe_histogram!(
        QUERY_WORK_UNITS,
        Unit::Count,
        "Work units of a query: SQLite virtual machine steps, metered bytes and pages."
    );
    describe_histogram!(
        QUERY_MEMORY_BYTES,
        Unit::Bytes,
        "Most memory that SQLite held for a query."
    );
    for name in [QUERY_WORK_UNITS, QUERY_MEMORY_BYTES] {
        let _registered = histogram!(name);
    }
    for profile in RewardProfile::ALL {
        counter!(EPISODES, "profile" => profile.to_string()).increment(0);
    }
    for outcome in OUTCOMES {
        counter!(EPISODES_ENDED, "outcome" => outcome).increment(0);
    }
    for outcome in [OK].into_iter().chain(Failure::ALL.map(Failure::name)) {
        counter!(QUERIES, "outcome" => outcome).increment(0);
    }
}

pub(crate) fn episode_started(profile: RewardProfile) {
    counter!(EPISODES, "profile" => profile.to_string()).increment(1);
}

/// Counts an episode that ended. `answered` says whether its last action was an answer.
pub(crate) fn episode_ended(state: &EpisodeState, answered: bool) {
    let outcome = match (state.correct, answered) {
        (true, _) => "correct",
        (false, true) => "incorrect",
        (false, false) => "exhausted",
    };
    counter!(EPISODES_ENDED, "outcome" => outcome).increment(1);
}

/// The cost of a query, and why it failed, if it did.
pub(crate) struct QueryCost {
    failure: Option<Failure>,
    work_units: u64,
    peak_bytes: u64,
}

impl From<&QueryRun> for QueryCost {
    fn from(run: &QueryRun) -> Self {
        Self {
            failure: run.rows.as_ref().err().map(|error| error.failure),
            work_units: run.work_units,
            peak_bytes: run.peak_bytes,
        }
    }
}

pub(crate) fn query_run(cost: &QueryCost) {
    let outcome = cost.failure.map_or(OK, Failure::name);
    counter!(QUERIES, "outcome" => outcome).increment(1);
    histogram!(QUERY_WORK_UNITS).record(cost.work_units as f64);
    histogram!(QUERY_MEMORY_BYTES).record(cost.peak_bytes as f64);
}

/// Sets the size of a lane, which has no work yet.
pub(crate) fn lane_opened(lane: WorkBudget, threads: usize, capacity: usize) {
    gauge!(THREADS, "lane" => lane.name()).set(threads as f64);
    gauge!(QUEUE_CAPACITY, "lane" => lane.name()).set(capacity as f64);
}

/// Adds to the queries that wait in a lane. Threads race here, so the gauge adds up changes.
pub(crate) fn queue_changed(lane: WorkBudget, change: f64) {
    gauge!(QUEUE_DEPTH, "lane" => lane.name()).increment(change);
}

/// A thread of a lane that runs SQL, until it is dropped.
pub(crate) struct BusyThread(WorkBudget);

impl BusyThread {
    pub(crate) fn begin(lane: WorkBudget) -> Self {
        gauge!(BUSY_THREADS, "lane" => lane.name()).increment(1.0);
        Self(lane)
    }
}

impl Drop for BusyThread {
    fn drop(&mut self) {
        gauge!(BUSY_THREADS, "lane" => self.0.name()).decrement(1.0);
    }
}
