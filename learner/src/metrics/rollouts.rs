//! The metrics of a step's rollouts.
//!
//! They cover all groups that the step looked at, zero-variance groups included, so that `reward`
//! measures the policy and not the choice of groups. With dynamic sampling a small bias is left: a
//! step looks at groups until enough have reward variance, so the last one always has some, unless
//! the step ended at `max_groups_per_step`. If z of n groups have none, `frac_reward_zero_std` is
//! z / n, and z / (n - 1) would have no bias.

use std::sync::Arc;

use proto::v1::{Trajectory, Turn};

use super::Metrics;
use crate::{
    advantage::{MeanStd, has_reward_variance, weighted_sum},
    config::{LearnerConfig, RewardWeights},
    group::{Group, StepGroups},
};

/// The type of the action that ends an episode.
const ANSWER: &str = "ANSWER";

/// Returns the metrics of a step's rollouts: rewards, lengths, ends, tool calls, staleness at
/// `version`, groups.
pub fn of_rollouts(groups: &StepGroups, config: &LearnerConfig, version: u64) -> Metrics {
    let all = groups.kept.iter().chain(&groups.left_out);
    let all: Vec<&Group> = all.map(Arc::as_ref).collect();
    let trajectories: Vec<&Trajectory> = all.iter().flat_map(|group| &group.trajectories).collect();
    let mut out = Metrics::new();
    rewards(&all, &config.rewards.weights(), &mut out);
    zero_variance(&all, config, &mut out);
    lengths(&trajectories, &mut out);
    episodes(&trajectories, &mut out);
    tools(&trajectories, &mut out);
    staleness(&trajectories, version, &mut out);
    // A group without a score has no gradient, and none of its tokens is trained on.
    let has_score = |group: &&Arc<Group>| group.trajectories.iter().any(|it| it.scored);
    let trained: Vec<&Arc<Group>> = groups.kept.iter().filter(has_score).collect();
    put(&mut out, "groups/kept", trained.len() as f64);
    put(&mut out, "groups/kept_tokens", tokens_of(&trained) as f64);
    let left_out = all.len() - trained.len();
    put(&mut out, "groups/left_out", left_out as f64);
    let unsolved = all.iter().filter(|group| group.is_unsolved());
    put(&mut out, "groups/unsolved", unsolved.count() as f64);
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
fn tokens_of(groups: &[&Arc<Group>]) -> u64 {
    let segments = groups
        .iter()
        .flat_map(|group| &group.trajectories)
        .flat_map(|trajectory| &trajectory.segments);
    segments.map(|segment| segment.tokens.len() as u64).sum()
}

/// Returns whether an episode was cut, as a completion is in TRL: the token limit cut its last
/// turn, or it ended without an answer.
pub(crate) fn is_truncated(trajectory: &Trajectory) -> bool {
    let last = trajectory.turns.last();
    last.is_some_and(|last| last.truncated) || is_unanswered(trajectory)
}

/// Returns whether the token limit cut a turn of the trajectory. Its episode may go on after that.
fn has_cut_turn(trajectory: &Trajectory) -> bool {
    trajectory.turns.iter().any(|turn| turn.truncated)
}

/// Returns whether an episode was played to its end, but without an answer: its step budget ran
/// out.
fn is_unanswered(trajectory: &Trajectory) -> bool {
    let last = trajectory.turns.last();
    let last = last.and_then(|turn| turn.action.as_ref());
    let is_answer = |kind: &str| kind.trim().eq_ignore_ascii_case(ANSWER);
    trajectory.scored && last.is_some_and(|action| !is_answer(&action.action_type))
}

/// Inserts a metric unless it is undefined, as the mean of no values is.
fn put(out: &mut Metrics, name: &str, value: f64) {
    if !value.is_nan() {
        out.insert(name.to_owned(), value);
    }
}

fn rewards(groups: &[&Group], weights: &[f64], out: &mut Metrics) {
    let rows = groups.iter().flat_map(|group| &group.rewards);
    let totals: Vec<f64> = rows.map(|row| weighted_sum(row, weights)).collect();
    let statistics = MeanStd::of(&totals);
    put(out, "reward", statistics.mean);
    put(out, "reward_std", statistics.std);
    for (column, name) in RewardWeights::COLUMNS.into_iter().enumerate() {
        let rows = groups.iter().flat_map(|group| &group.rewards);
        let values: Vec<f64> = rows.map(|row| row[column].unwrap_or(f64::NAN)).collect();
        let statistics = MeanStd::of(&values);
        put(out, &format!("rewards/{name}/mean"), statistics.mean);
        put(out, &format!("rewards/{name}/std"), statistics.std);
    }
}

/// Inserts how many groups have no reward variance, by the rule that keeps groups. A group without
/// two scored members does not count, since it says nothing about the variance.
fn zero_variance(groups: &[&Group], config: &LearnerConfig, out: &mut Metrics) {
    let (weights, aggregation) = (config.rewards.weights(), config.advantage.aggregation);
    let is_scored = |row: &&Vec<Option<f64>>| !weighted_sum(row, &weights).is_nan();
    let mut compared: Vec<&Group> = groups.to_vec();
    compared.retain(|group| group.rewards.iter().filter(is_scored).count() >= 2);
    let count = compared.len() as f64;
    compared.retain(|group| !has_reward_variance(&group.rewards, &weights, aggregation));
    let zero = compared.len() as f64;
    put(out, "frac_reward_zero_std", zero / count);
    put(out, "groups/zero_variance", zero);
}

/// Inserts the sampled tokens per trajectory; `terminated` are the trajectories that no token limit
/// cut. Inserts nothing if nothing was sampled, because all prompts are too long.
fn lengths(trajectories: &[&Trajectory], out: &mut Metrics) {
    if trajectories.iter().all(|it| it.turns.is_empty()) {
        return;
    }
    let length = |trajectory: &Trajectory| sampled_tokens(trajectory) as f64;
    let (mut all, mut terminated) = (Vec::new(), Vec::new());
    for trajectory in trajectories {
        all.push(length(trajectory));
        if !has_cut_turn(trajectory) {
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

/// Inserts how episodes ended, and their segments.
fn episodes(trajectories: &[&Trajectory], out: &mut Metrics) {
    let count = |hit: fn(&Trajectory) -> bool| {
        let hits = trajectories.iter().filter(|trajectory| hit(trajectory));
        hits.count() as f64
    };
    put(out, "episodes/failed", count(|it| !it.scored));
    let unanswered = count(is_unanswered) / count(|it| it.scored);
    put(out, "episodes/unanswered", unanswered);
    let segments = trajectories.iter().map(|it| it.segments.len() as f64);
    let segments: Vec<f64> = segments.filter(|&segments| segments > 0.0).collect();
    put(out, "episodes/segments", MeanStd::of(&segments).mean);
}

/// Inserts the tool calls per trajectory, the share of them that got an error, and the share of
/// turns that were no call.
fn tools(trajectories: &[&Trajectory], out: &mut Metrics) {
    let turns: Vec<_> = trajectories
        .iter()
        .flat_map(|trajectory| &trajectory.turns)
        .collect();
    if turns.is_empty() {
        return;
    }
    let count = |hit: fn(&Turn) -> bool| turns.iter().filter(|turn| hit(turn)).count() as f64;
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

#[cfg(test)]
mod tests {
    use proto::{
        EncodedGroup,
        v1::{Action, Segment, SubmitRequest},
    };

    use super::*;
    use crate::{advantage::RewardAggregation, group::SubmissionHead, scheduler::GroupSummary};

    /// Returns a group. A member without rewards is not scored.
    fn group(trajectories: Vec<Trajectory>, rewards: &[Option<[f64; 5]>]) -> Arc<Group> {
        let row = |row: &Option<[f64; 5]>| row.map_or(vec![None; 5], |row| row.map(Some).to_vec());
        Arc::new(Group {
            head: SubmissionHead::default(),
            encoded: EncodedGroup::from(&SubmitRequest::default()),
            trajectories,
            rewards: rewards.iter().map(row).collect(),
            summary: GroupSummary {
                kept: true,
                oldest_version: 0,
            },
        })
    }

    fn step(kept: Vec<Arc<Group>>) -> StepGroups {
        StepGroups {
            kept,
            ..StepGroups::default()
        }
    }

    /// A group with one scored member says nothing about the variance. In the last group the sums
    /// are equal and the columns differ.
    #[test]
    fn groups_without_variance_are_those_that_the_run_would_leave_out() {
        let [right, wrong] = [[1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0, 0.0]].map(Some);
        let rewards = [[right, None], [right, right], [right, wrong]];
        let groups = rewards.map(|rewards| group(Vec::new(), &rewards));
        let groups = step(groups.to_vec());
        for (aggregation, zero) in [
            (RewardAggregation::SumThenNormalize, 2.0),
            (RewardAggregation::NormalizeThenSum, 1.0),
        ] {
            let mut config = LearnerConfig::default();
            config.advantage.aggregation = aggregation;
            let metrics = of_rollouts(&groups, &config, 0);
            assert_eq!(metrics["groups/zero_variance"], zero);
            assert_eq!(metrics["frac_reward_zero_std"], zero / 2.0);
        }
    }

    /// Without dynamic sampling a run keeps groups without a score.
    #[test]
    fn a_group_without_a_score_counts_as_left_out() {
        let groups = [true, false].map(|scored| {
            let segment = Segment {
                tokens: vec![1; 3],
                ..Segment::default()
            };
            let member = Trajectory {
                segments: vec![segment],
                scored,
                ..Trajectory::default()
            };
            group(vec![member], &[])
        });
        let metrics = of_rollouts(&step(groups.to_vec()), &LearnerConfig::default(), 0);
        let names = ["groups/kept", "groups/left_out", "groups/kept_tokens"];
        assert_eq!(names.map(|name| metrics[name]), [1.0, 1.0, 3.0]);
    }

    #[test]
    fn ends_and_contexts_of_episodes_are_counted() {
        let turn = |kind: &&str| Turn {
            action: Some(Action {
                action_type: (*kind).to_owned(),
                ..Action::default()
            }),
            ..Turn::default()
        };
        let episode = |kinds: &[&str], contexts, scored| Trajectory {
            segments: vec![Segment::default(); contexts],
            turns: kinds.iter().map(turn).collect(),
            scored,
            ..Trajectory::default()
        };
        let members = vec![
            episode(&["QUERY", "ANSWER"], 1, true),
            episode(&["QUERY", "QUERY"], 2, true),
            // Failed at a Step, and at Reset.
            episode(&["QUERY"], 3, false),
            episode(&[], 0, false),
        ];
        let groups = step(vec![group(members, &[])]);
        let metrics = of_rollouts(&groups, &LearnerConfig::default(), 0);
        assert_eq!(metrics["episodes/failed"], 2.0);
        assert_eq!(metrics["episodes/unanswered"], 0.5);
        assert_eq!(metrics["episodes/segments"], 2.0);
    }
}
