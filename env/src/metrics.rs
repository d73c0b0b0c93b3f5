//! Names of the environment's metrics, each defined once. They go to the recorder that the process
//! installs.

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::{
    episode::EpisodeState,
    reward::RewardProfile,
    sandbox::{Failure, QueryRun},
};

/// Episodes started, by `profile`.
const EPISODES: &str = "env_episodes_total";
/// Episodes ended, by `outcome`: correct, incorrect, exhausted.
const EPISODES_ENDED: &str = "env_episodes_ended_total";
/// Queries, by `outcome`.
const QUERIES: &str = "env_queries_total";
/// Work units of a query.
const QUERY_WORK_UNITS: &str = "env_query_work_units";
/// Most memory that a query held.
const QUERY_MEMORY_BYTES: &str = "env_query_memory_bytes";
/// Queries that wait for a thread.
const QUEUE_DEPTH: &str = "env_queue_depth";

/// Describes every metric to the recorder, which the process installs before it opens an
/// environment.
pub(crate) fn describe() {
    describe_counter!(EPISODES, "Episodes started, by reward profile");
    describe_counter!(
        EPISODES_ENDED,
        "Episodes ended, by outcome: correct, incorrect, exhausted"
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
}

pub(crate) fn episode_started(profile: RewardProfile) {
    counter!(EPISODES, "profile" => profile.to_string()).increment(1);
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
        // The pool runs the query again; it counts then.
        Err(Failure::QuickBudgetSpent) => return,
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
