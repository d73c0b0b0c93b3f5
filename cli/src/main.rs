//! The `sqlenv` program: parses the command line, sets logging up, runs one command, reports its error once.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted (the run can be resumed).

use std::process::ExitCode;

use clap::Parser as _;
use cli::{args::Args, commands, threads};

// Fresh tensors are megabytes; the system allocator gives such memory back to the kernel after every op.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    threads::keep_candle_on_its_caller();
    let args = Args::parse();
    match commands::run(args) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
