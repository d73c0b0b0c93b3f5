//! The command line: what a person may type, and nothing of what it means.
//!
//! Settings live in [`crate::config`]; a flag here is either a path, an address or a short name for a setting.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

pub use crate::bench_command::{BenchCommand, GpuCheckCommand};

/// Train small language models to explore SQL databases by reinforcement learning.
#[derive(Debug, Parser)]
#[command(name = "sqlenv", version, propagate_version = true)]
pub struct Args {
    /// What to do; without a command: train.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What to log to stderr, in tracing's filter syntax, for example `info` or `actor=debug`.
    #[arg(long, global = true, env = "SQLENV_LOG", default_value = "warn")]
    pub log: String,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Prepare data, warm-start a policy, train it with GRPO, evaluate and write the report: all in this process.
    Train(TrainArgs),
    /// Only the supervised warm start: writes a model folder.
    Sft(SftArgs),
    /// Evaluate a policy on questions.
    Eval(EvalArgs),
    /// Play an episode yourself.
    Play(PlayArgs),
    /// Write a run's report again.
    Report(ReportArgs),
    /// Write a run's trajectories as JSON lines: messages and tools as OpenAI spells them, tokens, masks, log-probabilities.
    Trajectories(TrajectoriesArgs),
    /// Turn a GGUF file (llama, qwen2, qwen3) into a Hugging Face model folder for --model.
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
    /// Measure how fast the parts are.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Check a GPU and measure it: parity with the CPU, speed, start-up. Writes gpu-check.json and gpu-check.md.
    GpuCheck(GpuCheckCommand),
    /// Say what this machine offers and what this binary can use.
    Doctor(DoctorArgs),
}

/// Where settings come from: a preset, then the file, then `--set`, then the named flags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Parser)]
pub struct ConfigArgs {
    /// The settings to start from; without it `tiny`, or `model` where --model is given.
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// A TOML file of settings; what it leaves out comes from the preset.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting, for example `learner.optimizer.learning_rate=3e-5`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Seed of every random number in the run.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Questions and databases: an own build, Spider's layout or SQLEnv's. Without it the project's own data is built.
    #[arg(long, value_name = "DIR", env = "SQLENV_DATA")]
    pub data: Option<PathBuf>,
    /// Databases to use, by name, separated by commas; `all` for every one.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub databases: Option<Vec<String>>,
    /// A Hugging Face model folder. Without it the small embedded policy starts from random weights.
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
}

/// What a client shows to the env-node at --env, and whom it trusts there.
#[derive(Clone, Debug, Default, Parser)]
pub struct EnvCredentials {
    /// The file with the bearer token that the env-node asks for.
    #[arg(long, value_name = "FILE")]
    pub env_token_file: Option<PathBuf>,
    /// Authorities (PEM) that vouch for an https env-node, in place of the system's.
    #[arg(long, value_name = "FILE")]
    pub env_ca_file: Option<PathBuf>,
    /// This client's certificate (PEM), where the env-node asks for one.
    #[arg(long, value_name = "FILE", requires = "env_key_file")]
    pub env_certificate_file: Option<PathBuf>,
    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "env_certificate_file")]
    pub env_key_file: Option<PathBuf>,
}

/// Settings that come with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// The embedded policy on the project's own data: about ten minutes on two cores.
    Tiny,
    /// A pretrained model from a folder.
    Model,
    /// Every stage, each as short as can be: shows that the installation works, not that the policy learns.
    Smoke,
}

/// Arguments of `sqlenv train`.
#[derive(Clone, Debug, Default, Parser)]
pub struct TrainArgs {
    /// Settings.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Folder that holds the runs.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub runs_dir: PathBuf,
    /// Name of the run's folder; without it the next free number.
    #[arg(long)]
    pub name: Option<String>,
    /// Go on with the run of this name (or the newest) where it stopped, with its own settings.
    #[arg(long)]
    pub resume: bool,
    /// Only show the resolved settings.
    #[arg(long, conflicts_with = "resume")]
    pub dry_run: bool,
}

/// Arguments of `sqlenv sft`.
#[derive(Clone, Debug, Parser)]
pub struct SftArgs {
    /// Settings.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The model folder to write.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

impl TrainArgs {
    /// What `sqlenv` without a word means.
    #[must_use]
    pub fn newcomer() -> Self {
        Self {
            runs_dir: PathBuf::from("runs"),
            ..Self::default()
        }
    }
}

/// Which policy plays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PolicyChoice {
    /// Legal actions at random.
    Random,
    /// Knows the gold SQL: the upper bound.
    Oracle,
    /// The model of --model.
    #[default]
    Model,
}

/// Arguments of `sqlenv eval`.
#[derive(Clone, Debug, Parser)]
pub struct EvalArgs {
    /// Settings; --model names the policy's folder.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Who plays.
    #[arg(long, value_enum, default_value_t)]
    pub policy: PolicyChoice,
    /// The split to play.
    #[arg(long, default_value = "eval")]
    pub split: String,
    /// At most this many questions: always the same ones, chosen by their ids.
    #[arg(long, value_name = "N")]
    pub questions: Option<usize>,
    /// Sample at this temperature; 0 is greedy.
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f32,
    /// Solved examples in front of each question: 0, 1 or 3.
    #[arg(long, default_value_t = 0)]
    pub shots: u32,
    /// Play on this env-node (http://HOST:PORT), or several with commas between, instead of one in this process.
    #[arg(long, value_name = "ADDRESS")]
    pub env: Option<String>,
    /// Secrets for --env.
    #[command(flatten)]
    pub env_credentials: EnvCredentials,
    /// Write the evaluation as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write every episode as one JSON line to this file.
    #[arg(long, value_name = "FILE")]
    pub transcripts: Option<PathBuf>,
}

/// Arguments of `sqlenv play`.
#[derive(Clone, Debug, Parser)]
pub struct PlayArgs {
    /// Settings.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The question to play; without it one drawn by --seed.
    #[arg(long, value_name = "ID")]
    pub question: Option<String>,
    /// The split to draw from.
    #[arg(long, default_value = "train")]
    pub split: String,
    /// Play on this env-node (http://HOST:PORT) instead of one in this process.
    #[arg(long, value_name = "ADDRESS")]
    pub env: Option<String>,
    /// Secrets for --env.
    #[command(flatten)]
    pub env_credentials: EnvCredentials,
}

/// Arguments of `sqlenv report`.
#[derive(Clone, Debug, Parser)]
pub struct ReportArgs {
    /// The run's folder.
    pub run_dir: PathBuf,
}

/// Arguments of `sqlenv trajectories`.
#[derive(Clone, Debug, Parser)]
pub struct TrajectoriesArgs {
    /// The run's folder.
    pub run_dir: PathBuf,
    /// The file to write; without it stdout.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Arguments of `sqlenv import-gguf`.
#[derive(Clone, Debug, Parser)]
pub struct ImportGgufArgs {
    /// The GGUF file; quantised weights become f32.
    pub file: PathBuf,
    /// The model folder to write.
    pub out: PathBuf,
}

/// Arguments of `sqlenv doctor`.
#[derive(Clone, Debug, Default, Parser)]
pub struct DoctorArgs {
    /// Write the findings as JSON to this file, too.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Commands on data.
#[derive(Clone, Debug, Subcommand)]
pub enum DataCommand {
    /// Generate the project's own databases and questions.
    Build {
        /// Folder to write.
        #[arg(long, value_name = "DIR", default_value = crate::config::OWN_DATA_DIR)]
        out: PathBuf,
        /// Seed of the generator.
        #[arg(long, default_value_t = data::DEFAULT_SEED)]
        seed: u64,
    },
    /// Verify hashes, rerun every gold query, check that the splits are apart.
    Check {
        /// The data's folder.
        #[arg(default_value = crate::config::OWN_DATA_DIR)]
        dir: PathBuf,
    },
    /// Count questions by split, level, answer type and database.
    Stats {
        /// The data's folder.
        #[arg(default_value = crate::config::OWN_DATA_DIR)]
        dir: PathBuf,
        /// Databases to use, by name, separated by commas; `all` for every one.
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        databases: Option<Vec<String>>,
    },
    /// Train the embedded policy's tokenizer on demonstrations of the train split.
    Tokenizer {
        /// The data's folder.
        #[arg(long, value_name = "DIR", default_value = crate::config::OWN_DATA_DIR)]
        data: PathBuf,
        /// The tokenizer.json to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

/// Arguments of `sqlenv env-node`.
#[derive(Clone, Debug, Parser)]
pub struct EnvNodeArgs {
    /// Settings; only `data` and `env` count.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Address to serve on; without it HOST and PORT of the environment, or 127.0.0.1:8000.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_LISTEN")]
    pub listen: Option<std::net::SocketAddr>,
    /// Which of OpenEnv's routes there are: simulation (all) or production (tools and sockets); in place of
    /// `env_node.openenv.mode`, whose default OPENENV_MODE of the environment is.
    #[arg(long, value_name = "MODE")]
    pub mode: Option<env_node::Mode>,
    /// Address of /metrics, /livez and /readyz; without it none is served.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<std::net::SocketAddr>,
}

/// Arguments of `sqlenv actor`.
#[derive(Clone, Debug, Parser)]
pub struct ActorArgs {
    /// Settings; only `actor` counts, the rest comes from the learner.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The env-node (http://HOST:PORT), or several with commas between.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_ENV")]
    pub env: String,
    /// Secrets for --env.
    #[command(flatten)]
    pub env_credentials: EnvCredentials,
    /// The learner (http://HOST:PORT).
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_LEARNER")]
    pub learner: String,
    /// A name that is unique among the run's actors; without it host and process number.
    #[arg(long, value_name = "NAME")]
    pub id: Option<String>,
    /// Address of /metrics, /livez and /readyz; without it none is served.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<std::net::SocketAddr>,
}

/// Arguments of `sqlenv learner`.
#[derive(Clone, Debug, Parser)]
pub struct LearnerArgs {
    /// Settings; --model names the folder to start from.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Address to serve on.
    #[arg(long, default_value = "127.0.0.1:8001", env = "SQLENV_LISTEN")]
    pub listen: std::net::SocketAddr,
    /// The env-node (http://HOST:PORT) whose questions are trained on.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_ENV")]
    pub env: String,
    /// Secrets for --env.
    #[command(flatten)]
    pub env_credentials: EnvCredentials,
    /// The run's folder; one that exists is resumed.
    #[arg(long, value_name = "DIR")]
    pub run_dir: PathBuf,
    /// Address of /metrics, /livez and /readyz; without it none is served.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<std::net::SocketAddr>,
}

/// Arguments of `sqlenv rank`.
#[derive(Clone, Debug, Parser)]
pub struct RankArgs {
    /// Settings; only `threads` and `device` count, the rest comes from the learner.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The learner (http://HOST:PORT), which is rank 0.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_LEARNER")]
    pub leader: String,
    /// How long to look for a learner that is away.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub patience_seconds: u32,
    /// Address of /metrics, /livez and /readyz; without it none is served.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<std::net::SocketAddr>,
}
