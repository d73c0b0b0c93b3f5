//! The distribution of a call's latency.

use std::time::Duration;

/// Latencies of many calls, in microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Latencies(Vec<u32>);

impl Latencies {
    pub(super) fn record(&mut self, took: Duration) {
        self.0.push(took.as_micros().try_into().unwrap_or(u32::MAX));
    }

    pub(super) fn absorb(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The latency that `share` of the calls stay within, in milliseconds (nearest rank); 0 without calls.
    pub(super) fn quantile_milliseconds(&mut self, share: f64) -> f64 {
        if self.0.is_empty() {
            return 0.0;
        }
        let rank = (share * self.0.len() as f64).ceil() as usize;
        let index = rank.clamp(1, self.0.len()) - 1;
        let (_, microseconds, _) = self.0.select_nth_unstable(index);
        f64::from(*microseconds) / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_milliseconds(0.5), 0.0);
        for milliseconds in (1..=100).rev() {
            latencies.record(Duration::from_millis(milliseconds));
        }
        for (share, expected) in [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            assert_eq!(latencies.quantile_milliseconds(share), expected);
        }
    }
}
