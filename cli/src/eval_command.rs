//! `sqlenv eval`: evaluates one policy on the questions of one split.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use actor::{EpisodeRecord, Policy};
use anyhow::{Context as _, Result, bail};
use policy::Model;
use report::{CorrectCount, DecodingMode, Evaluation, PolicyName, SETTINGS, SuccessRate};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{ConfigArgs, EvalArgs, PolicyChoice},
    config::{self, RoleSettings as _, RunConfig, WrongSettings},
    evaluation::{EvaluatedPolicy, Evaluator, failure_text, table_questions},
    model_source, out_file,
    progress::Progress,
    run_info,
    setup::{self, Setup},
    stdout,
};

/// Evaluates and prints the result.
pub(crate) async fn eval(args: &EvalArgs, progress: &Progress) -> Result<()> {
    // What would be found only after the work.
    out_file::check_two([
        ("--json", args.json.as_deref()),
        ("--transcripts", args.transcripts.as_deref()),
    ])?;
    let config = settings(args, progress)?;
    let model = model(args.policy, &config)?;
    let mut setup = Setup::open(&config, progress)?;
    report_other_data(args, &config, &setup, progress)?;
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
    let engines = match name.is_scripted() {
        true => Vec::new(),
        false => evaluator.engines(&model, 0)?,
    };
    let policies = evaluator.policies(name, &engines, &chat, mode)?;
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
        out_file::write_json(path, &evaluation)?;
    }
    if let Some(path) = &args.transcripts {
        out_file::write_json_lines(path, evaluator.transcripts(name, &episodes))?;
    }
    stdout::print(summary(&evaluation))?;
    check_failures(&evaluation, &episodes)
}

/// Opens the model to evaluate. Scripted policies use only its chat template.
fn model(policy: PolicyChoice, config: &RunConfig) -> Result<Model> {
    match policy {
        PolicyChoice::Base => setup::embedded_base(&config.model),
        PolicyChoice::Model => setup::named_model(config),
        PolicyChoice::Random | PolicyChoice::Oracle => {
            setup::base_model(&config.model, config.seed, config.placement())
        }
    }
}

/// Returns an error if every episode failed.
fn check_failures(evaluation: &Evaluation, episodes: &[EpisodeRecord]) -> Result<()> {
    let metrics = &evaluation.metrics;
    match failure_text(metrics, episodes) {
        Some(failures) if metrics.failed == metrics.success.questions => bail!(failures),
        _ => Ok(()),
    }
}

/// Resolves the settings. The model of a run has the settings of the run, unless a preset or a file
/// is given.
pub(crate) fn settings_for_model(given: &ConfigArgs, progress: &Progress) -> Result<RunConfig> {
    match run_of_settings(given)? {
        Some((path, run)) => {
            progress.print(&format!("settings: {}", path.display()));
            RunConfig::resolve_on(&run, given)
        }
        None => config::resolve(given),
    }
}

/// Returns the run that [`settings_for_model`] takes the settings of.
fn run_of_settings(given: &ConfigArgs) -> Result<Option<(PathBuf, RunConfig)>> {
    match &given.model {
        Some(model) if given.preset.is_none() && given.config.is_none() => {
            run_of(&model_source::find(model)?)
        }
        _ => Ok(None),
    }
}

/// Says so if the folder that the model's run was trained on has other data now.
fn report_other_data(
    args: &EvalArgs,
    config: &RunConfig,
    setup: &Setup,
    progress: &Progress,
) -> Result<()> {
    if let Some((path, trained)) = run_of_settings(&args.config)?
        && let Some(run) = path.parent()
    {
        let (name, hash) = (run.display().to_string(), run_info::trained_data(run));
        let hash = hash.as_deref();
        let warning = run_info::other_data(&name, hash, &trained.data, &config.data, setup);
        if let Some(warning) = warning {
            progress.print(&warning);
        }
    }
    Ok(())
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
        .map_err(WrongSettings)
        .context("--temperature cannot be used")?;
    Ok(config)
}

/// Returns the settings of the run that contains `model`, and their file. The model is its `model`,
/// its `warm-start` or a `checkpoints/step_N/hf`.
pub(crate) fn run_of(model: &Path) -> Result<Option<(PathBuf, RunConfig)>> {
    let Ok(model) = model.canonicalize() else {
        return Ok(None);
    };
    let mut above = model.ancestors().skip(1).take(3);
    let Some(run) = above.find(|dir| model_source::is_run(dir)) else {
        return Ok(None);
    };
    let path = run.join(SETTINGS);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settings_file_above_a_model_need_not_be_that_of_its_run() {
        let place = tempfile::tempdir().unwrap();
        let model = place.path().join("models/mine");
        std::fs::create_dir_all(&model).unwrap();
        let settings = place.path().join("config.toml");
        std::fs::write(&settings, "title = \"of another tool\"").unwrap();
        assert!(run_of(&model).unwrap().is_none());
        std::fs::write(&settings, "seed = 5").unwrap();
        std::fs::write(place.path().join("run.json"), "{}").unwrap();
        let (path, config) = run_of(&model).unwrap().unwrap();
        assert_eq!(path, settings.canonicalize().unwrap());
        assert_eq!(config.seed, 5);
    }
}
