//! The metrics of a step's rollouts.
//!
//! They cover all groups that the step looked at, zero-variance groups included, so that `reward`
//! measures the policy and not the choice of groups.

use std::sync::Arc;

use proto::v1::Trajectory;

use super::Metrics;
use crate::{
    advantage::{MeanStd, has_variance, weighted_sum},
    config::RewardWeights,
    group::{Group, StepGroups},
};

/// Returns the metrics of a step's rollouts: rewards, lengths, tool calls, staleness at `version`,
/// groups.
pub fn of_rollouts(groups: &StepGroups, weights: &RewardWeights, version: u64) -> Metrics {
    let all = groups.kept.iter().chain(&groups.left_out);
    let all: Vec<&Group> = all.map(Arc::as_ref).collect();
    let trajectories: Vec<&Trajectory> = all.iter().flat_map(|group| &group.trajectories).collect();
    let mut out = Metrics::new();
    rewards(&all, weights, &mut out);
    lengths(&trajectories, &mut out);
    tools(&trajectories, &mut out);
    staleness(&trajectories, version, &mut out);
    put(&mut out, "groups/kept", groups.kept.len() as f64);
    put(
        &mut out,
        "groups/kept_tokens",
        tokens_of(&groups.kept) as f64,
    );
    put(&mut out, "groups/left_out", groups.left_out.len() as f64);
    let unscored = trajectories.iter().filter(|trajectory| !trajectory.scored);
    put(&mut out, "episodes/failed", unscored.count() as f64);
    out
}

/// Counts the tokens of all groups as TRL does: the prompt and the sampled tokens of each
/// trajectory. Tool results are not among them, nor what a later segment repeats.
pub(crate) fn tokens(groups: &StepGroups) -> u64 {
    let groups = groups.kept.iter().chain(&groups.left_out);
    let trajectories = groups.flat_map(|group| &group.trajectories);
    let counts = trajectories.map(|it| prompt_tokens(it) + sampled_tokens(it));
    counts.sum::<usize>() as u64
}

/// Counts the tokens before the first sampled one.
fn prompt_tokens(trajectory: &Trajectory) -> usize {
    trajectory.segments.first().map_or(0, |segment| {
        segment.mask.iter().take_while(|&&mask| mask == 0).count()
    })
}

fn sampled_tokens(trajectory: &Trajectory) -> usize {
    let masks = trajectory.segments.iter().flat_map(|segment| &segment.mask);
    masks.filter(|&&mask| mask == 1).count()
}

/// Counts the tokens of all segments of some groups.
fn tokens_of(groups: &[Arc<Group>]) -> u64 {
    let segments = groups
        .iter()
        .flat_map(|group| &group.trajectories)
        .flat_map(|trajectory| &trajectory.segments);
    segments.map(|segment| segment.tokens.len() as u64).sum()
}

/// Returns whether the token limit cut a turn of the trajectory. Its episode may go on after that,
/// whereas in TRL it would end.
pub(crate) fn is_truncated(trajectory: &Trajectory) -> bool {
    trajectory.turns.iter().any(|turn| turn.truncated)
}

/// Inserts a metric unless it is undefined, as the mean of no values is.
fn put(out: &mut Metrics, name: &str, value: f64) {
    if !value.is_nan() {
        out.insert(name.to_owned(), value);
    }
}

fn rewards(groups: &[&Group], weights: &RewardWeights, out: &mut Metrics) {
    let of_group = |group: &&Group| -> Vec<f64> {
        let rows = group.rewards.iter();
        rows.map(|row| weighted_sum(row, &weights.weights()))
            .collect()
    };
    let totals: Vec<Vec<f64>> = groups.iter().map(of_group).collect();
    let flat = totals.concat();
    let statistics = MeanStd::of(&flat);
    put(out, "reward", statistics.mean);
    put(out, "reward_std", statistics.std);
    let zero_variance = totals.iter().filter(|totals| !has_variance(totals)).count() as f64;
    put(
        out,
        "frac_reward_zero_std",
        zero_variance / totals.len() as f64,
    );
    put(out, "groups/zero_variance", zero_variance);
    for (column, name) in RewardWeights::COLUMNS.into_iter().enumerate() {
        let rows = groups.iter().flat_map(|group| &group.rewards);
        let values: Vec<f64> = rows.map(|row| row[column].unwrap_or(f64::NAN)).collect();
        let statistics = MeanStd::of(&values);
        put(out, &format!("rewards/{name}/mean"), statistics.mean);
        put(out, &format!("rewards/{name}/std"), statistics.std);
    }
}

/// Inserts the sampled tokens per trajectory; `terminated` are the trajectories that no token limit
/// cut.
fn lengths(trajectories: &[&Trajectory], out: &mut Metrics) {
    let length = |trajectory: &Trajectory| sampled_tokens(trajectory) as f64;
    let (mut all, mut terminated) = (Vec::new(), Vec::new());
    for trajectory in trajectories {
        all.push(length(trajectory));
        if !is_truncated(trajectory) {
            terminated.push(length(trajectory));
        }
    }
    let clipped = (all.len() - terminated.len()) as f64 / all.len() as f64;
    put(out, "completions/clipped_ratio", clipped);
    for (lengths, suffix) in [(all, "length"), (terminated, "terminated_length")] {
        let mut put_as = |statistic: &str, value| {
            put(out, &format!("completions/{statistic}_{suffix}"), value);
        };
        put_as("mean", MeanStd::of(&lengths).mean);
        put_as("min", extreme(&lengths, f64::min));
        put_as("max", extreme(&lengths, f64::max));
    }
}

/// Inserts the tool calls per trajectory, the share of them that got an error, and the share of
/// turns that were no call.
fn tools(trajectories: &[&Trajectory], out: &mut Metrics) {
    let turns: Vec<_> = trajectories
        .iter()
        .flat_map(|trajectory| &trajectory.turns)
        .collect();
    let count =
        |hit: fn(&proto::v1::Turn) -> bool| turns.iter().filter(|turn| hit(turn)).count() as f64;
    let failed = count(|turn| !turn.malformed && turn.observation_is_error);
    let malformed = count(|turn| turn.malformed);
    let calls = turns.len() as f64 - malformed;
    put(
        out,
        "tools/call_frequency",
        calls / trajectories.len() as f64,
    );
    put(out, "tools/failure_frequency", failed / calls);
    put(
        out,
        "tools/malformed_frequency",
        malformed / turns.len() as f64,
    );
}

/// Inserts the staleness of trajectories: `version` minus the oldest version that sampled in each.
fn staleness(trajectories: &[&Trajectory], version: u64, out: &mut Metrics) {
    let oldest = |t: &&Trajectory| t.turns.iter().map(|turn| turn.policy_version).min();
    let lags: Vec<f64> = trajectories
        .iter()
        .filter_map(oldest)
        .map(|v| version.saturating_sub(v) as f64)
        .collect();
    put(out, "staleness/mean", MeanStd::of(&lags).mean);
    put(out, "staleness/max", extreme(&lags, f64::max));
}

fn extreme(values: &[f64], pick: fn(f64, f64) -> f64) -> f64 {
    values.iter().copied().reduce(pick).unwrap_or(f64::NAN)
}
