//! The settings of a comparison: those of the first run among the policies, so that its report and
//! the comparison agree, or those of the preset.

use std::path::Path;

use anyhow::{Result, bail};

use super::{CompareArgs, compared_policy::folder};
use crate::{
    args::{ConfigArgs, Preset},
    config::{DataConfig, RunConfig},
    eval_command::run_of,
};

/// What all policies share.
pub(super) struct SharedSettings {
    pub(super) config: RunConfig,
    /// The first run among the policies, if its settings are used.
    pub(super) run: Option<String>,
}

impl SharedSettings {
    /// Reads the settings of the runs, unless a preset or a file is given.
    pub(super) fn read(args: &CompareArgs) -> Result<Self> {
        let mut runs = Vec::new();
        if !names_settings(args) {
            for name in args.policies.iter().filter(|name| may_be_folder(name)) {
                if let Some((_, run)) = run_of(&folder(name)?)? {
                    runs.push((name, run));
                }
            }
        }
        let Some((name, first)) = runs.first() else {
            let config = RunConfig::resolve(&args.config)?;
            return Ok(Self { config, run: None });
        };
        if args.config.data.is_none()
            && let Some((other, _)) = runs.iter().find(|(_, it)| !is_same(&it.data, &first.data))
        {
            bail!("{name} and {other} were trained on different data; name the data by --data DIR");
        }
        Ok(Self {
            config: RunConfig::resolve_on(first, &args.config)?,
            run: Some((*name).clone()),
        })
    }

    /// Returns the settings of a model in `folder`, or behind a chat API: the limits are those of
    /// its run, or those of the preset for pretrained models. The budget of env steps is shared,
    /// and so is the sampling.
    pub(super) fn of_model(&self, args: &CompareArgs, folder: Option<&Path>) -> Result<RunConfig> {
        let mut config = self.config.clone();
        if names_settings(args) {
            return Ok(config);
        }
        let run = folder.map(run_of).transpose()?.flatten();
        let own = match run {
            Some((_, run)) => RunConfig::resolve_on(&run, &args.config)?,
            None => RunConfig::resolve(&ConfigArgs {
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

fn may_be_folder(name: &str) -> bool {
    !["random", "oracle", "base"].contains(&name) && !name.starts_with("openai:")
}

/// Whether both are the same folder and databases.
fn is_same(one: &DataConfig, other: &DataConfig) -> bool {
    let place = |data: &DataConfig| {
        let dir = data.dir.as_ref();
        dir.map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone()))
    };
    place(one) == place(other) && one.databases == other.databases
}
