//! Group-relative advantages (GRPO, arXiv:2402.03300), as TRL 1.16.0 computes them (golden cases in
//! `tests/golden/grpo_cases.json`).
//!
//! Pure. Rows are trajectories in group order: rows `g * group_size ..` form group g. A reward that
//! is `None` or NaN is missing. A row without any reward is unscorable: mean and standard deviation
//! leave it out, and its advantage is 0.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Added to a standard deviation before dividing by it.
const STD_EPSILON: f64 = 1e-4;
/// A standard deviation up to this counts as 0 (`torch.isclose` to zero).
const ZERO_STD: f64 = 1e-8;

/// Divisor of centred rewards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// The standard deviation of the group.
    #[default]
    Group,
    /// The standard deviation of the whole batch.
    Batch,
    /// Nothing: the deviation weights easy and hard questions more than others (Dr. GRPO,
    /// arXiv:2503.20783).
    None,
}

/// How several reward columns become one advantage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardAggregation {
    /// Weighted sum, then centred and scaled.
    #[default]
    SumThenNormalize,
    /// Each column normalised in its group, weighted sum, normalised over the batch; ignores
    /// [`ScaleRewards`] (GDPO, arXiv:2601.05242).
    NormalizeThenSum,
}

/// Settings of the advantages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdvantageSettings {
    /// What centred rewards are divided by: the standard deviation of the `group` or of the
    /// `batch`, or nothing (Dr. GRPO).
    pub scale_rewards: ScaleRewards,
    /// How several reward columns become one advantage. `sum_then_normalize`: their weighted sum is
    /// centred and divided. `normalize_then_sum`: each column is normalized in its group, and then
    /// their weighted sum over the batch (GDPO). TRL: `multi_objective_aggregation`.
    pub aggregation: RewardAggregation,
}

/// Computes advantages, one per row, from `rewards[rows][columns]` and `weights[columns]`.
pub fn advantages(
    rewards: &[Vec<Option<f64>>],
    weights: &[f64],
    group_size: usize,
    settings: AdvantageSettings,
) -> Vec<f64> {
    let raw = match settings.aggregation {
        RewardAggregation::SumThenNormalize => {
            sum_then_normalize(rewards, weights, group_size, settings.scale_rewards)
        }
        RewardAggregation::NormalizeThenSum => normalize_then_sum(rewards, weights, group_size),
    };
    let zero_unless_finite = |value: f64| if value.is_finite() { value } else { 0.0 };
    raw.into_iter().map(zero_unless_finite).collect()
}

/// Returns the weighted sum of the rewards that are present; NaN if none is.
pub(crate) fn weighted_sum(row: &[Option<f64>], weights: &[f64]) -> f64 {
    let mut present = row
        .iter()
        .zip(weights)
        .filter_map(|(reward, weight)| Some(reward.filter(|r| !r.is_nan())? * weight))
        .peekable();
    if present.peek().is_none() {
        return f64::NAN;
    }
    present.sum()
}

/// Returns whether a group's total rewards differ. Unscorable members (NaN) are left out.
fn has_variance(totals: &[f64]) -> bool {
    MeanStd::of(totals).std > ZERO_STD
}

/// Returns whether a group has reward variance, and so a gradient: its total rewards differ or,
/// where columns are normalised before they are summed, those of some column do. Dynamic sampling
/// draws another group in place of a zero-variance group (DAPO, arXiv:2503.14476).
pub(crate) fn has_reward_variance(
    rewards: &[Vec<Option<f64>>],
    weights: &[f64],
    aggregation: RewardAggregation,
) -> bool {
    let differ = |columns: Range<usize>| {
        let weights = &weights[columns.clone()];
        let total = |row: &Vec<Option<f64>>| weighted_sum(&row[columns.clone()], weights);
        has_variance(&rewards.iter().map(total).collect::<Vec<_>>())
    };
    match aggregation {
        RewardAggregation::SumThenNormalize => differ(0..weights.len()),
        RewardAggregation::NormalizeThenSum => {
            (0..weights.len()).any(|column| differ(column..column + 1))
        }
    }
}

fn weighted_sums(rewards: &[Vec<Option<f64>>], weights: &[f64]) -> Vec<f64> {
    let sum = |row: &Vec<Option<f64>>| weighted_sum(row, weights);
    rewards.iter().map(sum).collect()
}

fn sum_then_normalize(
    rewards: &[Vec<Option<f64>>],
    weights: &[f64],
    group_size: usize,
    scale: ScaleRewards,
) -> Vec<f64> {
    let totals = weighted_sums(rewards, weights);
    let batch_std = MeanStd::of(&totals).std_or_zero();
    let scaled = |group: &[f64]| {
        let stats = MeanStd::of(group);
        let centred = group.iter().map(|total| total - stats.mean);
        match scale {
            ScaleRewards::None => centred.collect(),
            ScaleRewards::Group => over(centred, stats.std_or_zero()),
            ScaleRewards::Batch => over(centred, batch_std),
        }
    };
    totals.chunks(group_size.max(1)).flat_map(scaled).collect()
}

fn over(centred: impl Iterator<Item = f64>, std: f64) -> Vec<f64> {
    centred.map(|value| value / (std + STD_EPSILON)).collect()
}

fn normalize_then_sum(
    rewards: &[Vec<Option<f64>>],
    weights: &[f64],
    group_size: usize,
) -> Vec<f64> {
    let mut normalised = vec![vec![None; weights.len()]; rewards.len()];
    for start in (0..rewards.len()).step_by(group_size.max(1)) {
        let rows = start..(start + group_size).min(rewards.len());
        for column in 0..weights.len() {
            let values: Vec<f64> = rewards[rows.clone()]
                .iter()
                .map(|row| row[column].unwrap_or(f64::NAN))
                .collect();
            let stats = MeanStd::of(&values);
            for (row, value) in rows.clone().zip(&values) {
                let scaled = (value - stats.mean) / (stats.std_or_zero() + STD_EPSILON);
                normalised[row][column] = Some(scaled);
            }
        }
    }
    let totals = weighted_sums(&normalised, weights);
    let batch = MeanStd::of(&totals);
    over(totals.iter().map(|total| total - batch.mean), batch.std)
}

/// Mean and sample standard deviation (n - 1) of the values that are not NaN.
pub(crate) struct MeanStd {
    pub(crate) mean: f64,
    /// NaN for fewer than two values.
    pub(crate) std: f64,
    len: usize,
}

impl MeanStd {
    pub(crate) fn of(values: &[f64]) -> Self {
        let present: Vec<f64> = values.iter().copied().filter(|v| !v.is_nan()).collect();
        let n = present.len() as f64;
        let mean = present.iter().sum::<f64>() / n;
        let squares: f64 = present.iter().map(|v| (v - mean) * (v - mean)).sum();
        let std = if present.len() < 2 {
            f64::NAN
        } else {
            (squares / (n - 1.0)).sqrt()
        };
        Self {
            mean,
            std,
            len: values.len(),
        }
    }

    /// Returns 0 in place of NaN for a single value, as TRL does.
    fn std_or_zero(&self) -> f64 {
        if self.len == 1 { 0.0 } else { self.std }
    }
}
