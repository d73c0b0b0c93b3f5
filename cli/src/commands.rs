//! Runs the command that the command line names.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use tokio::runtime::Runtime;

use crate::{
    args::{Args, Command, TrainArgs},
    bench_command, config, data_command, doctor, eval_command, health, import_gguf, learner_role,
    logging, play_command, pretrain,
    progress::Progress,
    roles, run_place,
    shutdown::{self, Interrupted},
    stdout, train, trajectories, watch,
};

/// Runs the command and returns the exit code of the process.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let progress = Progress::stderr();
    let runtime = Runtime::new().context("cannot start the async runtime")?;
    let command = args
        .command
        .unwrap_or_else(|| Command::Train(TrainArgs::newcomer()));
    let entered = runtime.enter();
    let export = logging::init(&args.log, role(&command), &progress)?;
    drop(entered);
    let outcome = runtime.block_on(dispatch(command, &progress));
    // Sends the last spans, for which the runtime is needed.
    drop(export);
    // The runtime must not wait here for blocking calls, such as SQL statements, that are still
    // running.
    runtime.shutdown_background();
    match outcome {
        Err(error) if error.is::<Interrupted>() => Ok(ExitCode::from(shutdown::EXIT_CODE)),
        outcome => outcome,
    }
}

async fn dispatch(command: Command, progress: &Progress) -> Result<ExitCode> {
    let shutdown =
        shutdown::token(shutdown_message(&command)).context("cannot listen for signals")?;
    match command {
        Command::Train(args) => train::train(&args, progress, shutdown).await?,
        Command::Sft(args) => train::sft(&args, progress, shutdown).await?,
        Command::Pretrain(args) => pretrain::pretrain(&args, progress, shutdown).await?,
        Command::Eval(args) => eval_command::eval(&args, progress).await?,
        Command::Play(args) => play_command::play(&args, progress).await?,
        Command::Report(args) => {
            stdout::print(format_args!(
                "{}\n",
                report::write(&args.run_dir)?.display()
            ))?;
        }
        Command::Trajectories(args) => trajectories::write(&args)?,
        Command::Fetch(args) => run_place::fetch(&args).await?,
        Command::ImportGguf(args) => import_gguf::import_gguf(&args)?,
        Command::Data(command) => data_command::run(command, progress).await?,
        Command::EnvNode(args) => roles::env_node(&args, progress, shutdown).await?,
        Command::Actor(args) => roles::actor(&args, progress, shutdown).await?,
        Command::Learner(args) => learner_role::learner(&args, progress, shutdown).await?,
        Command::Rank(args) => roles::rank(&args, progress, shutdown).await?,
        Command::Bench(command) => bench_command::bench(&command, progress).await?,
        Command::GpuCheck(command) => return bench_command::gpu_check(&command).await,
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
        Command::Sft(_) => Some("stopping; no model is written"),
        Command::EnvNode(_)
        | Command::Actor(_)
        | Command::Learner(_)
        | Command::Rank(_)
        | Command::Watch(_) => Some("stopping"),
        _ => None,
    }
}
