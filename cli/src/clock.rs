//! The clock of the program. Nothing that it says changes weights or evaluations.

use std::time::Instant;

#[expect(
    clippy::disallowed_methods,
    reason = "the edge: durations are displayed, and decide when checkpoints are written"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
