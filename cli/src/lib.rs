//! What `sqlenv` does beyond the roles: settings, the stages of a run, its folder and report, and
//! what people type.
//!
//! Exit codes: 0 success, 1 failure or a problem that `doctor` found, 2 wrong flags or settings or
//! no device to check, 130 interrupted (a run can be resumed).

mod admin;
mod admin_client;
mod allocator;
mod args;
mod bench_command;
mod clock;
mod commands;
mod compare;
mod config;
mod data_command;
mod demonstrations;
mod doctor;
mod eval_command;
mod evaluation;
mod grpo_in_process;
mod health;
mod import_gguf;
mod learner_role;
mod live;
mod logging;
mod model_folder;
mod model_source;
mod openenv_variables;
mod out_file;
mod play;
mod played_evaluation;
mod pretrain;
mod progress;
mod roles;
mod run_info;
mod run_place;
mod setup;
mod sft_command;
mod shutdown;
mod status_source;
mod stdout;
mod supervised;
mod threads;
mod train;
mod trajectories;
mod warm_start;
mod watch;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use args::{Args, Command};

/// Parses the command line, runs one command, and reports its error once.
pub fn main() -> ExitCode {
    threads::keep_candle_on_its_caller();
    let args = Args::of_command_line();
    if !matches!(args.command, Some(Command::EnvNode(_))) {
        allocator::keep_freed_memory();
    }
    if matches!(
        args.command,
        Some(Command::EnvNode(_) | Command::Learner(_))
    ) {
        allocator::use_small_pages();
    }
    commands::run(args).unwrap_or_else(|error| {
        // Where stderr is closed, the exit code still tells the result.
        let text = with_causes(&error);
        let _ = writeln!(io::stderr(), "error: {}", report::safe_text(&text));
        exit_code(&error)
    })
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.is::<config::WrongSettings>() {
        true => ExitCode::from(2),
        false => ExitCode::FAILURE,
    }
}

/// Returns an error and its causes, and the remedy if a limit of the process is one. A cause that a
/// message names already is not repeated.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&format!(": {cause}")) {
            text = format!("{text}: {cause}");
        }
    }
    text + limit_remedy(error)
}

/// `EMFILE`, the same on Linux, macOS and the BSDs.
const NO_MORE_FILES: i32 = 24;

/// Returns what to do about an error whose cause is a limit of the process.
fn limit_remedy(error: &anyhow::Error) -> &'static str {
    let mut causes = error
        .chain()
        .filter_map(|it| it.downcast_ref::<io::Error>());
    let remedy = |cause: &io::Error| match (cause.raw_os_error(), cause.kind()) {
        (Some(NO_MORE_FILES), _) => Some("; raise the limit of open files (ulimit -n)"),
        (_, io::ErrorKind::FileTooLarge) => {
            Some("; raise the limit of a file's size (ulimit -f), or use another file system")
        }
        _ => None,
    };
    causes.find_map(remedy).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context as _;
    use learner::LearnerError;

    use super::*;

    #[test]
    fn each_cause_is_said_once() {
        let full = || io::Error::other("no space left");
        let error: anyhow::Result<()> = Err(LearnerError::File {
            action: "write",
            path: "a/b".into(),
            source: full(),
        })
        .context("in stage 1");
        let text = with_causes(&error.unwrap_err());
        assert_eq!(text, "in stage 1: cannot write a/b: no space left");
        let plain = anyhow::Error::new(full()).context("cannot write c");
        assert_eq!(with_causes(&plain), "cannot write c: no space left");
    }

    #[test]
    fn a_limit_of_the_process_has_a_remedy() {
        for (source, limit) in [
            (io::Error::from_raw_os_error(NO_MORE_FILES), "ulimit -n"),
            (io::ErrorKind::FileTooLarge.into(), "ulimit -f"),
        ] {
            let text = with_causes(&anyhow::Error::new(source).context("cannot write a"));
            assert!(text.contains(limit), "{text}");
        }
    }
}
