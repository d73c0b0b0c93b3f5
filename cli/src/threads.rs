//! The threads of a process: how many compute, and for whom.
//!
//! Parallelism is over episodes and micro-batches, and no result depends on it. A local run has
//! `threads` actors, each with a thread for its engine, and a trainer with as many workers over
//! micro-batches; the default is one per core. At staleness 0 engines and workers do not run at the
//! same time: the learner waits for its groups, then the actors wait for its weights. At a higher
//! staleness, and during the evaluation of a checkpoint, more threads are runnable than there are
//! cores. None of them spins or holds a lock that another needs, so the operating system shares the
//! cores out. Evaluations of the table, of `eval`, `compare` and `pretrain` have as many engines as
//! a local run. A process of `sqlenv actor` has one engine, and so has a run on a GPU. SQL has a
//! pool of its own (`env.sql_threads`): one thread per core for short statements, and as many for
//! long ones, which mostly wait. Tokio's workers only pass messages.

use std::thread;

use anyhow::Result;

use crate::config::RunConfig;

/// Returns `count`, or the number of cores if it is 0.
pub(crate) fn or_cores(count: usize) -> usize {
    match count {
        0 => thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}

/// Returns the number of engines of a local run, or of an evaluation by itself: one per thread on
/// the CPU, one on another device, which a single engine keeps busy.
pub(crate) fn engines(config: &RunConfig) -> Result<usize> {
    let device = config.device.open()?;
    Ok(if device.is_cpu() {
        or_cores(config.threads)
    } else {
        1
    })
}

/// Keeps candle from its global thread pool. The pool's threads spin, and large elementwise
/// operations would make engines and trainer wait for each other. Must be called first in `main`.
#[expect(
    clippy::disallowed_methods,
    reason = "candle reads this setting from the environment alone"
)]
#[expect(
    unsafe_code,
    reason = "setting a variable is unsafe beside other threads"
)]
pub(crate) fn keep_candle_on_its_caller() {
    // SAFETY: called first in main, when this is the process's only thread.
    unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
}
