//! The settings of a comparison: those of the first run among the policies, so that its report and
//! the comparison agree, or those of the preset.

use anyhow::{Result, bail};

use super::{CompareArgs, compared_policy::Kind};
use crate::{
    args::{ConfigArgs, Preset},
    config::{self, RunConfig},
    eval_command::run_of,
    progress::Progress,
    run_info,
    setup::Setup,
};

/// What all policies share.
pub(super) struct SharedSettings {
    pub(super) config: RunConfig,
    /// The policies that are models of runs, in their order; none if the user names settings.
    runs: Vec<ComparedRun>,
}

/// A run whose model is compared.
struct ComparedRun {
    /// The name of the policy.
    name: String,
    config: RunConfig,
    /// Hash of the data that it was trained on, if its folder says.
    data_sha256: Option<String>,
}

impl SharedSettings {
    /// Reads the settings of the runs, unless a preset or a file is given.
    pub(super) fn read(args: &CompareArgs, kinds: &[Kind]) -> Result<Self> {
        let mut runs = Vec::new();
        if !names_settings(args) {
            for (name, kind) in args.policies.iter().zip(kinds) {
                if let Kind::Folder(folder) = kind
                    && let Some((settings, config)) = run_of(folder)?
                {
                    runs.push(ComparedRun {
                        name: name.clone(),
                        config,
                        data_sha256: settings.parent().and_then(run_info::trained_data),
                    });
                }
            }
        }
        let Some(first) = runs.first() else {
            let config = config::resolve(&args.config)?;
            return Ok(Self { config, runs });
        };
        if !config::gives(&args.config, "data.dir")?
            && let Some(other) = runs.iter().find(|it| !is_same(it, first))
        {
            bail!(
                "{} and {} were trained on different data; name the data by --data DIR",
                first.name,
                other.name
            );
        }
        Ok(Self {
            config: RunConfig::resolve_on(&first.config, &args.config)?,
            runs,
        })
    }

    /// Returns the first run among the policies, if its settings are used.
    pub(super) fn run(&self) -> Option<&str> {
        self.runs.first().map(|run| run.name.as_str())
    }

    /// Says which runs were trained on a folder that has other data now.
    pub(super) fn report_other_data(&self, setup: &Setup, progress: &Progress) {
        for run in &self.runs {
            let (hash, trained_on) = (run.data_sha256.as_deref(), &run.config.data);
            let data = &self.config.data;
            let warning = run_info::other_data(&run.name, hash, trained_on, data, setup);
            if let Some(warning) = warning {
                progress.print(&warning);
            }
        }
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
        let own: RunConfig = match self.runs.iter().find(|run| run.name == name) {
            Some(run) => RunConfig::resolve_on(&run.config, &args.config)?,
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

/// Whether both were trained on the same folder and databases, and on the same content of it, as
/// far as their folders say.
fn is_same(one: &ComparedRun, other: &ComparedRun) -> bool {
    let hashes = one.data_sha256.as_ref().zip(other.data_sha256.as_ref());
    run_info::is_same_place(&one.config.data, &other.config.data)
        && hashes.is_none_or(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_written_again_is_other_data() {
        let run = |hash: Option<&str>| ComparedRun {
            name: "run".to_owned(),
            config: RunConfig::default(),
            data_sha256: hash.map(str::to_owned),
        };
        let first = run(Some("a"));
        for (hash, same) in [(Some("a"), true), (Some("b"), false), (None, true)] {
            assert_eq!(is_same(&run(hash), &first), same, "{hash:?}");
        }
    }
}
