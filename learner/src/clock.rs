//! The clock of the learner. Pure files take the time as an argument instead.

use std::time::Instant;

#[expect(
    clippy::disallowed_methods,
    reason = "the edge: leases and step times are measured here"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
