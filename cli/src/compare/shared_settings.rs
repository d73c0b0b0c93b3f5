//! The settings of a comparison: those of the first run among the policies, so that its report and
//! the comparison agree, or those of the preset.

use anyhow::{Result, bail};

use super::{CompareArgs, compared_policy::Kind};
use crate::{
    args::{ConfigArgs, Preset},
    config::{self, DataConfig, RunConfig},
    eval_command::run_of,
};

/// What all policies share.
pub(super) struct SharedSettings {
    pub(super) config: RunConfig,
    /// The policies that are models of runs, in their order, with the settings of the runs; none if
    /// the user names settings.
    runs: Vec<(String, RunConfig)>,
}

impl SharedSettings {
    /// Reads the settings of the runs, unless a preset or a file is given.
    pub(super) fn read(args: &CompareArgs, kinds: &[Kind]) -> Result<Self> {
        let mut runs = Vec::new();
        if !names_settings(args) {
            for (name, kind) in args.policies.iter().zip(kinds) {
                if let Kind::Folder(folder) = kind
                    && let Some((_, run)) = run_of(folder)?
                {
                    runs.push((name.clone(), run));
                }
            }
        }
        let Some((name, first)) = runs.first() else {
            let config = config::resolve(&args.config)?;
            return Ok(Self { config, runs });
        };
        if args.config.data.is_none()
            && let Some((other, _)) = runs.iter().find(|(_, it)| !is_same(&it.data, &first.data))
        {
            bail!("{name} and {other} were trained on different data; name the data by --data DIR");
        }
        Ok(Self {
            config: RunConfig::resolve_on(first, &args.config)?,
            runs,
        })
    }

    /// Returns the first run among the policies, if its settings are used.
    pub(super) fn run(&self) -> Option<&str> {
        self.runs.first().map(|(name, _)| name.as_str())
    }

    /// Returns the settings of a policy. For a model, other than the embedded one, the limits are
    /// those of its run, or those of the preset for pretrained models. The budget of env steps is
    /// shared, and so is the sampling.
    pub(super) fn of_policy(
        &self,
        args: &CompareArgs,
        name: &str,
        kind: &Kind,
    ) -> Result<RunConfig> {
        let mut config = self.config.clone();
        if names_settings(args) || !matches!(kind, Kind::Folder(_) | Kind::Api(_)) {
            return Ok(config);
        }
        let own: RunConfig = match self.runs.iter().find(|(run, _)| run == name) {
            Some((_, run)) => RunConfig::resolve_on(run, &args.config)?,
            None => config::resolve(&ConfigArgs {
                preset: Some(Preset::Model),
                ..args.config.clone()
            })?,
        };
        let shared = std::mem::replace(&mut config.learner.rollout, own.learner.rollout);
        config.learner.rollout.step_budget = shared.step_budget;
        config.learner.rollout.reward_profile = shared.reward_profile;
        config.learner.rollout.sampling = shared.sampling;
        Ok(config)
    }
}

/// Whether the user names settings that all policies have.
fn names_settings(args: &CompareArgs) -> bool {
    args.config.preset.is_some() || args.config.config.is_some()
}

/// Whether both are the same folder and databases.
fn is_same(one: &DataConfig, other: &DataConfig) -> bool {
    let place = |data: &DataConfig| {
        let dir = data.dir.as_ref();
        dir.map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone()))
    };
    place(one) == place(other) && one.databases == other.databases
}
