//! The command line: what a person may type, and nothing of what it means.
//!
//! Settings live in [`crate::config`]; a flag here is either a path, an address or a short name for
//! a setting.

mod credentials;
mod data;
mod playing;
mod roles;
mod runs;
mod settings;
mod training;

use std::{env, ffi::OsString, net::SocketAddr, path::PathBuf};

use bench::gpu_check::GpuCheckArgs;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub(crate) use self::{
    credentials::{EnvCredentials, LearnerCredentials},
    data::DataCommand,
    playing::{EvalArgs, PlayArgs, PlayPolicy, PolicyChoice, shots},
    roles::{ActorArgs, EnvNodeArgs, LearnerArgs, RankArgs},
    runs::{
        DoctorArgs, FetchArgs, HealthArgs, ImportGgufArgs, ReportArgs, TrajectoriesArgs, WatchArgs,
    },
    settings::{ConfigArgs, Preset},
    training::{PretrainArgs, SftArgs, TrainArgs},
};
pub(crate) use crate::{bench_command::BenchCommand, compare::CompareArgs};

/// Where the project's own data is built when no `--data` is given.
pub(crate) const OWN_DATA_DIR: &str = "data/build";
/// The variable that names a folder of data, as the images for the CPU set it.
pub(crate) const DATA_VARIABLE: &str = "SQLENV_DATA";
/// Folder that holds the runs, unless --runs-dir names another.
pub(crate) const DEFAULT_RUNS_DIR: &str = "runs";

/// Reads the address of a port of this process.
pub(crate) fn socket_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "give the IP address and the port, such as 127.0.0.1:9000 or 0.0.0.0:9000")
}

/// Returns the folder that [`DATA_VARIABLE`] names, if it is not empty.
pub(crate) fn named_data() -> Option<OsString> {
    env::var_os(DATA_VARIABLE).filter(|dir| !dir.is_empty())
}

/// Returns the folder of data for commands that read no settings.
pub(crate) fn data_dir() -> PathBuf {
    named_data().map_or_else(|| OWN_DATA_DIR.into(), PathBuf::from)
}

/// Train small language models to explore SQL databases by reinforcement learning. The default
/// command is train.
#[derive(Debug, Parser)]
#[command(name = "sqlenv", version, propagate_version = true)]
pub(crate) struct Args {
    /// The command; default: train.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Flags that a command has in common with others, and refuses.
const REFUSED_FLAGS: [(&str, &[&str]); 4] = [
    ("env-node", &["seed", "model"]),
    ("actor", &["seed", "data", "databases", "model"]),
    ("compare", &["model"]),
    ("rank", &["seed", "data", "databases", "model"]),
];

impl Args {
    /// Parses the command line of this process. Ends the process if it cannot be used.
    pub(crate) fn of_command_line() -> Self {
        let matches = command().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Returns the command line, without a word about flags that are always refused.
fn command() -> clap::Command {
    let hidden = |role: clap::Command, flags: &[&'static str]| {
        let hide =
            |role: clap::Command, flag: &&'static str| role.mut_arg(*flag, |it| it.hide(true));
        flags.iter().fold(role, hide)
    };
    let all = Args::command();
    REFUSED_FLAGS.iter().fold(all, |all, (role, flags)| {
        all.mut_subcommand(role, |role| hidden(role, flags))
    })
}

/// Options of logs and traces.
#[derive(Clone, Debug, Parser)]
pub(crate) struct LogArgs {
    /// What to log to stderr, in tracing's filter syntax, for example `info` or `actor=debug`.
    #[arg(long, global = true, env = "SQLENV_LOG", default_value = "warn")]
    pub(crate) log: String,
    /// OTLP collector (http://HOST:4317) that gets OpenTelemetry traces; needs a build with
    /// `--features opentelemetry`.
    #[arg(
        long,
        global = true,
        value_name = "ADDRESS",
        env = "OTEL_EXPORTER_OTLP_ENDPOINT"
    )]
    pub(crate) traces: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Prepare data, train a policy with GRPO, compare it with imitation of the oracle, evaluate
    /// both and write the report, all in this process.
    Train(TrainArgs),
    /// Run only the supervised warm start (--preset scratch, or --model), or imitate your own
    /// conversations (--transcripts), and write a model folder.
    Sft(SftArgs),
    /// Pretrain a small policy: train random weights on procedurally generated databases.
    Pretrain(PretrainArgs),
    /// Evaluate a policy on questions.
    Eval(EvalArgs),
    /// Compare policies on the same questions: models, runs, scripted policies, served models.
    Compare(CompareArgs),
    /// Play an episode yourself, or watch a policy answer a question on any database.
    Play(PlayArgs),
    /// Write a run's report again.
    Report(ReportArgs),
    /// Write a run's trajectories as JSON lines: messages and tools in OpenAI's format, tokens,
    /// masks and log-probabilities.
    Trajectories(TrajectoriesArgs),
    /// Copy a run from an object store into a folder.
    Fetch(FetchArgs),
    /// Convert a GGUF file (llama, qwen2, qwen3) into a Hugging Face model folder for --model.
    ImportGguf(ImportGgufArgs),
    /// Build, check or describe data.
    #[command(subcommand)]
    Data(DataCommand),
    /// Serve episodes over gRPC, OpenEnv's HTTP, WebSocket and MCP, and the page to play by hand.
    EnvNode(EnvNodeArgs),
    /// Sample trajectories for a learner.
    Actor(ActorArgs),
    /// Train on the trajectories that actors submit.
    Learner(LearnerArgs),
    /// Share the work of a learner whose run has several ranks.
    Rank(RankArgs),
    /// Measure the speed of the environment, the sampler and the learner.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Check a GPU and measure it: parity with the CPU, speed, start-up. Writes gpu-check.json and
    /// gpu-check.md.
    GpuCheck(GpuCheckArgs),
    /// Ask the admin port of a role whether the role is ready: the exit code is 0 if it is.
    Health(HealthArgs),
    /// Describe all settings as Markdown: name, type, default and meaning.
    Settings,
    /// Watch a run in the terminal: curves, actors, env-nodes, the newest episode, warnings.
    Watch(WatchArgs),
    /// Report what is wrong with a run and what to change; without a run, what this machine offers
    /// and what this binary can use.
    Doctor(DoctorArgs),
}
