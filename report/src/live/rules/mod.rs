//! The rules of the diagnosis. Each looks at one thing.
//!
//! Pure. Invariant: a rule is silent about what it does not know, so a short run or one that was
//! read from a folder has fewer findings, never wrong ones.

mod learning;
mod processes;

use super::{findings::Diagnosed, status::LiveStatus};
use crate::number;

/// Rates and means are over this number of the newest steps.
const RECENT_STEPS: usize = 10;
/// With fewer steps a mean says little.
const MIN_STEPS: usize = 3;

type Rule = fn(&LiveStatus) -> Option<Diagnosed>;

/// All rules, with their names.
pub(super) const RULES: [(&str, Rule); 17] = [
    ("stalled", processes::stalled),
    ("no-actor", processes::no_actor),
    ("actor-silent", processes::actor_silent),
    ("actor-old-weights", processes::actor_old_weights),
    ("env-node-errors", processes::env_node_errors),
    ("env-node-slow", processes::env_node_slow),
    ("learner-waits", processes::learner_waits),
    ("actors-wait", processes::actors_wait),
    ("episodes-failed", learning::episodes_failed),
    ("zero-variance", learning::zero_variance),
    ("malformed-calls", learning::malformed_calls),
    ("completions-cut", learning::completions_cut),
    ("entropy-collapse", learning::entropy_collapse),
    ("policy-far", learning::policy_far),
    ("sampler-mismatch", learning::sampler_mismatch),
    ("accuracy", learning::accuracy),
    ("reward-flat", learning::reward_flat),
];

/// Returns the values of a metric in the newest steps; none if there are too few.
fn recent(status: &LiveStatus, metric: &str) -> Option<Vec<f64>> {
    let mut values: Vec<f64> = status
        .series(metric)
        .into_iter()
        .map(|(_, value)| value)
        .collect();
    let newest = values.split_off(values.len().saturating_sub(RECENT_STEPS));
    (newest.len() >= MIN_STEPS).then_some(newest)
}

/// Returns the mean of a metric in the newest steps.
fn recent_mean(status: &LiveStatus, metric: &str) -> Option<f64> {
    recent(status, metric).map(|values| mean(&values))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn percent(share: f64) -> String {
    format!("{} %", number::percent(share))
}
