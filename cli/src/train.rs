//! `sqlenv train`: the stages of a run in order. A stage whose result lies in the run's folder is not made again, so that
//! an interrupted run goes on where it stopped.

mod grpo;
mod run;
mod table;

use anyhow::Result;
use policy::Model;
use tokio_util::sync::CancellationToken;

use crate::{
    args::{SftArgs, TrainArgs},
    commands::Outcome,
    config::RunConfig,
    evaluation::Examiner,
    progress::Progress,
    report,
    run::{PolicyName, RunFolder, RunStatus},
    setup::{self, Setup},
    warm_start::{WarmStart, warm_start},
};
use run::Run;

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
        print!("{}", toml::to_string(&RunConfig::resolve(&args.config)?)?);
        return Ok(Outcome::Done);
    }
    let mut run = Run::open(args, progress)?;
    let setup = Setup::open(&run.config, progress)?;
    let config = run.config.clone();
    let examiner = Examiner {
        config: &config,
        setup: &setup,
        progress,
    };
    let base = setup::base_model(&config)?;
    run.describe(&setup, &base)?;
    let finished = stages(&mut run, &examiner, &base, &shutdown).await;
    let status = match &finished {
        Ok(true) => RunStatus::Finished,
        _ => RunStatus::Interrupted,
    };
    run.close(status)?;
    let report = report::write(run.folder.path())?;
    progress.say(&format!("report: {}", report.display()));
    Ok(if finished? {
        Outcome::Done
    } else {
        Outcome::Interrupted
    })
}

/// The stages; `false` where a signal stopped them.
async fn stages(
    run: &mut Run,
    examiner: &Examiner<'_>,
    base: &Model,
    shutdown: &CancellationToken,
) -> Result<bool> {
    let folder = run.folder.clone();
    run.timed("baselines", table::baselines(&folder, examiner, base))
        .await?;
    let started = run
        .timed("warm start", warm_models(&folder, examiner, base, shutdown))
        .await?;
    let Some(WarmStart { warm, oracle_only }) = started else {
        return Ok(false);
    };
    let models = [
        (PolicyName::OracleImitation, oracle_only.as_ref()),
        (PolicyName::WarmStart, Some(&warm)),
    ];
    for (name, model) in models {
        if let Some(model) = model {
            run.timed(
                "evaluations",
                table::model(&folder, examiner, name, model, 0),
            )
            .await?;
        }
        if shutdown.is_cancelled() {
            return Ok(false);
        }
    }
    let trained = run
        .timed("GRPO", grpo::grpo(&folder, examiner, warm, shutdown))
        .await?;
    let Some((trained, step)) = trained else {
        return Ok(false);
    };
    run.timed(
        "evaluations",
        table::model(&folder, examiner, PolicyName::Grpo, &trained, step),
    )
    .await?;
    trained.save(&folder.path().join("model"))?;
    Ok(true)
}

/// The warm start's models: those in the run's folder, or new ones.
async fn warm_models(
    folder: &RunFolder,
    examiner: &Examiner<'_>,
    base: &Model,
    shutdown: &CancellationToken,
) -> Result<Option<WarmStart>> {
    if !examiner.config.warm_start.enabled {
        return Ok(Some(WarmStart {
            warm: base.clone(),
            oracle_only: None,
        }));
    }
    if let Some(found) = WarmStart::open(folder.path())? {
        return Ok(Some(found));
    }
    let made = warm_start(examiner, base, folder, shutdown).await?;
    if let Some(made) = &made {
        made.save(folder.path())?;
    }
    Ok(made)
}

/// `sqlenv sft`: only the warm start; writes the model folder.
///
/// # Errors
/// The data or the folder cannot be used, or training diverged.
pub async fn sft(
    args: &SftArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<Outcome> {
    let mut config = RunConfig::resolve(&args.config)?;
    config.warm_start.compare_oracle_only = false;
    let setup = Setup::open(&config, progress)?;
    let examiner = Examiner {
        config: &config,
        setup: &setup,
        progress,
    };
    let base = setup::base_model(&config)?;
    let folder = RunFolder::create(args.out.with_extension("sft"))?;
    let Some(made) = warm_start(&examiner, &base, &folder, &shutdown).await? else {
        return Ok(Outcome::Interrupted);
    };
    made.warm.save(&args.out)?;
    progress.say(&format!("wrote {}", args.out.display()));
    Ok(Outcome::Done)
}
