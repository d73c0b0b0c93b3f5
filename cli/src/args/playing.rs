//! Commands in which a policy or a person plays.

use std::path::PathBuf;

use bench::at_least_one;
use clap::{Parser, ValueEnum};

use super::{ConfigArgs, EnvCredentials};

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
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) questions: Option<usize>,
    /// Sampling temperature; 0: greedy.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Solved examples before each question: 0, 1 or 3; default: as in the settings.
    #[arg(long, value_parser = shots)]
    pub(crate) shots: Option<u32>,
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

/// Reads a number of solved examples.
pub(crate) fn shots(text: &str) -> Result<u32, &'static str> {
    match text {
        "0" => Ok(0),
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("give 0, 1 or 3"),
    }
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
