//! `sqlenv train`: runs the stages of a run in order.
//!
//! A stage whose result is in the run folder is skipped, so an interrupted run continues where it
//! stopped.

mod grpo;
mod imitation;
mod run;
mod table;

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use learner::LearnerServerConfig;
use policy::Model;
use report::{PolicyName, RunFolder, RunStatus};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Readiness},
    args::TrainArgs,
    config::RunConfig,
    evaluation::Evaluator,
    imitation::remove_checkpoints,
    live::LiveRun,
    model_folder,
    progress::Progress,
    setup::Setup,
    shutdown::Interrupted,
    stdout, warm_start,
};
use run::{OpenRun, PlannedRun};

/// The folder of supervised trainings in progress, in a run's folder.
const SFT_CHECKPOINTS: &str = "sft-checkpoints";

/// Runs all stages and writes the report.
pub(crate) async fn train(
    args: &TrainArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    if args.dry_run {
        let config = RunConfig::resolve(&args.config)?;
        stdout::print(config.commented_toml()?)?;
        return config.check_paths();
    }
    // The folder is created last: a run that cannot start must not leave a folder, because
    // `--resume` would choose it as the newest run.
    let plan = PlannedRun::resolve(args)?;
    let config = plan.config.clone();
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
    config.device.open()?;
    let live = LiveRun::default();
    let ready = open_admin_port(args.admin, &live).await?;
    let (setup, base) = Setup::open_with_base(&config, progress, &shutdown).await?;
    say_if_not_evaluated(&setup, progress);
    let mut run = plan.open(progress, live)?;
    run.describe(&setup, &base)?;
    ready.set(true);
    let evaluator = Evaluator {
        config: &config,
        setup: &setup,
        progress,
        shutdown: &shutdown,
    };
    let ended = stages(&mut run, &evaluator, &base).await;
    ready.set(false);
    let status = match &ended {
        Ok(()) => RunStatus::Finished,
        Err(_) => RunStatus::Interrupted,
    };
    let closed = run.close(status).and_then(|()| {
        let records = run.folder.read()?;
        Ok((report::summary(&records), report::write(run.folder.path())?))
    });
    run.live.end(status);
    // The error of a stage has priority: on a full disk, writing the report fails as well.
    if ended
        .as_ref()
        .is_err_and(|error| !error.is::<Interrupted>())
    {
        return ended;
    }
    let (summary, report) = closed?;
    progress.say(&format!("{summary}report: {}", report.display()));
    if ended.is_err() {
        let command = run.resume_command();
        progress.say(&format!("interrupted; continue with: {command}"));
    }
    run.live.linger().await;
    ended
}

fn say_if_not_evaluated(setup: &Setup, progress: &Progress) {
    let questions = setup.questions();
    if !questions.iter().any(|it| it.split.starts_with("eval")) {
        progress.say(
            "no question has the split `eval`, so the run is not evaluated on questions that it \
             does not train on; see docs/data.md for splits",
        );
    }
}

/// Serves the live page and the metrics of all roles, which are parts of this process.
async fn open_admin_port(address: Option<SocketAddr>, live: &LiveRun) -> Result<Readiness> {
    let ready = admin::serve_with(address, live.pages()).await?;
    env::metrics::describe();
    env_node::metrics::describe();
    learner::metrics::describe();
    actor::metrics::describe();
    Ok(ready)
}

/// Runs the stages until the last one has finished or a signal arrives ([`Interrupted`]).
async fn stages(run: &mut OpenRun, evaluator: &Evaluator<'_>, base: &Model) -> Result<()> {
    let folder = run.folder.clone();
    run.timed("baselines", table::scripted(&folder, evaluator, base))
        .await?;
    let (name, start) = start(run, evaluator, base).await?;
    let evaluation = table::model(&folder, evaluator, name, &start, 0);
    run.timed("evaluations", evaluation).await?;
    let info = run.info.clone();
    let info = info.context("the run is not described: this is a bug")?;
    let live = run.live.clone();
    let training = grpo::grpo((&folder, &live, &info), evaluator, (name, start.clone()));
    let (trained, step) = run.timed("GRPO", training).await?;
    let evaluation = table::model(&folder, evaluator, PolicyName::Grpo, &trained, step);
    run.timed("evaluations", evaluation).await?;
    let base = &evaluator.config.model;
    model_folder::save(&folder, model_folder::LAST, (&trained, base), step)?;
    let imitation = imitation::oracle_imitation(&folder, evaluator, &start);
    if let Some(model) = run.timed("imitation", imitation).await? {
        let name = PolicyName::OracleImitation;
        let evaluation = table::model(&folder, evaluator, name, &model, 0);
        run.timed("evaluations", evaluation).await?;
    }
    Ok(())
}

/// Returns the model from which GRPO starts: the base, or the warm start of the settings.
async fn start(
    run: &mut OpenRun,
    evaluator: &Evaluator<'_>,
    base: &Model,
) -> Result<(PolicyName, Model)> {
    if !evaluator.config.warm_start.enabled {
        return Ok((PolicyName::Base, base.clone()));
    }
    let folder = run.folder.clone();
    run.timed(
        "baselines",
        table::base_before_warm_start(&folder, evaluator, base),
    )
    .await?;
    let warm = run
        .timed("warm start", warm_model(&folder, evaluator, base))
        .await?;
    Ok((PolicyName::WarmStart, warm))
}

/// Returns the warm start: the one in the run folder, or a newly trained one.
async fn warm_model(folder: &RunFolder, evaluator: &Evaluator<'_>, base: &Model) -> Result<Model> {
    let placement = evaluator.config.placement();
    let checkpoints = folder.path().join(SFT_CHECKPOINTS);
    let warm = match warm_start::open_warm_start(folder.path(), placement)? {
        Some(found) => found,
        None => {
            let training =
                warm_start::warm_start(evaluator, base, Some(folder), checkpoints.clone());
            let trained = training.await?;
            warm_start::save_warm_start(&trained, folder.path())?;
            trained
        }
    };
    // Also after a kill between the two.
    remove_checkpoints(&checkpoints, &warm_start::TITLES);
    Ok(warm)
}
