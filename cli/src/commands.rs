//! Runs the command that the command line names.

use std::{mem::ManuallyDrop, process::ExitCode};

use anyhow::{Context as _, Result};
use report::RunFolder;
use tokio::runtime::Runtime;

use crate::{
    args::{Args, Command, TrainArgs},
    bench_command, compare, config, data_command, doctor, eval_command, health, import_gguf,
    learner_role, logging, play, pretrain,
    progress::Progress,
    roles, run_place, sft_command,
    shutdown::{self, Interrupted},
    stdout, train, trajectories, watch,
};

/// Runs the command and returns the exit code of the process.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let progress = Progress::stderr();
    let command = args.command;
    let command = command.unwrap_or_else(|| Command::Train(TrainArgs::newcomer()));
    let logged = async {
        // Dropped while the runtime is there, with which the last spans are sent.
        let _export = logging::init(&args.log, role(&command), &progress)?;
        dispatch(command, &progress).await
    };
    match run_to_end(logged)? {
        Err(error) if error.is::<Interrupted>() => Ok(ExitCode::from(shutdown::EXIT_CODE)),
        outcome => outcome,
    }
}

/// Runs a command to its end. What it started ends with the process.
///
/// The runtime is not dropped, which would wait for calls that block, such as SQL statements. It is
/// not shut down either: a thread that still uses it would panic, and print its panic before the
/// error of the command is reported.
fn run_to_end<T>(command: impl Future<Output = T>) -> Result<T> {
    let runtime = Runtime::new().context("cannot start the async runtime")?;
    let runtime = ManuallyDrop::new(runtime);
    Ok(runtime.block_on(command))
}

async fn dispatch(command: Command, progress: &Progress) -> Result<ExitCode> {
    shutdown::survive_large_files().context("cannot listen for signals")?;
    let shutdown =
        shutdown::token(shutdown_message(&command)).context("cannot listen for signals")?;
    match command {
        Command::Train(args) => train::train(&args, progress, shutdown).await?,
        Command::Sft(args) => sft_command::sft(&args, progress, shutdown).await?,
        Command::Pretrain(args) => pretrain::pretrain(&args, progress, shutdown).await?,
        Command::Eval(args) => eval_command::eval(&args, progress).await?,
        Command::Compare(args) => compare::compare(&args, progress).await?,
        Command::Play(args) => play::play(&args, progress).await?,
        Command::Report(args) => {
            let written = report::write(&args.run_dir)?;
            for damage in RunFolder::new(&args.run_dir).read()?.damage() {
                tracing::warn!("{} {}", damage.seen, damage.meaning);
            }
            stdout::print(format_args!("{}\n", written.display()))?;
        }
        Command::Trajectories(args) => trajectories::write(&args)?,
        Command::Fetch(args) => run_place::fetch(&args, &shutdown).await?,
        Command::ImportGguf(args) => import_gguf::import_gguf(&args)?,
        Command::Data(command) => data_command::run(command, progress).await?,
        Command::EnvNode(args) => roles::env_node(&args, progress, shutdown).await?,
        Command::Actor(args) => roles::actor(&args, progress, shutdown).await?,
        Command::Learner(args) => learner_role::learner(&args, progress, shutdown).await?,
        Command::Rank(args) => roles::rank(&args, progress, shutdown).await?,
        Command::Bench(command) => bench_command::bench(&command, progress, &shutdown).await?,
        Command::GpuCheck(args) => return bench_command::gpu_check(&args).await,
        Command::Health(args) => health::health(&args).await?,
        Command::Settings => stdout::print(config::reference::markdown())?,
        Command::Watch(args) => watch::watch(&args, shutdown).await?,
        Command::Doctor(args) => return doctor::doctor(&args).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the name under which a process appears in traces.
fn role(command: &Command) -> &'static str {
    match command {
        Command::EnvNode(_) => "env-node",
        Command::Actor(_) => "actor",
        Command::Learner(_) => "learner",
        Command::Rank(_) => "rank",
        _ => "local",
    }
}

/// Returns what a command prints at the first signal. Commands without a message exit at once.
fn shutdown_message(command: &Command) -> Option<&'static str> {
    match command {
        Command::Train(_) => Some("stopping where the run can be resumed"),
        Command::Pretrain(_) => Some("stopping; the same command continues after the last shard"),
        Command::Sft(_) => Some("stopping; the same command continues"),
        Command::EnvNode(_)
        | Command::Actor(_)
        | Command::Learner(_)
        | Command::Rank(_)
        | Command::Fetch(_)
        | Command::Watch(_) => Some("stopping"),
        Command::Bench(command) if command.has_processes() => Some("stopping"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Duration};

    use tokio::{runtime::Handle, time::sleep};

    /// As the thread of a trainer does that uploads a checkpoint while a command fails.
    #[test]
    fn a_thread_may_use_the_runtime_after_the_end_of_the_command() {
        let command = async {
            let runtime = Handle::current();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                runtime.block_on(async { sleep(Duration::from_millis(1)).await });
            })
        };
        let thread = run_to_end(command).unwrap();
        assert!(thread.join().is_ok());
    }
}
