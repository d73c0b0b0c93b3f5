//! The `sqlenv` program: parses the command line, sets logging up, runs one command, reports its error once.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted (the run can be resumed).

use std::process::ExitCode;

use clap::Parser as _;
use cli::{args::Args, commands};

// Fresh tensors are megabytes; the system allocator gives such memory back to the kernel after every op.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    keep_candle_on_its_caller();
    let args = Args::parse();
    match commands::run(args) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// candle gives large elementwise ops to one global pool of spinning threads, which would make actors and trainer wait for
/// each other. Parallelism here is over episodes and micro-batches; no result depends on it.
#[expect(
    clippy::disallowed_methods,
    reason = "candle reads this setting from the environment alone"
)]
#[expect(
    unsafe_code,
    reason = "setting a variable is unsafe beside other threads"
)]
fn keep_candle_on_its_caller() {
    // SAFETY: called first in main, when this is the process's only thread.
    unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
}
