//! The clock of the learner. Pure files take the time as an argument instead.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[expect(
    clippy::disallowed_methods,
    reason = "the edge: leases and step times are measured here"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the Unix time, for metrics that other machines compare with theirs.
#[expect(
    clippy::disallowed_methods,
    reason = "the edge: metrics say when something happened"
)]
pub(crate) fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
