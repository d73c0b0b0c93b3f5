//! `sqlenv train`: the stages of a run in order. A stage whose result lies in the run's folder is not made again, so that
//! an interrupted run goes on where it stopped.

mod grpo;
mod run;
mod table;

use anyhow::{Context as _, Result, ensure};
use policy::Model;
use report::{PolicyName, RunFolder, RunStatus};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{SftArgs, TrainArgs},
    commands::Outcome,
    config::RunConfig,
    evaluation::Evaluator,
    progress::Progress,
    setup::{self, Setup},
    shutdown::Interrupted,
    stdout,
    warm_start::{WarmStart, warm_start},
};
use run::{Plan, Run};

/// Runs all stages and writes the report.
///
/// # Errors
/// Whatever a stage reports; what earlier stages wrote stays.
pub async fn train(
    args: &TrainArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<Outcome> {
    if args.dry_run {
        stdout::print(RunConfig::resolve(&args.config)?.to_toml()?)?;
        return Ok(Outcome::Done);
    }
    // The folder comes last: a run that cannot start leaves none behind, which --resume would take for the newest.
    let plan = Plan::new(args)?;
    let config = plan.config.clone();
    ensure!(
        config.learner.ranks.is_alone(),
        "learner.ranks: `sqlenv train` is one process, thus one rank; leave it out, or run `sqlenv learner` with \
         `sqlenv rank` beside it"
    );
    config.device.open()?;
    let setup = Setup::open(&config, progress)?;
    let base = setup::base_model(&config.model, config.seed)?;
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
    // What a stage met comes first: a full disk would hide it behind the report.
    let outcome = match ended {
        Ok(()) => Outcome::Done,
        Err(error) if error.is::<Interrupted>() => Outcome::Interrupted,
        Err(error) => return Err(error),
    };
    let (summary, report) = closed?;
    progress.say(&format!("{summary}report: {}", report.display()));
    Ok(outcome)
}

/// The stages, until the last one or a signal ([`Interrupted`]).
async fn stages(run: &mut Run, evaluator: &Evaluator<'_>, base: &Model) -> Result<()> {
    let folder = run.folder.clone();
    run.timed("baselines", table::baselines(&folder, evaluator, base))
        .await?;
    let WarmStart { warm, oracle_only } = run
        .timed("warm start", warm_models(&folder, evaluator, base))
        .await?;
    let models = [
        (PolicyName::OracleImitation, oracle_only.as_ref()),
        (PolicyName::WarmStart, Some(&warm)),
    ];
    for (name, model) in models {
        if let Some(model) = model {
            run.timed(
                "evaluations",
                table::model(&folder, evaluator, name, model, 0),
            )
            .await?;
        }
    }
    let (trained, step) = run
        .timed("GRPO", grpo::grpo(&folder, evaluator, warm))
        .await?;
    run.timed(
        "evaluations",
        table::model(&folder, evaluator, PolicyName::Grpo, &trained, step),
    )
    .await?;
    trained.save(&folder.path().join("model"))?;
    Ok(())
}

/// The warm start's models: those in the run's folder, or new ones.
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
    if let Some(found) = WarmStart::open(folder.path())? {
        return Ok(found);
    }
    let made = warm_start(evaluator, base, Some(folder)).await?;
    made.save(folder.path())?;
    Ok(made)
}

/// `sqlenv sft`: only the warm start; writes the model folder.
///
/// # Errors
/// The data or the folder cannot be used, training diverged, or a signal broke it off ([`Interrupted`]).
pub async fn sft(args: &SftArgs, progress: &Progress, shutdown: CancellationToken) -> Result<()> {
    let mut config = RunConfig::resolve(&args.config)?;
    config.warm_start.compare_oracle_only = false;
    // Before the training, so that none is lost.
    Model::check_target(&args.out).context("--out")?;
    let setup = Setup::open(&config, progress)?;
    let evaluator = Evaluator {
        config: &config,
        setup: &setup,
        progress,
        shutdown: &shutdown,
    };
    let base = setup::base_model(&config.model, config.seed)?;
    let made = warm_start(&evaluator, &base, None).await?;
    made.warm.save(&args.out)?;
    progress.say(&format!("wrote {}", args.out.display()));
    Ok(())
}
