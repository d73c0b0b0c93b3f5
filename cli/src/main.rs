//! The `sqlenv` program: parses the command line, runs one command, and reports its error once.
//!
//! Exit codes: 0 success, 1 failure, 2 wrong usage or no device to check, 130 interrupted (a run
//! can be resumed).

mod allocator;

use std::process::ExitCode;

use clap::Parser as _;
use cli::{
    args::{Args, Command},
    commands, threads,
};

fn main() -> ExitCode {
    threads::keep_candle_on_its_caller();
    let args = Args::parse();
    if !matches!(args.command, Some(Command::EnvNode(_))) {
        allocator::keep_freed_memory();
    }
    match commands::run(args) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
