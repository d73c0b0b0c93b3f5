//! Settings of a run: each crate's own struct, composed here, read from one TOML file and checked once.
//!
//! Order of precedence, lowest first: the defaults in code, a preset, the file, `--set`, the named flags. What comes out
//! is written into the run's folder; nothing else in the program reads files, flags or the environment for settings.
//! There is one seed, [`RunConfig::seed`], one number of threads, [`RunConfig::threads`], and one device,
//! [`RunConfig::device`]: those of the parts follow from them and are neither read nor written.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use env::RewardProfile;
use policy::{DTypeChoice, DeviceChoice};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::{
    args::{ConfigArgs, Preset},
    threads,
};

/// Where the project's own data is built when no `--data` is given.
pub const OWN_DATA_DIR: &str = "data/build";

/// Settings of the parts, which follow from the run's setting of this name.
const OF_THE_RUN: [(&str, &str); 9] = [
    ("learner.run_seed", "seed"),
    ("learner.seed", "seed"),
    ("warm_start.oracle.seed", "seed"),
    ("warm_start.habits.seed", "seed"),
    ("learner.threads", "threads"),
    ("warm_start.oracle.threads", "threads"),
    ("warm_start.habits.threads", "threads"),
    ("actor.engine.device", "device"),
    ("actor.engine.dtype", "dtype"),
];

/// Settings that have moved: their earlier path and their path. Every table that is read may use
/// either.
const MOVED: [(&str, &str); 3] = [
    ("env.server", "env_node.server"),
    ("env.openenv", "env_node.openenv"),
    ("env.web", "env_node.web"),
];

/// Settings that run folders may still hold and that never had an effect on results.
const RETIRED: [&str; 2] = ["evaluation.transcripts", "actors"];

/// All settings of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// Seed of every random number in the run.
    pub seed: u64,
    /// Threads that compute, see [`threads`]; 0: one a core. Changes speed and memory, never results.
    pub threads: usize,
    /// Which device samples and trains: `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: DeviceChoice,
    /// In which dtype: `auto`, `f32` or `bf16`. What is trained has its master copies in f32.
    pub dtype: DTypeChoice,
    /// Which questions.
    pub data: DataConfig,
    /// Which policy.
    pub model: ModelConfig,
    /// The environment.
    pub env: env::EnvSettings,
    /// What serves the environment.
    pub env_node: env_node::EnvNodeSettings,
    /// The supervised warm start.
    pub warm_start: WarmStartConfig,
    /// GRPO.
    pub learner: learner::LearnerConfig,
    /// The sampler.
    pub actor: actor::ActorConfig,
    /// What is evaluated when.
    pub evaluation: EvaluationConfig,
}

/// Which questions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// A folder in one of the layouts that `data` reads; none: the project's own data, built on demand.
    pub dir: Option<PathBuf>,
    /// Databases by name, or `all`; none: the layout's default.
    pub databases: Option<Vec<String>>,
}

/// Which policy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A Hugging Face folder; none: the embedded policy with random weights.
    pub dir: Option<PathBuf>,
}

/// The supervised warm start: imitation of a careful oracle, then of demonstrators with mixed habits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WarmStartConfig {
    /// Off: GRPO starts from the base model.
    pub enabled: bool,
    /// Demonstrations of each kind; 0: one for each training question.
    pub demonstrations: usize,
    /// First stage: demonstrations of the oracle.
    pub oracle: learner::sft::SftConfig,
    /// Second stage: demonstrations of mixed habits; 0 tokens switches it off.
    pub habits: learner::sft::SftConfig,
    /// Share of the second stage's episodes that a hasty demonstrator plays: it answers without a query.
    pub hasty_share: f64,
    /// Share of the careful episodes in the second stage that run a subtly wrong query.
    pub wrong_query_share: f64,
    /// Share of the careful episodes that make an SQL error and recover.
    pub recovery_share: f64,
    /// Also continue the first stage on oracle demonstrations for the second stage's tokens: the row of the report that
    /// says what imitation alone reaches.
    pub compare_oracle_only: bool,
}

impl Default for WarmStartConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            demonstrations: 0,
            oracle: learner::sft::SftConfig::default(),
            habits: learner::sft::SftConfig::default(),
            hasty_share: 0.5,
            wrong_query_share: 0.25,
            recovery_share: 0.07,
            compare_oracle_only: true,
        }
    }
}

/// What is evaluated when.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Questions of `eval` in the comparison table: the same in every run, chosen by their ids.
    pub questions: usize,
    /// Questions of each part of `eval-unseen`.
    pub unseen_questions: usize,
    /// Questions of the learning curve: others of `eval` than the table's, also the same in every run.
    pub curve_questions: usize,
    /// Learner steps between two points of the learning curve; 0: none.
    pub every_steps: u64,
    /// Episodes played at once.
    pub concurrency: usize,
}

impl Default for EvaluationConfig {
    fn default() -> Self {
        Self {
            questions: 400,
            unseen_questions: 200,
            curve_questions: 200,
            every_steps: 10,
            concurrency: 64,
        }
    }
}

impl RunConfig {
    /// Composes the settings.
    ///
    /// # Errors
    /// Names the file, key or flag that is wrong and what would be right.
    pub fn resolve(args: &ConfigArgs) -> Result<Self> {
        let preset = args.preset.unwrap_or(if args.model.is_some() {
            Preset::Model
        } else {
            Preset::Tiny
        });
        let mut table = preset_table(preset);
        if let Some(path) = &args.config {
            merge(&mut table, read_table(path)?);
        }
        Self::compose(table, args)
    }

    /// Composes the settings on top of those of a run.
    ///
    /// # Errors
    /// See [`Self::resolve`] and [`Self::read`].
    pub fn resolve_on(run: &Self, args: &ConfigArgs) -> Result<Self> {
        Self::compose(run.to_table()?, args)
    }

    fn compose(mut table: Table, args: &ConfigArgs) -> Result<Self> {
        for assignment in &args.set {
            merge(&mut table, parse_assignment(assignment)?);
        }
        if let Some((key, whole)) = OF_THE_RUN
            .into_iter()
            .find(|(key, _)| remove(&mut table, key).is_some())
        {
            bail!("setting {key}: follows from the run's; use {whole}");
        }
        let mut config = from_table(table)?;
        config.apply_flags(args);
        config.validate()?;
        Ok(config)
    }

    /// Reads the resolved settings of a run.
    ///
    /// # Errors
    /// The file is missing or holds what no version wrote.
    pub fn read(path: &Path) -> Result<Self> {
        let mut table = read_table(path)?;
        for key in OF_THE_RUN.map(|(key, _)| key).into_iter().chain(RETIRED) {
            remove(&mut table, key);
        }
        let config = from_table(table).with_context(|| format!("in {}", path.display()))?;
        config.validate()?;
        Ok(config)
    }

    /// The settings as the text of a TOML file, which resolves to the same settings again.
    ///
    /// # Errors
    /// A number is larger than TOML can hold.
    pub fn to_toml(&self) -> Result<String> {
        Ok(toml::to_string(&self.to_table()?)?)
    }

    fn to_table(&self) -> Result<Table> {
        let mut table = Table::try_from(self).context("the settings do not fit into TOML")?;
        for (key, _) in OF_THE_RUN {
            remove(&mut table, key);
        }
        Ok(table)
    }

    fn apply_flags(&mut self, args: &ConfigArgs) {
        if let Some(seed) = args.seed {
            self.seed = seed;
        }
        if args.data.is_some() {
            self.data.dir.clone_from(&args.data);
        }
        if args.databases.is_some() {
            self.data.databases.clone_from(&args.databases);
        }
        if args.model.is_some() {
            self.model.dir.clone_from(&args.model);
        }
    }

    /// Checks every number and name.
    ///
    /// # Errors
    /// Names the setting that cannot be used, and what it may be.
    pub fn validate(&self) -> Result<()> {
        ensure!(
            i64::try_from(self.seed).is_ok(),
            "seed is {}; TOML holds numbers up to {}",
            self.seed,
            i64::MAX
        );
        let profile = &self.learner.rollout.reward_profile;
        if !profile.is_empty() {
            profile
                .parse::<RewardProfile>()
                .context("setting learner.rollout.reward_profile")?;
        }
        if self.evaluation.concurrency == 0 {
            bail!("evaluation.concurrency is 0; set it to 1 or more");
        }
        for (name, share) in [
            ("hasty_share", self.warm_start.hasty_share),
            ("wrong_query_share", self.warm_start.wrong_query_share),
            ("recovery_share", self.warm_start.recovery_share),
        ] {
            if !(0.0..=1.0).contains(&share) {
                bail!("warm_start.{name} is {share}; a share lies between 0 and 1");
            }
        }
        let (points, checkpoints) = (
            self.evaluation.every_steps,
            self.learner.checkpoint.every_steps,
        );
        if points > 0 && (checkpoints == 0 || !points.is_multiple_of(checkpoints)) {
            bail!(
                "evaluation.every_steps is {points} and learner.checkpoint.every_steps {checkpoints}; checkpoints are \
                 what is evaluated, so give a multiple of it, or 0 for no points"
            );
        }
        self.learner.validate().context("in [learner]")?;
        self.warm_start
            .oracle
            .validate()
            .context("in [warm_start.oracle]")?;
        self.warm_start
            .habits
            .validate()
            .context("in [warm_start.habits]")?;
        self.actor.validate()?;
        Ok(())
    }

    /// The settings of the `tiny` preset.
    ///
    /// # Errors
    /// See [`Self::resolve`].
    pub fn preset_tiny() -> Result<Self> {
        Self::resolve(&ConfigArgs {
            preset: Some(Preset::Tiny),
            ..ConfigArgs::default()
        })
    }

    /// Threads that compute: as many as were asked for, or one a core.
    #[must_use]
    pub fn threads(&self) -> usize {
        threads::or_cores(self.threads)
    }

    /// The actor's settings with the run's device and dtype.
    #[must_use]
    pub fn actor_of_run(&self) -> actor::ActorConfig {
        let mut actor = self.actor.clone();
        actor.engine.device = self.device;
        actor.engine.dtype = self.dtype;
        actor
    }

    /// The model where the run computes, for a learner, which trains on the device and in the dtype of its weights.
    ///
    /// # Errors
    /// There is no such device, or it has too little memory.
    pub fn placed(&self, model: &policy::Model) -> policy::Result<policy::Model> {
        let device = self.device.open()?;
        model.to(&device, self.dtype.on(&device))
    }

    /// The learner's settings with the run's seed and threads.
    #[must_use]
    pub fn learner_of_run(&self) -> learner::LearnerConfig {
        learner::LearnerConfig {
            run_seed: self.seed,
            threads: self.threads(),
            ..self.learner.clone()
        }
    }
}

fn preset_table(preset: Preset) -> Table {
    let text = match preset {
        Preset::Tiny => include_str!("../presets/tiny.toml").to_owned(),
        Preset::Model => include_str!("../presets/model.toml").to_owned(),
        Preset::Smoke => include_str!("../presets/smoke.toml").to_owned(),
    };
    text.parse().expect("presets parse: this is a bug")
}

fn read_table(path: &Path) -> Result<Table> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the settings file {}", path.display()))?;
    let mut table = text
        .parse()
        .with_context(|| format!("{} is not valid TOML", path.display()))?;
    rename_moved(&mut table);
    Ok(table)
}

/// Moves settings with an earlier path to where they are now.
fn rename_moved(table: &mut Table) {
    for (earlier, now) in MOVED {
        if let Some(value) = remove(table, earlier) {
            merge(table, nested(now, value));
        }
    }
}

/// `a.b=1` as a table; a value that is no TOML literal is taken as a string.
fn parse_assignment(assignment: &str) -> Result<Table> {
    let (key, value) = assignment
        .split_once('=')
        .ok_or_else(|| anyhow!("--set {assignment:?} has no '='; write KEY=VALUE"))?;
    let value = format!("value = {value}")
        .parse::<Table>()
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    let mut table = nested(key.trim(), value);
    rename_moved(&mut table);
    Ok(table)
}

/// A table that holds nothing but `value` at `a.b`.
fn nested(key: &str, value: Value) -> Table {
    let mut parts = key.rsplit('.');
    let last = parts.next().unwrap_or_default();
    let mut table = Table::from_iter([(last.to_owned(), value)]);
    for part in parts {
        table = Table::from_iter([(part.to_owned(), Value::Table(table))]);
    }
    table
}

/// Lays `upper` over `lower`, table by table.
fn merge(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => {
                lower.insert(key, value);
            }
        }
    }
}

/// Takes the value at `a.b` out of the table.
fn remove(table: &mut Table, key: &str) -> Option<Value> {
    match key.split_once('.') {
        Some((first, rest)) => remove(table.get_mut(first)?.as_table_mut()?, rest),
        None => table.remove(key),
    }
}

fn from_table(table: Table) -> Result<RunConfig> {
    serde_path_to_error::deserialize(table).map_err(|error| {
        let path = error.path().to_string();
        // The message of the TOML parser ends with a line break.
        let problem = error.inner().message().trim_end().to_owned();
        match path.as_str() {
            "." => anyhow!("wrong setting: {problem}"),
            _ => anyhow!("wrong setting {path}: {problem}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(set: &[&str]) -> Result<RunConfig> {
        RunConfig::resolve(&ConfigArgs {
            set: set.iter().map(|&text| text.to_owned()).collect(),
            ..ConfigArgs::default()
        })
    }

    #[test]
    fn presets_resolve() {
        for preset in [Preset::Tiny, Preset::Model, Preset::Smoke] {
            RunConfig::resolve(&ConfigArgs {
                preset: Some(preset),
                ..ConfigArgs::default()
            })
            .unwrap();
        }
    }

    #[test]
    fn one_device_serves_all_parts() {
        let config = resolve(&["device=cuda:1", "dtype=bf16"]).unwrap();
        let engine = config.actor_of_run().engine;
        assert_eq!(
            (engine.device, engine.dtype),
            (DeviceChoice::Cuda(1), DTypeChoice::Bf16)
        );
        assert!(config.to_toml().unwrap().contains("device = \"cuda:1\""));
        let error = resolve(&["device=gpu"]).unwrap_err().to_string();
        assert!(
            error.contains("wrong setting device") && error.contains("cuda:N"),
            "{error}"
        );
        let error = resolve(&["actor.engine.device=cpu"])
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("use device"), "{error}");
    }

    #[test]
    fn later_sources_win() {
        let config = resolve(&["evaluation.questions=7", "evaluation.questions=9"]).unwrap();
        assert_eq!(config.evaluation.questions, 9);
    }

    #[test]
    fn what_is_written_reads_back() {
        let config = resolve(&["seed=5"]).unwrap();
        let text = config.to_toml().unwrap();
        assert_eq!(text.matches("seed").count(), 1, "{text}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, &text).unwrap();
        assert_eq!(RunConfig::read(&path).unwrap().to_toml().unwrap(), text);

        // As earlier versions wrote it.
        let mut table: Table = text.parse().unwrap();
        let old = [
            "learner.run_seed=42",
            "learner.threads=2",
            "actors.count=2",
            "evaluation.transcripts=12",
        ];
        for assignment in old {
            merge(&mut table, parse_assignment(assignment).unwrap());
        }
        fs::write(&path, table.to_string()).unwrap();
        assert_eq!(RunConfig::read(&path).unwrap().to_toml().unwrap(), text);
    }

    #[test]
    fn moved_settings_are_read_by_either_path() {
        for set in [
            "env.openenv.max_sessions=7",
            "env_node.openenv.max_sessions=7",
        ] {
            let config = resolve(&[set]).unwrap();
            assert_eq!(config.env_node.openenv.max_sessions, 7, "{set}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(
            &path,
            "[env.web]\nenabled = false\n[env]\nstep_budget = 9\n",
        )
        .unwrap();
        let config = RunConfig::read(&path).unwrap();
        assert!(!config.env_node.web.enabled && config.env.step_budget == 9);
    }

    #[test]
    fn flags_lie_over_the_settings_of_a_run() {
        let run = resolve(&["learner.steps=7", "evaluation.questions=3"]).unwrap();
        let config = RunConfig::resolve_on(
            &run,
            &ConfigArgs {
                set: vec!["evaluation.questions=5".to_owned()],
                seed: Some(9),
                ..ConfigArgs::default()
            },
        )
        .unwrap();
        assert_eq!((config.learner.steps, config.seed), (7, 9));
        assert_eq!(config.evaluation.questions, 5);
    }

    #[test]
    fn errors_name_the_setting() {
        for (set, part) in [
            ("learner.learning_rat=1", "learning_rat"),
            ("learner.steps=abc", "learner.steps: invalid type"),
            ("learner.rollout.shots=true", "learner.rollout.shots: "),
            ("learner.rollout.reward_profile=nice", "reward_profile"),
            ("learner.run_seed=1", "use seed"),
            ("warm_start.oracle.seed=1", "use seed"),
            ("seed=\"x\"", "wrong setting seed: "),
            ("seed", "KEY=VALUE"),
            ("learner.threads=2", "use threads"),
            ("actors.count=2", "actors"),
            ("warm_start.hasty_share=2", "hasty_share"),
            ("evaluation.every_steps=15", "evaluation.every_steps is 15"),
        ] {
            let error = format!("{:#}", resolve(&[set]).unwrap_err());
            assert!(error.contains(part), "{set}: {error}");
        }
    }
}
