//! Means over the newest steps of a run.

use crate::{live::status::LiveStatus, number};

/// Rates and means are over this number of the newest steps.
const RECENT_STEPS: usize = 10;
/// With fewer steps a mean says little.
pub(super) const MIN_STEPS: usize = 3;

/// Returns the values of a metric in the newest steps, however few there are.
pub(super) fn newest(status: &LiveStatus, metric: &str) -> Vec<f64> {
    let mut values: Vec<f64> = status
        .series(metric)
        .into_iter()
        .map(|(_, value)| value)
        .collect();
    values.split_off(values.len().saturating_sub(RECENT_STEPS))
}

/// Returns the values of a metric in the newest steps; none if there are too few.
pub(super) fn recent(status: &LiveStatus, metric: &str) -> Option<Vec<f64>> {
    let newest = newest(status, metric);
    (newest.len() >= MIN_STEPS).then_some(newest)
}

/// Returns the mean of a metric in the newest steps.
pub(super) fn recent_mean(status: &LiveStatus, metric: &str) -> Option<f64> {
    recent(status, metric).map(|values| mean(&values))
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub(super) fn percent(share: f64) -> String {
    format!("{} %", number::percent(share))
}
