//! `sqlenv train`: runs the stages of a run in order.
//!
//! A stage whose result is in the run folder is skipped, so an interrupted run continues where it
//! stopped.

mod grpo;
mod imitation;
mod resumable;
mod run;
mod table;

use std::{io, net::SocketAddr};

use anyhow::{Result, anyhow, ensure};
use learner::LearnerServerConfig;
use policy::{Model, durable};
use report::{PolicyName, RunFolder, RunInfo, RunStatus};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Readiness},
    args::{ConfigArgs, TrainArgs},
    config::{self, RunConfig, WrongSettings},
    doctor::problems_text,
    evaluation::Evaluator,
    live::LiveRun,
    model_folder,
    progress::Progress,
    setup::{Setup, check_model, is_training_split},
    shutdown::Interrupted,
    stdout,
    supervised::remove_checkpoints,
    warm_start,
};
use run::{OpenRun, PlannedRun, folder_name};

/// The folder of supervised trainings in progress, in a run's folder.
const SFT_CHECKPOINTS: &str = "sft-checkpoints";

/// Settings that only a learner in a process of its own reads. A file may have them, because it may
/// be that of all roles. On the command line they would look as if they had an effect.
const UNREAD: [&str; 4] = [
    "learner.lease_seconds",
    "learner.trust.max_leases_per_actor",
    "learner.trust.verified_share",
    "learner.trust.refuse_logprob_differences",
];

/// Runs all stages and writes the report.
pub(crate) async fn train(
    args: &TrainArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    if args.dry_run {
        return print_settings(args);
    }
    // The folder is created last: a run that cannot start must not leave a folder, because
    // `--resume` would choose it as the newest run.
    let plan = PlannedRun::resolve(args)?;
    let config = plan.config.clone();
    check_is_of_one_process(&config, &args.config).map_err(WrongSettings)?;
    config.device.open()?;
    let live = LiveRun::default();
    let ready = open_admin_port(args.admin, &live).await?;
    let (setup, base) = Setup::open_with_base(&config, progress, &shutdown).await?;
    check_splits(&setup, progress)?;
    let mut run = plan.open(progress, live)?;
    let stages = Stages {
        folder: run.folder.clone(),
        live: run.live.clone(),
        info: run.describe(&setup, &base)?,
        evaluator: Evaluator {
            config: &config,
            setup: &setup,
            progress,
            shutdown: &shutdown,
        },
        base,
    };
    ready.set(true);
    let ended = stages.run(&mut run).await;
    ready.set(false);
    end(run, ended, progress).await
}

/// Records how the stages of a run ended, writes the report, and says what comes next.
///
/// # Errors
/// That of a stage, or a file cannot be written.
async fn end(mut run: OpenRun, ended: Result<()>, progress: &Progress) -> Result<()> {
    let status = match &ended {
        Ok(()) => RunStatus::Finished,
        Err(_) => RunStatus::Interrupted,
    };
    let closed = run.close(status).and_then(|()| {
        let records = run.folder.read()?;
        let summary = report::summary(&records) + &problems_text(&records);
        Ok((summary, report::write(run.folder.path())?))
    });
    run.live.end(status);
    // The error of a stage has priority: on a full disk, writing the report fails as well.
    if let Err(error) = &ended
        && !error.is::<Interrupted>()
    {
        if is_full_disk(error) {
            let command = run.resume_command();
            progress.print(&format!(
                "free space on the disk, then continue with: {command}"
            ));
        }
        return ended;
    }
    let (summary, report) = closed?;
    progress.print(&format!("{summary}report: {}", report.display()));
    if ended.is_err() {
        let command = run.resume_command();
        progress.print(&format!("interrupted; continue with: {command}"));
    }
    run.live.linger().await;
    ended
}

fn is_full_disk(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|it| it.downcast_ref::<io::Error>());
    causes.any(durable::is_full)
}

/// Refuses settings of a run over several processes.
fn check_is_of_one_process(config: &RunConfig, args: &ConfigArgs) -> Result<()> {
    ensure!(
        config.learner.ranks.is_alone(),
        "learner.ranks: `sqlenv train` is one process and has one rank; remove the setting, or \
         start `sqlenv learner` and `sqlenv rank`"
    );
    ensure!(
        config.learner.server == LearnerServerConfig::default(),
        "learner.server: `sqlenv train` is one process and serves no port; remove the setting, or \
         start `sqlenv learner`"
    );
    for name in UNREAD {
        ensure!(
            !config::gives(args, name)?,
            "{name}: `sqlenv train` is one process, whose actors are parts of it, and does not \
             read the setting; leave it out, or start `sqlenv learner`"
        );
    }
    Ok(())
}

/// Prints the resolved settings, and checks what they name. They may be those of the roles of a run
/// over several processes.
fn print_settings(args: &TrainArgs) -> Result<()> {
    let config: RunConfig = config::resolve(&args.config)?;
    stdout::print(config.commented_toml()?)?;
    if let Some(name) = &args.name {
        folder_name(name)?;
    }
    config.check_paths()?;
    check_model(&config)
}

/// Checks that the data have questions to train on, and says so if they have none of an evaluation.
fn check_splits(setup: &Setup, progress: &Progress) -> Result<()> {
    let has = |is_meant: fn(&str) -> bool| {
        let mut questions = setup.dataset.questions.iter();
        questions.any(|it| is_meant(&it.split))
    };
    ensure!(
        has(is_training_split),
        WrongSettings(anyhow!(
            "the data have no question of the split `train`, on which a run trains; give data that \
             have some, or other --databases (docs/data.md)"
        ))
    );
    if !has(|split| split.starts_with("eval")) {
        progress.print(
            "no question has the split `eval`, so the run is not evaluated on questions that it \
             does not train on; see docs/data.md for splits",
        );
    }
    Ok(())
}

/// Serves the live page and the metrics of all roles, which are parts of this process.
async fn open_admin_port(address: Option<SocketAddr>, live: &LiveRun) -> Result<Readiness> {
    let describe = || {
        env::metrics::describe();
        env_node::metrics::describe();
        learner::metrics::describe();
        actor::metrics::describe();
    };
    admin::serve_with(address, describe, live.pages()).await
}

/// What the stages of a run share.
struct Stages<'a> {
    folder: RunFolder,
    live: LiveRun,
    info: RunInfo,
    evaluator: Evaluator<'a>,
    /// The model of the settings.
    base: Model,
}

impl Stages<'_> {
    /// Runs the stages until the last one has finished or a signal arrives ([`Interrupted`]).
    async fn run(&self, run: &mut OpenRun) -> Result<()> {
        run.timed("baselines", self.evaluate_scripted()).await?;
        let (name, start) = self.start(run).await?;
        let evaluation = self.evaluate_model(name, &start, 0);
        run.timed("evaluations", evaluation).await?;
        let training = self.grpo(name, start.clone());
        let (trained, step) = run.timed("GRPO", training).await?;
        let evaluation = self.evaluate_model(PolicyName::Grpo, &trained, step);
        run.timed("evaluations", evaluation).await?;
        let licences = model_folder::licences(self.evaluator.config);
        let name = model_folder::LAST;
        model_folder::save(&self.folder, name, &trained, &licences, step, None)?;
        let imitation = self.oracle_imitation(&start);
        if let Some(model) = run.timed("imitation", imitation).await? {
            let evaluation = self.evaluate_model(PolicyName::OracleImitation, &model, 0);
            run.timed("evaluations", evaluation).await?;
        }
        Ok(())
    }

    /// Returns the model from which GRPO starts: the base, or the warm start of the settings.
    async fn start(&self, run: &mut OpenRun) -> Result<(PolicyName, Model)> {
        if !self.evaluator.config.warm_start.enabled {
            return Ok((PolicyName::Base, self.base.clone()));
        }
        run.timed("baselines", self.evaluate_base_before_warm_start())
            .await?;
        let warm = run.timed("warm start", self.warm_model()).await?;
        Ok((PolicyName::WarmStart, warm))
    }

    /// Returns the warm start: the one in the run folder, or a newly trained one.
    async fn warm_model(&self) -> Result<Model> {
        let run_dir = self.folder.path();
        let checkpoints = run_dir.join(SFT_CHECKPOINTS);
        let placement = self.evaluator.config.placement();
        let warm = match warm_start::open_warm_start(run_dir, placement)? {
            Some(found) => found,
            None => {
                let (evaluator, folder) = (&self.evaluator, Some(&self.folder));
                let training =
                    warm_start::warm_start(evaluator, &self.base, folder, checkpoints.clone());
                let trained = training.await?;
                warm_start::save_warm_start(&trained, run_dir)?;
                trained
            }
        };
        // Also after a kill between the two.
        remove_checkpoints(&checkpoints, &warm_start::TITLES);
        Ok(warm)
    }
}

#[cfg(test)]
mod tests {
    use learner::LearnerError;
    use policy::PolicyError;

    use super::*;

    #[test]
    fn a_disk_that_a_model_has_filled_is_recognised() {
        for (kind, is_full) in [
            (io::ErrorKind::StorageFull, true),
            (io::ErrorKind::QuotaExceeded, true),
            (io::ErrorKind::NotFound, false),
        ] {
            let unwritable = PolicyError::Unwritable {
                path: "model.safetensors".into(),
                source: kind.into(),
            };
            let error = anyhow::Error::new(LearnerError::from(unwritable));
            assert_eq!(is_full_disk(&error), is_full, "{error}");
        }
    }
}
