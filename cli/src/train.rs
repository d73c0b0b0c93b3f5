//! `sqlenv train`: runs the stages of a run in order.
//!
//! A stage whose result is in the run folder is skipped, so an interrupted run continues where it
//! stopped.

mod grpo;
mod run;
mod table;

use anyhow::{Context as _, Result, ensure};
use policy::Model;
use report::{PolicyName, RunFolder, RunStatus};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{SftArgs, TrainArgs},
    config::RunConfig,
    evaluation::Evaluator,
    progress::Progress,
    setup::{self, Setup},
    shutdown::Interrupted,
    stdout,
    warm_start::{WarmStart, warm_start},
};
use run::{OpenRun, PlannedRun};

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
    config.device.open()?;
    let setup = Setup::open(&config, progress)?;
    let base = setup::base_model(&config.model, config.seed, config.placement())?;
    let mut run = plan.open(progress)?;
    run.describe(&setup, &base)?;
    let evaluator = Evaluator {
        config: &config,
        setup: &setup,
        progress,
        shutdown: &shutdown,
    };
    let ended = stages(&mut run, &evaluator, &base).await;
    let status = match &ended {
        Ok(()) => RunStatus::Finished,
        Err(_) => RunStatus::Interrupted,
    };
    let closed = run.close(status).and_then(|()| {
        let records = run.folder.read()?;
        Ok((report::summary(&records), report::write(run.folder.path())?))
    });
    // The error of a stage has priority: on a full disk, writing the report fails as well.
    if ended
        .as_ref()
        .is_err_and(|error| !error.is::<Interrupted>())
    {
        return ended;
    }
    let (summary, report) = closed?;
    progress.say(&format!("{summary}report: {}", report.display()));
    ended
}

/// Runs the stages until the last one has finished or a signal arrives ([`Interrupted`]).
async fn stages(run: &mut OpenRun, evaluator: &Evaluator<'_>, base: &Model) -> Result<()> {
    let folder = run.folder.clone();
    run.timed("baselines", table::baselines(&folder, evaluator, base))
        .await?;
    let WarmStart { warm, oracle_only } = run
        .timed("warm start", warm_models(&folder, evaluator, base))
        .await?;
    let oracle_only = oracle_only.map(|model| (PolicyName::OracleImitation, model));
    let evaluated = [(PolicyName::WarmStart, warm.clone())];
    for (name, model) in oracle_only.into_iter().chain(evaluated) {
        let evaluation = table::model(&folder, evaluator, name, &model, 0);
        run.timed("evaluations", evaluation).await?;
    }
    let (trained, step) = run
        .timed("GRPO", grpo::grpo(&folder, evaluator, warm))
        .await?;
    let evaluation = table::model(&folder, evaluator, PolicyName::Grpo, &trained, step);
    run.timed("evaluations", evaluation).await?;
    trained.save(&folder.path().join("model"))?;
    Ok(())
}

/// Returns the models of the warm start: those in the run folder, or newly trained ones.
async fn warm_models(
    folder: &RunFolder,
    evaluator: &Evaluator<'_>,
    base: &Model,
) -> Result<WarmStart> {
    if !evaluator.config.warm_start.enabled {
        return Ok(WarmStart {
            warm: base.clone(),
            oracle_only: None,
        });
    }
    if let Some(found) = WarmStart::open(folder.path(), evaluator.config.placement())? {
        return Ok(found);
    }
    let trained = warm_start(evaluator, base, Some(folder)).await?;
    trained.save(folder.path())?;
    Ok(trained)
}

/// `sqlenv sft`: runs only the warm start and writes the model folder.
pub(crate) async fn sft(
    args: &SftArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let mut config = RunConfig::resolve(&args.config)?;
    config.warm_start.compare_oracle_only = false;
    // Checked before the training, so that its result is not lost.
    Model::check_target(&args.out).context("--out")?;
    let setup = Setup::open(&config, progress)?;
    let evaluator = Evaluator {
        config: &config,
        setup: &setup,
        progress,
        shutdown: &shutdown,
    };
    let base = setup::base_model(&config.model, config.seed, config.placement())?;
    let trained = warm_start(&evaluator, &base, None).await?;
    trained.warm.save(&args.out)?;
    progress.say(&format!("wrote {}", args.out.display()));
    Ok(())
}
