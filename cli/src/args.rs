//! The command line: what a person may type, and nothing of what it means.
//!
//! Settings live in [`crate::config`]; a flag here is either a path, an address or a short name for
//! a setting.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

pub(crate) use crate::{
    bench_command::{BenchCommand, GpuCheckCommand},
    compare::CompareArgs,
};
use crate::{data_check::DataFolderArgs, data_import::DataImportArgs};

/// Where the project's own data is built when no `--data` is given.
pub(crate) const OWN_DATA_DIR: &str = "data/build";
/// Folder that holds the runs, unless --runs-dir names another.
pub(crate) const DEFAULT_RUNS_DIR: &str = "runs";

/// Train small language models to explore SQL databases by reinforcement learning.
#[derive(Debug, Parser)]
#[command(name = "sqlenv", version, propagate_version = true)]
pub(crate) struct Args {
    /// The command; default: train.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// What the process says of itself.
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
    GpuCheck(GpuCheckCommand),
    /// Ask the admin port of a role whether the role is ready: the exit code is 0 if it is.
    Health(HealthArgs),
    /// Describe all settings as Markdown: name, type, default and meaning.
    Settings,
    /// Watch a run in the terminal: curves, actors, env-nodes, the newest episode, warnings.
    Watch(WatchArgs),
    /// Say what is wrong with a run and what to change; without a run, report what this machine
    /// offers and what this binary can use.
    Doctor(DoctorArgs),
}

/// The layers of settings: a preset, the file, `--set`, then the named flags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Parser)]
pub(crate) struct ConfigArgs {
    /// Settings to start from; default: `tiny`, or `model` if --model is given.
    #[arg(long, value_enum)]
    pub(crate) preset: Option<Preset>,
    /// TOML file of settings; the preset gives those that it leaves out.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// One setting, for example `learner.optimizer.learning_rate=3e-5`; can be repeated. `sqlenv
    /// settings` lists all.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Seed of every random number in the run.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Folder of questions and databases, as `data draft` and `data import` write it, or in the
    /// layout of Spider, BIRD or SQLEnv; default: the project's own data, built if missing.
    #[arg(long, value_name = "DIR", env = "SQLENV_DATA")]
    pub(crate) data: Option<PathBuf>,
    /// Databases to use, by name, separated by commas; `all` for every one.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) databases: Option<Vec<String>>,
    /// Model to start from: a run's folder, a Hugging Face folder, or ORG/NAME in Hugging Face's
    /// cache; default: the small embedded base policy.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
}

/// Credentials of a client for the env-node at --env.
#[derive(Clone, Debug, Default, Parser)]
pub(crate) struct EnvCredentials {
    /// File with the bearer token that the env-node requires.
    #[arg(long, value_name = "FILE")]
    pub(crate) env_token_file: Option<PathBuf>,
    /// Certificate authorities (PEM) to trust for an https env-node, instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub(crate) env_ca_file: Option<PathBuf>,
    /// This client's certificate (PEM), if the env-node requires one.
    #[arg(long, value_name = "FILE", requires = "env_key_file")]
    pub(crate) env_certificate_file: Option<PathBuf>,
    /// Private key (PEM) of the certificate.
    #[arg(long, value_name = "FILE", requires = "env_certificate_file")]
    pub(crate) env_key_file: Option<PathBuf>,
}

/// Credentials of a client for the learner.
#[derive(Clone, Debug, Default, Parser)]
pub(crate) struct LearnerCredentials {
    /// File with the bearer token that the learner requires of this role.
    #[arg(long, value_name = "FILE")]
    pub(crate) learner_token_file: Option<PathBuf>,
    /// Certificate authorities (PEM) to trust for an https learner, instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub(crate) learner_ca_file: Option<PathBuf>,
    /// This client's certificate (PEM), if the learner requires one.
    #[arg(long, value_name = "FILE", requires = "learner_key_file")]
    pub(crate) learner_certificate_file: Option<PathBuf>,
    /// Private key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires = "learner_certificate_file")]
    pub(crate) learner_key_file: Option<PathBuf>,
}

/// Settings that come with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// GRPO from the embedded base policy on the project's own data: about ten minutes on two
    /// cores.
    Tiny,
    /// The embedded policy from random weights: a warm start by demonstrations, then GRPO.
    Scratch,
    /// A pretrained model from a folder.
    Model,
    /// The first part of the base policy's training, from random weights: `pretrain`.
    Base,
    /// The second part, with messy schemas: `pretrain --model`.
    BaseMessy,
    /// SmolLM2-135M on Spider: a warm start on every training question, then GRPO. Needs --model
    /// and --data.
    SpiderSmollm2,
    /// Every stage with the least work: shows that the installation works, not that the policy
    /// learns.
    Smoke,
}

#[derive(Clone, Debug, Default, Parser)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Folder that holds the runs.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_RUNS_DIR)]
    pub(crate) runs_dir: PathBuf,
    /// Name of the run's folder; default: the next free number.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Resume the run of this name, or the newest one, with its own settings.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Resume the run of --name if it exists and has these settings, and start it otherwise. The
    /// same command then starts a run and continues it, as a Kubernetes Job needs.
    #[arg(long, requires = "name", conflicts_with_all = ["resume", "dry_run"])]
    pub(crate) or_resume: bool,
    /// Print the resolved settings with their meaning, check that their paths exist, and train
    /// nothing.
    #[arg(long, conflicts_with = "resume")]
    pub(crate) dry_run: bool,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct SftArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Model folder to write. Until then there are checkpoints in DIR.checkpoints, from which the
    /// same command continues.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// JSON lines with `messages` in OpenAI's format, as `sqlenv trajectories` writes them, to
    /// imitate in place of demonstrations; lines with `correct: false` are left out. Trains with
    /// the settings `warm_start.oracle`.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) transcripts: Vec<PathBuf>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct PretrainArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Folder to write: settings, checkpoints, evaluations, and at the end the folder `model`. A
    /// training that was interrupted continues.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Hugging Face folder of another model to train: config.json, tokenizer and chat template.
    /// Weights in it are not read. Default: the embedded policy. --model starts from weights
    /// instead.
    #[arg(long, value_name = "DIR", conflicts_with = "model")]
    pub(crate) architecture: Option<PathBuf>,
}

impl TrainArgs {
    /// Returns the arguments of `sqlenv` without a command.
    pub(crate) fn newcomer() -> Self {
        Self {
            runs_dir: PathBuf::from(DEFAULT_RUNS_DIR),
            ..Self::default()
        }
    }
}

/// The policy to evaluate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyChoice {
    /// Random legal actions.
    Random,
    /// The oracle, which knows the gold SQL: the upper bound.
    Oracle,
    /// The embedded base policy.
    Base,
    /// The model of --model.
    #[default]
    Model,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct EvalArgs {
    /// Settings; --model names the policy's folder.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Policy to evaluate; `sqlenv compare` also plays models behind a chat API.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) policy: PolicyChoice,
    /// Split to evaluate on.
    #[arg(long, default_value = "eval")]
    pub(crate) split: String,
    /// Largest number of questions; their ids decide, so they are always the same.
    #[arg(long, value_name = "N")]
    pub(crate) questions: Option<usize>,
    /// Sampling temperature; 0: greedy.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Solved examples before each question: 0, 1 or 3.
    #[arg(long, default_value_t = 0)]
    pub(crate) shots: u32,
    /// Env-node (http://HOST:PORT), or several separated by commas; default: one in this process.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) env: Option<String>,
    #[command(flatten)]
    pub(crate) env_credentials: EnvCredentials,
    /// Write the evaluation as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write every episode as one JSON line to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) transcripts: Option<PathBuf>,
}

/// The policy that plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlayPolicy {
    /// The embedded base policy.
    Base,
    /// The model of --model.
    Model,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct PlayArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Policy that plays; default: the model of --model, or you.
    #[arg(long, value_enum)]
    pub(crate) policy: Option<PlayPolicy>,
    /// SQLite file to ask about. Nothing is written to it.
    #[arg(long, value_name = "FILE", requires = "ask",
          conflicts_with_all = ["data", "databases", "question", "split", "env"])]
    pub(crate) database: Option<PathBuf>,
    /// Question about the file of --database.
    #[arg(
        short = 'q',
        long = "ask",
        value_name = "QUESTION",
        requires = "database"
    )]
    pub(crate) ask: Option<String>,
    /// Question to play (`sqlenv data list --questions` has the ids); default: one drawn by --seed.
    #[arg(long, value_name = "ID")]
    pub(crate) question: Option<String>,
    /// Split to draw from.
    #[arg(long, default_value = "train")]
    pub(crate) split: String,
    /// Env-node (http://HOST:PORT); default: one in this process.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) env: Option<String>,
    #[command(flatten)]
    pub(crate) env_credentials: EnvCredentials,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct ReportArgs {
    /// The run's folder.
    pub(crate) run_dir: PathBuf,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct TrajectoriesArgs {
    /// The run's folder.
    pub(crate) run_dir: PathBuf,
    /// File to write; default: stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct FetchArgs {
    /// Address of the run: s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH.
    pub(crate) address: String,
    /// Run folder to make.
    pub(crate) out: PathBuf,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct ImportGgufArgs {
    /// GGUF file; quantized weights become f32.
    pub(crate) file: PathBuf,
    /// Model folder to write.
    pub(crate) out: PathBuf,
}

#[derive(Clone, Debug, Default, Parser)]
pub(crate) struct WatchArgs {
    /// Admin port of the learner (http://HOST:PORT), or the folder of a run.
    #[arg(value_name = "ADDRESS|RUN")]
    pub(crate) run: String,
}

#[derive(Clone, Debug, Default, Parser)]
pub(crate) struct DoctorArgs {
    /// Admin port of the learner (http://HOST:PORT), or the folder of a run; default: this machine.
    #[arg(value_name = "ADDRESS|RUN")]
    pub(crate) run: Option<String>,
    /// Also write the findings as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct HealthArgs {
    /// The role's --admin.
    #[arg(default_value = "127.0.0.1:9000")]
    pub(crate) address: std::net::SocketAddr,
}

/// Commands on data.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Generate the project's own databases and questions.
    Build {
        /// Folder to write.
        #[arg(long, value_name = "DIR", default_value = OWN_DATA_DIR)]
        out: PathBuf,
        /// Seed of the generator.
        #[arg(long, default_value_t = data::DEFAULT_SEED)]
        seed: u64,
    },
    /// Make a data folder of your own databases and questions (docs/data.md).
    Import(DataImportArgs),
    /// Verify hashes, look for damage, rerun every gold query, and check that the splits are
    /// disjoint. The exit code is 1 if there is a problem.
    Check(DataFolderArgs),
    /// Count questions by split, level, answer type and database, and look for damage.
    Stats(DataFolderArgs),
    /// List the databases and the number of their questions, or the questions.
    List {
        #[command(flatten)]
        folder: DataFolderArgs,
        /// List id, split, level and text of each question instead.
        #[arg(long)]
        questions: bool,
    },
    /// Generate databases whose schemas are composed of random words.
    Procedural {
        /// Folder to write.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Seed of the generator.
        #[arg(long, default_value_t = data::DEFAULT_SEED)]
        seed: u64,
        /// Databases.
        #[arg(long, default_value_t = 100)]
        databases: usize,
        /// Questions about each database.
        #[arg(long, default_value_t = 8)]
        questions: usize,
        /// Use only words that the training of the base policy never uses.
        #[arg(long)]
        held_out: bool,
        /// Percentage of databases of a declared domain.
        #[arg(long, default_value_t = 0)]
        declared_percent: usize,
        /// Percentage of the other databases whose schema is messy: more tables and columns, names
        /// in several spellings, some of which need quotation marks.
        #[arg(long, default_value_t = 0)]
        messy_percent: u64,
    },
    /// Draft questions about any SQLite databases.
    Draft(crate::draft_command::DraftArgs),
    /// Train a tokenizer for a small policy on demonstrations of the train split.
    Tokenizer {
        /// The data's folder.
        #[arg(long, value_name = "DIR", default_value = OWN_DATA_DIR)]
        data: PathBuf,
        /// The tokenizer.json to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct EnvNodeArgs {
    /// Settings; only the sections `data`, `env` and `env_node` are read.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Address to serve on; default: the environment variables HOST and PORT, or 127.0.0.1:8000.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_LISTEN")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// OpenEnv routes to serve: simulation (all) or production (tools and sockets). Overrides
    /// `env_node.openenv.mode` and the environment variable OPENENV_MODE.
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<env_node::Mode>,
    /// Folder with run folders, whose episodes the page /web/ lists and replays, with their gold
    /// answers. Overrides `env_node.web.runs_dir`; default: none is served.
    #[arg(long, value_name = "DIR")]
    pub(crate) runs_dir: Option<PathBuf>,
    /// Address of /metrics, /livez and /readyz; default: none is served.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<std::net::SocketAddr>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct ActorArgs {
    /// Settings; only `device`, `dtype` and the section `actor` are read. The learner sends the
    /// others.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Env-node (http://HOST:PORT), or several separated by commas.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_ENV")]
    pub(crate) env: String,
    #[command(flatten)]
    pub(crate) env_credentials: EnvCredentials,
    /// Learner (http://HOST:PORT, or https).
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_LEARNER")]
    pub(crate) learner: String,
    #[command(flatten)]
    pub(crate) learner_credentials: LearnerCredentials,
    /// Name that is unique among the run's actors; default: host and process id.
    #[arg(long, value_name = "NAME")]
    pub(crate) id: Option<String>,
    /// Address of /metrics, /livez and /readyz; default: none is served.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<std::net::SocketAddr>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct LearnerArgs {
    /// Settings; --model names the folder to start from.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Address to serve on.
    #[arg(long, default_value = "127.0.0.1:8001", env = "SQLENV_LISTEN")]
    pub(crate) listen: std::net::SocketAddr,
    /// Env-node (http://HOST:PORT) whose questions are trained on.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_ENV")]
    pub(crate) env: String,
    #[command(flatten)]
    pub(crate) env_credentials: EnvCredentials,
    /// Run folder, or the address of a run in an object store (s3://BUCKET/PATH, gs://BUCKET/PATH,
    /// az://CONTAINER/PATH); an existing run is resumed.
    #[arg(long, value_name = "DIR|ADDRESS")]
    pub(crate) run_dir: String,
    /// Folder for the working copy of a run in an object store; default: the system's folder for
    /// temporary files.
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,
    /// Address of the live page, /status.json, /metrics, /livez and /readyz; default: none is
    /// served. Keep it private: it shows the run to everyone.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<std::net::SocketAddr>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct RankArgs {
    /// Settings; only `threads` and `device` are read. The learner sends the others.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Learner (http://HOST:PORT), which is rank 0.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_LEARNER")]
    pub(crate) leader: String,
    #[command(flatten)]
    pub(crate) learner_credentials: LearnerCredentials,
    /// Seconds to wait for a learner that does not answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) patience_seconds: u32,
    /// Address of /metrics, /livez and /readyz; default: none is served.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<std::net::SocketAddr>,
}
