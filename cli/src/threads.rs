//! The threads of a process: the one place that says who computes on how many.
//!
//! Parallelism is over episodes and micro-batches, and no result depends on it. A local run has `threads` actors, each
//! with its engine's thread, and a trainer with as many workers over micro-batches; both default to one a core. They do
//! not add up at staleness 0: the learner waits for its groups, then the actors for its weights. At a higher staleness,
//! and beside the evaluation of a checkpoint, more of them are runnable than there are cores; none spins or holds a lock
//! that another needs, so the system divides the cores among them. A process of `sqlenv actor` has one engine, and so has
//! a run on a GPU. SQL has a pool with a lane of one thread a core for short statements, and as many that mostly sleep
//! for long ones (`env.sql_threads`); tokio's workers pass messages only.

use std::thread;

use anyhow::Result;

use crate::config::RunConfig;

/// `count`, or one a core where it is 0.
pub(crate) fn or_cores(count: usize) -> usize {
    match count {
        0 => thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}

/// Engines of a local run: one a thread, or one where a device other than the CPU computes, which is busy with one already.
pub(crate) fn engines(config: &RunConfig) -> Result<usize> {
    let device = config.device.open()?;
    Ok(if device.is_cpu() {
        or_cores(config.threads)
    } else {
        1
    })
}

/// candle gives large elementwise ops to one global pool of spinning threads, which would make engines and trainer wait for
/// each other. To be called first in `main`.
#[expect(
    clippy::disallowed_methods,
    reason = "candle reads this setting from the environment alone"
)]
#[expect(
    unsafe_code,
    reason = "setting a variable is unsafe beside other threads"
)]
pub fn keep_candle_on_its_caller() {
    // SAFETY: called first in main, when this is the process's only thread.
    unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
}
