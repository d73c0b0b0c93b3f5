//! From the parsed command line to the function that does it.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use tokio::runtime::Runtime;
use tracing_subscriber::EnvFilter;

use crate::{
    args::{Args, Command, TrainArgs},
    data_command, doctor, eval_command, play_command,
    progress::Progress,
    report, roles, shutdown, train, trajectories,
};

/// How a command ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All was done.
    Done,
    /// A signal stopped it; the run can be resumed.
    Interrupted,
}

impl Outcome {
    /// The process's exit code.
    #[must_use]
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Done => ExitCode::SUCCESS,
            Self::Interrupted => ExitCode::from(130),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// Whatever the command reports.
pub fn run(args: Args) -> Result<Outcome> {
    let progress = Progress::stderr();
    init_logging(&args.log, &progress)?;
    let runtime = Runtime::new().context("cannot start the async runtime")?;
    let outcome = runtime.block_on(dispatch(
        args.command
            .unwrap_or_else(|| Command::Train(TrainArgs::newcomer())),
        &progress,
    ));
    // SQL threads and engines end with their handles; a call still running must not hold the exit.
    runtime.shutdown_background();
    outcome
}

async fn dispatch(command: Command, progress: &Progress) -> Result<Outcome> {
    let shutdown = shutdown::token().context("cannot listen for signals")?;
    match command {
        Command::Train(args) => return train::train(&args, progress, shutdown).await,
        Command::Sft(args) => return train::sft(&args, progress, shutdown).await,
        Command::Eval(args) => eval_command::eval(&args, progress).await?,
        Command::Play(args) => play_command::play(&args, progress).await?,
        Command::Report(args) => println!("{}", report::write(&args.run_dir)?.display()),
        Command::Trajectories(args) => trajectories::write(&args)?,
        Command::Data(command) => data_command::run(command, progress).await?,
        Command::EnvNode(args) => roles::env_node(&args, progress, shutdown).await?,
        Command::Actor(args) => roles::actor(&args, progress, shutdown).await?,
        Command::Learner(args) => return roles::learner(&args, progress, shutdown).await,
        Command::Doctor => doctor::doctor(),
    }
    Ok(Outcome::Done)
}

fn init_logging(filter: &str, progress: &Progress) -> Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| {
        format!("--log {filter:?} is no filter; write for example info or actor=debug")
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(progress.log_writer())
        .with_target(true)
        .init();
    Ok(())
}
