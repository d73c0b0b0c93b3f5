//! Commands that train in this process.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;

use super::{ConfigArgs, DEFAULT_RUNS_DIR, socket_address};

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
    /// Print the resolved settings with their meaning, check that their paths exist and that the
    /// model was trained for their contexts, and train nothing.
    #[arg(long, conflicts_with = "resume")]
    pub(crate) dry_run: bool,
    /// Address of the live page, /status.json, /metrics, /livez and /readyz; default: none is
    /// served. Keep it private: it shows the run to everyone.
    #[arg(long, value_name = "IP:PORT", value_parser = socket_address)]
    pub(crate) admin: Option<SocketAddr>,
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
    #[arg(
        long,
        value_name = "FILE",
        num_args = 1..,
        conflicts_with_all = ["data", "databases"]
    )]
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
