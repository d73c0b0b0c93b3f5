//! Settings: each crate's own structs, composed into one type per role, read from one TOML file.
//!
//! Order of precedence, lowest first: the defaults in code, a preset, the variable SQLENV_DATA, the
//! file, OpenEnv's variables (for an env-node: [`crate::openenv_variables`]), `--set`, the named
//! flags. Other variables of the environment are defaults of flags: [`crate::args`] names them.
//!
//! A role reads and validates its own sections only; sections of other roles may be in the file,
//! and not on the command line. A run's folder holds the resolved settings.
//!
//! Seed, threads, device and dtype belong to a process, so they stand at the top of the file and
//! the crates take them as arguments.

mod layers;
pub(crate) mod reference;
mod sections;

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use env::RewardProfile;
use learner::{LearnerConfig, RunArguments};
use policy::{DTypeChoice, DeviceChoice, Placement};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use toml::Table;

pub(crate) use sections::{
    DataConfig, EvaluationConfig, ImitationConfig, ModelConfig, PretrainConfig, WarmStartConfig,
};

use crate::{
    args::{ConfigArgs, Preset},
    threads,
};

/// Settings of a whole run: what `sqlenv train` and the commands around it read.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RunConfig {
    /// Seed of every random number in the run.
    pub(crate) seed: u64,
    /// Threads that compute; 0: one per core. Changes speed and memory, never results.
    pub(crate) threads: usize,
    /// Device that samples and trains: `auto`, `cpu`, `cuda` or `cuda:N`.
    pub(crate) device: DeviceChoice,
    /// Dtype of the forward pass: `auto`, `f32` or `bf16`. `auto` is bf16 on a GPU. On a CPU it is
    /// bf16 for models of at least 50 million parameters, and f32 for smaller ones. For an actor it
    /// is the dtype of the learner. Trained weights have master copies in f32.
    pub(crate) dtype: DTypeChoice,
    /// Questions and databases.
    pub(crate) data: DataConfig,
    /// The policy to start from.
    pub(crate) model: ModelConfig,
    /// The environment.
    pub(crate) env: env::EnvSettings,
    /// What serves the environment.
    pub(crate) env_node: env_node::EnvNodeSettings,
    /// The supervised warm start.
    pub(crate) warm_start: WarmStartConfig,
    /// The training of the base policy.
    pub(crate) pretrain: PretrainConfig,
    /// GRPO.
    pub(crate) learner: LearnerConfig,
    /// The imitation of the oracle that GRPO is compared with.
    pub(crate) imitation: ImitationConfig,
    /// The sampler.
    pub(crate) actor: actor::ActorConfig,
    /// Evaluations of a run.
    pub(crate) evaluation: EvaluationConfig,
}

/// Settings of `sqlenv env-node`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct EnvNodeRole {
    pub(crate) data: DataConfig,
    pub(crate) env: env::EnvSettings,
    pub(crate) env_node: env_node::EnvNodeSettings,
}

/// Settings of `sqlenv actor`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct ActorRole {
    pub(crate) device: DeviceChoice,
    pub(crate) dtype: DTypeChoice,
    pub(crate) actor: actor::ActorConfig,
}

/// Settings of `sqlenv learner`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct LearnerRole {
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) device: DeviceChoice,
    pub(crate) dtype: DTypeChoice,
    pub(crate) data: DataConfig,
    pub(crate) model: ModelConfig,
    pub(crate) learner: LearnerConfig,
    pub(crate) evaluation: EvaluationConfig,
    /// Sections of other roles, as they are given except for the secret. The run's folder keeps
    /// them for the commands that evaluate the run.
    #[serde(flatten, deserialize_with = "without_secret")]
    #[schemars(skip)]
    pub(crate) others: Table,
}

/// Settings of `sqlenv rank`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct RankRole {
    pub(crate) threads: usize,
    pub(crate) device: DeviceChoice,
}

/// The section and the name of the only secret among the settings. Its type does not serialize it,
/// so only what is kept as it was given could contain it.
const SECRET: (&str, &str) = ("env", "signing_key");

/// Reads sections as they are given, except for the secret.
fn without_secret<'de, D: Deserializer<'de>>(sections: D) -> Result<Table, D::Error> {
    let mut sections = Table::deserialize(sections)?;
    let (section, name) = SECRET;
    if let Some(toml::Value::Table(settings)) = sections.get_mut(section) {
        settings.remove(name);
    }
    Ok(sections)
}

/// Returns an argument of the command line. If it gives the secret, it ends with `…` in its place.
pub(crate) fn shown_argument(argument: &str) -> String {
    let (_, name) = SECRET;
    let after_equals_sign = |(at, _): (usize, &str)| {
        // The name may be quoted in a table.
        let rest = argument[at + name.len()..].trim_start_matches([' ', '\t', '"', '\'']);
        let value = rest.strip_prefix('=')?;
        Some(argument.len() - value.len())
    };
    match argument.match_indices(name).find_map(after_equals_sign) {
        Some(secret) => format!("{}…", &argument[..secret]),
        None => argument.to_owned(),
    }
}

/// Settings that one command reads.
pub(crate) trait RoleSettings: Serialize + DeserializeOwned + Default {
    /// Checks every number and name.
    fn validate(&self) -> Result<()>;
}

/// Why settings cannot be used. The command then exits with 2, as for a wrong flag, so that nothing
/// starts it again.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct WrongSettings(pub(crate) anyhow::Error);

/// Resolves the settings of a role.
///
/// # Errors
/// [`WrongSettings`].
pub(crate) fn resolve<T: RoleSettings>(args: &ConfigArgs) -> Result<T> {
    resolve_with(args, Preset::Tiny)
}

/// Resolves the settings of a role. If neither a preset nor a model is named, they have the preset
/// `unnamed`.
///
/// # Errors
/// [`WrongSettings`].
pub(crate) fn resolve_with<T: RoleSettings>(args: &ConfigArgs, unnamed: Preset) -> Result<T> {
    let resolved = || {
        let read = layers::to_table(&T::default())?;
        layers::check_read(args, &read)?;
        let table = layers::merged(args, unnamed)?;
        layers::check_model_of_preset(args, &read, &table)?;
        checked(table).map_err(|error| layers::with_file::<T>(args, error))
    };
    Ok(resolved().map_err(WrongSettings)?)
}

/// Returns whether the command line gives a setting, or one of a section.
pub(crate) fn gives(args: &ConfigArgs, name: &str) -> Result<bool> {
    Ok(reference::lookup(&layers::command_line(args)?, name).is_some())
}

/// Writes settings as the text of a TOML file, which resolves to the same settings again.
pub(crate) fn to_toml(settings: &impl RoleSettings) -> Result<String> {
    Ok(toml::to_string(&layers::to_table(settings)?)?)
}

fn checked<T: RoleSettings>(table: Table) -> Result<T> {
    let settings: T = layers::parse(table)?;
    settings.validate()?;
    Ok(settings)
}

impl RoleSettings for RunConfig {
    fn validate(&self) -> Result<()> {
        check_threads(self.threads)?;
        let concurrency = self.evaluation.concurrency;
        if !(1..=MOST_CONCURRENCY).contains(&concurrency) {
            bail!("evaluation.concurrency is {concurrency}; set it to 1 to {MOST_CONCURRENCY}");
        }
        self.evaluation.validate(&self.learner)?;
        self.model.validate()?;
        self.warm_start.validate()?;
        self.imitation
            .sft
            .validate()
            .context("in [imitation.sft]")?;
        self.pretrain.validate()?;
        validate_learner(&self.learner)?;
        validate_environment(&self.env, &self.env_node)?;
        Ok(self.actor.validate()?)
    }
}

impl RoleSettings for EnvNodeRole {
    fn validate(&self) -> Result<()> {
        validate_environment(&self.env, &self.env_node)
    }
}

impl RoleSettings for ActorRole {
    fn validate(&self) -> Result<()> {
        Ok(self.actor.validate()?)
    }
}

impl LearnerRole {
    /// Reads the settings of a run from the text of its `config.toml`.
    pub(crate) fn of_run(config: &str) -> Result<Self> {
        layers::parse(config.parse()?)
    }

    /// Checks that a run which is resumed goes on under the settings that shape its weights, and
    /// with its own evaluations.
    ///
    /// # Errors
    /// [`WrongSettings`].
    pub(crate) fn check_resumes(&self, begun: &Self) -> Result<()> {
        let weights_of = |it: &Self| it.learner.fingerprint(it.seed);
        let same = || {
            ensure!(
                weights_of(self) == weights_of(begun),
                "the run has other settings of [learner], or another seed, than this command; \
                 give those of its config.toml, or choose another --run-dir"
            );
            self.evaluation.check_questions_of(&begun.evaluation)
        };
        Ok(same().map_err(WrongSettings)?)
    }

    /// Checks that the folders which the learner reads exist. Its file of settings may name others.
    pub(crate) fn check_paths(&self) -> Result<()> {
        let reads_data = self.learner.demonstration_weight > 0.0;
        let data = reads_data.then(|| self.data.clone());
        let read = Self {
            model: self.model.clone(),
            data: data.unwrap_or_default(),
            ..Self::default()
        };
        layers::check_paths(&layers::to_table(&read)?, "")
    }

    /// Returns the device and the dtype to compute in.
    pub(crate) fn placement(&self) -> Placement {
        Placement {
            device: self.device,
            dtype: self.dtype,
        }
    }

    /// Returns whether the settings of the whole run ask for a warm start.
    pub(crate) fn has_warm_start(&self) -> bool {
        let enabled = self
            .others
            .get("warm_start")
            .and_then(|it| it.get("enabled"));
        let default = WarmStartConfig::default().enabled;
        enabled.and_then(toml::Value::as_bool).unwrap_or(default)
    }
}

impl RoleSettings for LearnerRole {
    fn validate(&self) -> Result<()> {
        check_threads(self.threads)?;
        self.model.validate()?;
        self.evaluation.validate(&self.learner)?;
        validate_learner(&self.learner)
    }
}

impl RoleSettings for RankRole {
    fn validate(&self) -> Result<()> {
        check_threads(self.threads)
    }
}

/// The most episodes of an evaluation at once.
const MOST_CONCURRENCY: usize = 1 << 16;

fn check_threads(threads: usize) -> Result<()> {
    /// More are no faster, and cannot all be started.
    const MOST: usize = 1_024;
    if threads > MOST {
        bail!("threads is {threads}; give 0 for one per core, or 1 to {MOST}");
    }
    Ok(())
}

fn validate_environment(
    env: &env::EnvSettings,
    env_node: &env_node::EnvNodeSettings,
) -> Result<()> {
    env.validate()?;
    Ok(env_node.validate(env)?)
}

fn validate_learner(learner: &LearnerConfig) -> Result<()> {
    let profile = &learner.rollout.reward_profile;
    if !profile.is_empty() {
        let known = profile.parse::<RewardProfile>();
        known.context("setting learner.rollout.reward_profile")?;
    }
    learner.validate().context("in [learner]")
}

impl RunConfig {
    /// Resolves the settings on top of those of a run.
    ///
    /// # Errors
    /// [`WrongSettings`].
    pub(crate) fn resolve_on(run: &Self, args: &ConfigArgs) -> Result<Self> {
        let resolved = || checked(layers::merged_on(layers::to_table(run)?, args)?);
        Ok(resolved().map_err(WrongSettings)?)
    }

    /// Reads the resolved settings of a run.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let table = layers::read_table(path)?;
        checked(table).with_context(|| format!("in {}", path.display()))
    }

    /// Writes the settings as TOML, each with its meaning above it.
    pub(crate) fn commented_toml(&self) -> Result<String> {
        Ok(reference::commented(&layers::to_table(self)?))
    }

    /// Checks that the folders and files of the settings exist.
    pub(crate) fn check_paths(&self) -> Result<()> {
        layers::check_paths(&layers::to_table(self)?, "")
    }

    /// Returns the device and the dtype to compute in.
    pub(crate) fn placement(&self) -> Placement {
        Placement {
            device: self.device,
            dtype: self.dtype,
        }
    }

    /// Returns the arguments of a training by a seed of its own.
    pub(crate) fn arguments(&self, seed: u64) -> RunArguments {
        RunArguments {
            seed,
            threads: threads::or_cores(self.threads),
        }
    }
}

#[cfg(test)]
mod tests;
