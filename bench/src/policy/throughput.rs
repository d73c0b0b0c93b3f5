//! The result of a benchmark, and how it is measured.

use std::{fmt, time::Instant};

/// Members of a group.
pub(super) const GROUP_SIZE: usize = 8;

/// The result of one benchmark: a row of the table.
pub(crate) struct Throughput {
    pub(crate) what: String,
    pub(crate) rows: usize,
    pub(crate) row_tokens: usize,
    pub(crate) tokens_per_second: f64,
    /// Peak of the main memory, or of the device's memory.
    pub(crate) peak_mib: Option<f64>,
    /// How the time divides into parts; empty if it was not measured.
    pub(crate) time_shares: String,
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peak = self
            .peak_mib
            .map_or_else(|| "n/a".to_owned(), |mib| format!("{mib:.0}"));
        write!(
            f,
            "{} | {} | {} | {:.0} | {peak} | {}",
            self.what, self.rows, self.row_tokens, self.tokens_per_second, self.time_shares
        )
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the median; of an even number of values the upper one of the two in the middle.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
