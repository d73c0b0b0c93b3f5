//! The learner's metrics: all names for Prometheus, and the record of a step for `metrics.jsonl`.
//!
//! Names of Prometheus have the prefix `learner_` and base units. Those of records are TRL's where
//! TRL has the metric, and `step_table` says how each is called in Prometheus.
//!
//! Invariant: every metric exists from [`describe`] on. What only a step or an evaluation can say
//! is NaN before the first one, so that no alert takes an unknown number for a low one.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use metrics::{counter, describe_counter, describe_gauge, gauge};
use proto::serve::ConnectionRefusal;

use crate::{
    clock::{now, unix_seconds},
    group::RefusalReason,
    server::call_limits::CallRefusal,
};

mod rollouts;
mod step_table;

pub use rollouts::of_rollouts;
pub(crate) use rollouts::{is_truncated, tokens};
pub use step_table::{STEP_METRICS, StepMetric};

/// The metrics of one step by name.
pub type Metrics = BTreeMap<String, f64>;

const STEP: &str = "learner_step";
const STEPS: &str = "learner_steps";
const LAST_STEP: &str = "learner_last_step_timestamp_seconds";
const POLICY_VERSION: &str = "learner_policy_version";
const SECONDS: &str = "learner_seconds_total";
const TRAINED_TOKENS: &str = "learner_trained_tokens_total";
const ACTORS: &str = "learner_connected_actors";
const LEASES: &str = "learner_leases";
const WAITING_GROUPS: &str = "learner_waiting_groups";
const GROUPS_CLAIMED: &str = "learner_groups_claimed_total";
const LEASES_EXPIRED: &str = "learner_leases_expired_total";
const GROUPS_SUBMITTED: &str = "learner_groups_submitted_total";
const SUBMISSION_SECONDS: &str = "learner_submission_seconds_total";
const GROUPS_REFUSED: &str = "learner_groups_refused_total";
const JOURNALED_BYTES: &str = "learner_journaled_bytes_total";
const LAST_GROUP: &str = "learner_last_group_timestamp_seconds";
const CHECKPOINTS: &str = "learner_checkpoints_total";
const LAST_CHECKPOINT: &str = "learner_last_checkpoint_timestamp_seconds";
const WEIGHTS_BYTES: &str = "learner_weights_sent_bytes_total";
const CONNECTIONS_REFUSED: &str = "learner_refused_connections_total";
const CALLS_REFUSED: &str = "learner_refused_calls_total";
const PARTS_REFUSED: &str = "learner_refused_evaluation_parts_total";
const IN_PROGRESS: &str = "learner_training";
const EVALUATING: &str = "learner_evaluating";
const EVALUATION_ACCURACY: &str = "learner_evaluation_accuracy_ratio";
const EVALUATION_VERSION: &str = "learner_evaluation_policy_version";
const RANK_JOINED: &str = "learner_rank_joined";
const RANK_STEP: &str = "learner_rank_step";
const RANK_LAST_STEP: &str = "learner_rank_last_step_timestamp_seconds";
const RANK_SECONDS: &str = "learner_rank_seconds_total";

/// Counters without labels.
const COUNTERS: [(&str, &str); 7] = [
    (
        TRAINED_TOKENS,
        "Tokens that steps trained on, of groups and demonstrations, prompts included.",
    ),
    (
        GROUPS_CLAIMED,
        "Groups handed out, including those of expired leases again.",
    ),
    (
        LEASES_EXPIRED,
        "Leases that expired before the result of their group arrived.",
    ),
    (JOURNALED_BYTES, "Bytes of groups written to the journal."),
    (CHECKPOINTS, "Checkpoints written."),
    (
        WEIGHTS_BYTES,
        "Bytes of weights sent to actors, without framing.",
    ),
    (
        PARTS_REFUSED,
        "Parts of evaluations refused because they break the contract or have another result \
         when they are played again.",
    ),
];
/// Counters with a label.
const LABELLED_COUNTERS: [(&str, &str); 6] = [
    (
        SECONDS,
        "Seconds of the trainer, by activity: waiting for groups and demonstrations, training, \
         evaluating, saving checkpoints. Its rate is the share of the activity.",
    ),
    (
        GROUPS_SUBMITTED,
        "Groups submitted, by verdict: accepted, duplicate, stale, unknown, refused.",
    ),
    (
        SUBMISSION_SECONDS,
        "Seconds of submitted groups, by activity: checking, replaying (their episodes, at the \
         learner's env-node), journaling. Several groups may be submitted at once.",
    ),
    (
        GROUPS_REFUSED,
        "Groups that are not trained on, by reason: invalid (breaks the contract), rewards (another \
         result when played again), logprobs (other log-probabilities than the learner's), \
         constraint (tokens that rollout.constraint excludes), not_finite (no finite gradient), \
         unscored (no completed episode).",
    ),
    (
        CONNECTIONS_REFUSED,
        "Connections not served, by reason: the server is full, or the system gave no descriptor.",
    ),
    (
        CALLS_REFUSED,
        "Calls refused at a limit, by reason: calls in flight, weights_streams, bytes of all \
         requests, length of the request, or late, if the request did not arrive in time.",
    ),
];
const GAUGES: [(&str, &str); 11] = [
    (STEP, "Learner steps made."),
    (STEPS, "Learner steps that the run makes in all."),
    (POLICY_VERSION, "Newest policy version published."),
    (
        ACTORS,
        "Actors that hold a stream of weights open at the moment.",
    ),
    (LEASES, "Groups that actors hold under leases."),
    (
        WAITING_GROUPS,
        "Groups in the journal whose step is not made yet.",
    ),
    (
        IN_PROGRESS,
        "1 during GRPO, once all ranks have joined, else 0. `sqlenv train` has other stages, too.",
    ),
    (
        EVALUATING,
        "1 while an evaluation is played, for which the training waits, else 0.",
    ),
    (
        LAST_STEP,
        "Unix time of the last step; before the first one, of the start of the process.",
    ),
    (
        LAST_GROUP,
        "Unix time of the last journaled group; before the first one, of the start of the process.",
    ),
    (
        LAST_CHECKPOINT,
        "Unix time of the last checkpoint; before the first one, of the start of the process.",
    ),
];
const EVALUATION_GAUGES: [(&str, &str); 2] = [
    (
        EVALUATION_ACCURACY,
        "Share of correct answers in the latest evaluation, by set.",
    ),
    (
        EVALUATION_VERSION,
        "Policy version of the latest evaluation, by set.",
    ),
];
const RANK_GAUGES: [(&str, &str); 3] = [
    (RANK_JOINED, "1 while the rank takes part in a run, else 0."),
    (RANK_STEP, "Learner steps that the rank has made."),
    (
        RANK_LAST_STEP,
        "Unix time of the rank's last step; before the first one, of the start of the process.",
    ),
];

/// What a trainer's thread, or a submission, spends its time on. Counters of the metrics library
/// are whole numbers, so the fraction of a second is kept here.
pub(crate) struct Activity {
    counter: &'static str,
    name: &'static str,
    nanoseconds: AtomicU64,
}

pub(crate) static WAITING: Activity = Activity::new(SECONDS, "waiting");
pub(crate) static TRAINING: Activity = Activity::new(SECONDS, "training");
pub(crate) static EVALUATION: Activity = Activity::new(SECONDS, "evaluating");
pub(crate) static SAVING: Activity = Activity::new(SECONDS, "saving");
pub(crate) static CHECKING: Activity = Activity::new(SUBMISSION_SECONDS, "checking");
pub(crate) static REPLAYING: Activity = Activity::new(SUBMISSION_SECONDS, "replaying");
pub(crate) static JOURNALING: Activity = Activity::new(SUBMISSION_SECONDS, "journaling");
pub(crate) static RANK_WAITING: Activity = Activity::new(RANK_SECONDS, "waiting");
pub(crate) static RANK_TRAINING: Activity = Activity::new(RANK_SECONDS, "training");

impl Activity {
    const fn new(counter: &'static str, name: &'static str) -> Self {
        Self {
            counter,
            name,
            nanoseconds: AtomicU64::new(0),
        }
    }

    fn add(&self, time: Duration) {
        let more = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let all = self.nanoseconds.fetch_add(more, Ordering::Relaxed) + more;
        counter!(self.counter, "activity" => self.name).absolute(all / 1_000_000_000);
    }
}

/// Adds the time since its start, or since the last lap, to an activity.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(now())
    }

    pub(crate) fn lap(&mut self, activity: &Activity) {
        let lap = now();
        activity.add(lap - self.0);
        self.0 = lap;
    }
}

/// Describes the learner's metrics to the installed recorder, and makes all of them exist.
pub fn describe() {
    for (name, description) in COUNTERS {
        describe_counter!(name, description);
        counter!(name).increment(0);
    }
    for (name, description) in LABELLED_COUNTERS {
        describe_counter!(name, description);
    }
    for (name, description) in GAUGES {
        describe_gauge!(name, description);
        let is_time = [LAST_STEP, LAST_GROUP, LAST_CHECKPOINT].contains(&name);
        gauge!(name).set(if is_time { unix_seconds() } else { 0.0 });
    }
    for (name, description) in EVALUATION_GAUGES {
        describe_gauge!(name, description);
    }
    for metric in STEP_METRICS {
        describe_gauge!(metric.name, metric.description);
        gauge!(metric.name).set(f64::NAN);
    }
    for reason in RefusalReason::ALL {
        groups_refused(reason, 0);
    }
    for verdict in ["accepted", "duplicate", "stale", "unknown", "refused"] {
        counter!(GROUPS_SUBMITTED, "verdict" => verdict).increment(0);
    }
    for refusal in ConnectionRefusal::ALL {
        counter!(CONNECTIONS_REFUSED, "reason" => refusal.name()).increment(0);
    }
    for refusal in CallRefusal::ALL {
        counter!(CALLS_REFUSED, "reason" => refusal.name()).increment(0);
    }
    for activity in [&WAITING, &TRAINING, &EVALUATION, &SAVING] {
        activity.add(Duration::ZERO);
    }
    for activity in [&CHECKING, &REPLAYING, &JOURNALING] {
        activity.add(Duration::ZERO);
    }
}

/// Describes the metrics of a rank to the installed recorder, and makes all of them exist.
pub fn describe_rank() {
    describe_counter!(
        RANK_SECONDS,
        "Seconds of the rank, by activity: waiting for rank 0, training."
    );
    for (name, description) in RANK_GAUGES {
        describe_gauge!(name, description);
        let is_time = name == RANK_LAST_STEP;
        gauge!(name).set(if is_time { unix_seconds() } else { 0.0 });
    }
    for activity in [&RANK_WAITING, &RANK_TRAINING] {
        activity.add(Duration::ZERO);
    }
}

/// Sets what a run that was opened has done, and what it will do.
pub(crate) fn run_opened(version: u64, steps: u64) {
    gauge!(STEP).set(version as f64);
    gauge!(POLICY_VERSION).set(version as f64);
    gauge!(STEPS).set(steps as f64);
}

/// Sets how many groups actors hold, and how many wait for their step.
pub(crate) fn set_groups(leased: usize, waiting: usize) {
    gauge!(LEASES).set(leased as f64);
    gauge!(WAITING_GROUPS).set(waiting as f64);
}

/// Sets how many leases have expired since the run was opened.
pub(crate) fn set_expired_leases(count: u64) {
    counter!(LEASES_EXPIRED).absolute(count);
}

/// Sets how many actors have a weights stream open.
pub(crate) fn set_connected_actors(count: usize) {
    gauge!(ACTORS).set(count as f64);
}

pub(crate) fn group_claimed() {
    counter!(GROUPS_CLAIMED).increment(1);
}

pub(crate) fn group_submitted(verdict: &'static str) {
    counter!(GROUPS_SUBMITTED, "verdict" => verdict).increment(1);
}

pub(crate) fn groups_refused(reason: RefusalReason, groups: usize) {
    counter!(GROUPS_REFUSED, "reason" => reason.name()).increment(groups as u64);
}

pub(crate) fn group_journaled(bytes: usize) {
    counter!(JOURNALED_BYTES).increment(bytes as u64);
    gauge!(LAST_GROUP).set(unix_seconds());
}

pub(crate) fn weights_sent(bytes: usize) {
    counter!(WEIGHTS_BYTES).increment(bytes as u64);
}

pub(crate) fn connection_refused(refusal: ConnectionRefusal) {
    counter!(CONNECTIONS_REFUSED, "reason" => refusal.name()).increment(1);
}

pub(crate) fn call_refused(refusal: CallRefusal) {
    counter!(CALLS_REFUSED, "reason" => refusal.name()).increment(1);
}

pub(crate) fn evaluation_part_refused() {
    counter!(PARTS_REFUSED).increment(1);
}

pub(crate) fn checkpoint_written() {
    counter!(CHECKPOINTS).increment(1);
    gauge!(LAST_CHECKPOINT).set(unix_seconds());
}

/// Sets the metrics of a step. What the step did not measure is NaN.
pub(crate) fn step_made(version: u64, metrics: &Metrics) {
    let value = |record: &str| metrics.get(record).copied();
    for metric in &STEP_METRICS {
        gauge!(metric.name).set(value(metric.record).unwrap_or(f64::NAN));
    }
    let tokens = ["groups/kept_tokens", "demonstrations/tokens"].map(value);
    let trained: f64 = tokens.into_iter().flatten().sum();
    counter!(TRAINED_TOKENS).increment(trained as u64);
    gauge!(LAST_STEP).set(unix_seconds());
    gauge!(POLICY_VERSION).set(version as f64);
    gauge!(STEP).set(version as f64);
}

/// Makes the metrics of an evaluation exist before it is played.
pub(crate) fn evaluation_planned(set: &str) {
    for (name, _) in EVALUATION_GAUGES {
        gauge!(name, "set" => set.to_owned()).set(f64::NAN);
    }
}

/// Keeps `learner_training` at 1 until it is dropped.
pub(crate) struct RunInProgress;

impl RunInProgress {
    pub(crate) fn begin() -> Self {
        gauge!(IN_PROGRESS).set(1.0);
        Self
    }
}

impl Drop for RunInProgress {
    fn drop(&mut self) {
        gauge!(IN_PROGRESS).set(0.0);
    }
}

/// Sets whether an evaluation is played, for which the training waits.
pub fn set_evaluating(is_evaluating: bool) {
    gauge!(EVALUATING).set(f64::from(is_evaluating));
}

/// Sets the share of correct answers in an evaluation of the policy `version`.
pub fn evaluation_played(set: &str, version: u64, accuracy: f64) {
    gauge!(EVALUATION_ACCURACY, "set" => set.to_owned()).set(accuracy);
    gauge!(EVALUATION_VERSION, "set" => set.to_owned()).set(version as f64);
}

pub(crate) fn rank_joined(has_joined: bool) {
    gauge!(RANK_JOINED).set(f64::from(has_joined));
}

pub(crate) fn rank_step_made(step: u64) {
    gauge!(RANK_STEP).set(step as f64);
    gauge!(RANK_LAST_STEP).set(unix_seconds());
}
