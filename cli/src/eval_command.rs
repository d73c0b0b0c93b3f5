//! `sqlenv eval`: evaluates one policy on the questions of one split.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use actor::{EpisodeRecord, Policy};
use anyhow::{Context as _, Result, bail, ensure};
use policy::Model;
use report::{CorrectCount, DecodingMode, Evaluation, PolicyName, SuccessRate};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{ConfigArgs, EvalArgs, PolicyChoice},
    config::{RoleSettings as _, RunConfig},
    evaluation::{EvaluatedPolicy, Evaluator, table_questions},
    model_source, out_file,
    progress::Progress,
    setup::{self, Setup},
    stdout,
};

/// Evaluates and prints the result.
pub(crate) async fn eval(args: &EvalArgs, progress: &Progress) -> Result<()> {
    check(args)?;
    let config = settings(args, progress)?;
    let model = model(args.policy, &config)?;
    let mut setup = Setup::open(&config, progress)?;
    if let Some(address) = &args.env {
        setup.play_on(address, &args.env_credentials).await?;
    }
    let evaluator = Evaluator {
        config: &config,
        setup: &setup,
        progress,
        shutdown: &CancellationToken::new(),
    };
    let questions = table_questions(&setup, &args.split, args.questions)?;
    let chat = Arc::new(model.chat.clone());
    let mode = if args.temperature == 0.0 {
        DecodingMode::Greedy
    } else {
        DecodingMode::Sampled
    };
    let name = match args.policy {
        PolicyChoice::Random => PolicyName::Random,
        PolicyChoice::Oracle => PolicyName::Oracle,
        PolicyChoice::Base => PolicyName::Base,
        PolicyChoice::Model => PolicyName::Model,
    };
    let policies: Vec<Box<dyn Policy>> = match args.policy {
        PolicyChoice::Random | PolicyChoice::Oracle => vec![evaluator.scripted(name, &chat)],
        PolicyChoice::Base | PolicyChoice::Model => {
            let models = evaluator.models(&evaluator.engines(&model, 0)?, &chat, mode)?;
            let boxed = |model| Box::new(model) as Box<dyn Policy>;
            models.into_iter().map(boxed).collect()
        }
    };
    let policies: Vec<&dyn Policy> = policies.iter().map(|policy| &**policy).collect();
    let evaluated = EvaluatedPolicy {
        policy: name,
        step: 0,
        mode,
    };
    let (evaluation, episodes) = evaluator
        .evaluate(evaluated, &policies, &chat, &args.split, &questions)
        .await?;
    // Files are written first: if standard output is closed, printing ends the program.
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&evaluation)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.transcripts {
        write_transcripts(path, &evaluator, name, &episodes)?;
    }
    stdout::print(summary(&evaluation))?;
    report_failures(&evaluation, &episodes, progress)
}

/// Checks what would be found only after the work.
fn check(args: &EvalArgs) -> Result<()> {
    ensure!(
        args.questions != Some(0),
        "--questions is 0; give 1 or more, or leave it out"
    );
    let mut outputs = args.json.iter().chain(&args.transcripts);
    outputs.try_for_each(|path| out_file::check(path))
}

/// Opens the model to evaluate. Scripted policies use only its chat template.
fn model(policy: PolicyChoice, config: &RunConfig) -> Result<Model> {
    match (policy, &config.model.dir) {
        (PolicyChoice::Base, Some(dir)) => bail!(
            "--policy base is the embedded policy; leave --policy out to evaluate {}",
            dir.display()
        ),
        (PolicyChoice::Model, None) => bail!(
            "--policy model requires --model DIR: the folder runs/NAME/model of a run or any \
             Hugging Face folder; --policy random, oracle and base require no model"
        ),
        (PolicyChoice::Base, None) => Ok(policy::tiny::base()?),
        _ => setup::base_model(&config.model, config.seed, config.placement()),
    }
}

/// Prints how many episodes failed, with the first failure. Returns an error if all failed.
fn report_failures(
    evaluation: &Evaluation,
    episodes: &[EpisodeRecord],
    progress: &Progress,
) -> Result<()> {
    let Some(first) = episodes.iter().find(|episode| !episode.failure.is_empty()) else {
        return Ok(());
    };
    let failed = format!(
        "{} of {} episodes failed and count as wrong; {}: {}",
        evaluation.metrics.failed,
        evaluation.metrics.success.questions,
        first.question_id,
        first.failure
    );
    ensure!(
        evaluation.metrics.failed < evaluation.metrics.success.questions,
        failed
    );
    progress.say(&failed);
    Ok(())
}

/// Resolves the settings. The model of a run has the settings of the run, unless a preset or a file
/// is given.
pub(crate) fn settings_for_model(given: &ConfigArgs, progress: &Progress) -> Result<RunConfig> {
    let of_run = match &given.model {
        Some(model) if given.preset.is_none() && given.config.is_none() => {
            run_of(&model_source::find(model)?)?
        }
        _ => None,
    };
    match of_run {
        Some((path, run)) => {
            progress.say(&format!("settings: {}", path.display()));
            RunConfig::resolve_on(&run, given)
        }
        None => RunConfig::resolve(given),
    }
}

fn settings(args: &EvalArgs, progress: &Progress) -> Result<RunConfig> {
    let mut config = settings_for_model(&args.config, progress)?;
    let rollout = &mut config.learner.rollout;
    // Temperature 0 means greedy decoding, which the sampling settings do not express.
    if args.temperature != 0.0 {
        rollout.sampling.temperature = args.temperature;
    }
    rollout.shots = args.shots.unwrap_or(rollout.shots);
    config
        .validate()
        .context("--temperature or --shots cannot be used")?;
    Ok(config)
}

/// Returns the settings of the run that contains `model`: as its `model`, its `warm-start` or a
/// `checkpoints/step_N/hf`.
pub(crate) fn run_of(model: &Path) -> Result<Option<(PathBuf, RunConfig)>> {
    let Ok(model) = model.canonicalize() else {
        return Ok(None);
    };
    let mut settings = model
        .ancestors()
        .skip(1)
        .take(3)
        .map(|dir| dir.join("config.toml"));
    let Some(path) = settings.find(|path| path.is_file()) else {
        return Ok(None);
    };
    let config = RunConfig::read(&path).context(
        "the settings of the model's run cannot be used; choose others with --preset or --config",
    )?;
    Ok(Some((path, config)))
}

/// Formats an evaluation for display.
fn summary(evaluation: &Evaluation) -> String {
    let percent = |rate: f64| 100.0 * rate;
    let metrics = &evaluation.metrics;
    let SuccessRate {
        questions,
        correct,
        success_rate,
        wilson_low,
        wilson_high,
    } = metrics.success;
    let mut text = format!(
        "{correct} of {questions} correct: {:.1} % (95 % interval {:.1} to {:.1})\n",
        percent(success_rate),
        percent(wilson_low),
        percent(wilson_high)
    );
    text += &format!(
        "mean reward {:.3}, mean steps {:.2}, malformed calls {:.1} %\n",
        metrics.mean_reward,
        metrics.mean_steps,
        percent(metrics.malformed_rate)
    );
    for (title, counts) in [
        ("level", &metrics.by_level),
        ("database", &metrics.by_database),
    ] {
        text += &format!("by {title}:\n");
        for (name, CorrectCount { questions, correct }) in counts {
            let rate = percent(*correct as f64 / (*questions).max(1) as f64);
            text += &format!("  {name:<28} {correct:>5} / {questions:<5} {rate:>5.1} %\n");
        }
    }
    text
}

fn write_transcripts(
    path: &Path,
    evaluator: &Evaluator<'_>,
    name: PolicyName,
    episodes: &[EpisodeRecord],
) -> Result<()> {
    let context = || format!("cannot write {}", path.display());
    let mut file = File::create(path).with_context(context)?;
    for transcript in evaluator.transcripts(name, episodes) {
        writeln!(file, "{}", serde_json::to_string(&transcript)?).with_context(context)?;
    }
    Ok(())
}
