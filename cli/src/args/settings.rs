//! The layers of settings that a command line names, and the presets.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// The layers of settings: a preset, the file, `--set`, then the named flags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Parser)]
pub(crate) struct ConfigArgs {
    /// Settings to start from; default: `model` if --model or the setting `model.dir` is given,
    /// otherwise `tiny`, or `base` for `pretrain`.
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
    /// layout of Spider, BIRD or SQLEnv; default: the setting `data.dir`, then the variable
    /// SQLENV_DATA, then the project's own data, built if missing.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Databases to use, by name, separated by commas; `all` for every one.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) databases: Option<Vec<String>>,
    /// Model to start from: a run's folder, a Hugging Face folder, or ORG/NAME in Hugging Face's
    /// cache; default: the small embedded base policy.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
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
    /// The base policy's training, from random weights: `pretrain`.
    Base,
    /// SmolLM2-135M on Spider: a warm start on every training question, then GRPO. Needs --model
    /// and --data.
    SpiderSmollm2,
    /// Every stage with the least work: shows that the installation works, not that the policy
    /// learns.
    Smoke,
}
