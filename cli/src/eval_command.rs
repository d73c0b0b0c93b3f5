//! `sqlenv eval`: one policy on the questions of one split.

use std::{fs::File, io::Write as _, path::Path, sync::Arc};

use actor::{EpisodeRecord, Policy};
use anyhow::{Context as _, Result, ensure};
use proto::{EnvClient, Transport, v1::Question};

use crate::{
    args::{EvalArgs, PolicyName},
    config::RunConfig,
    evaluation::{Candidate, Examiner, shuffled},
    progress::Progress,
    run::{self, Mode},
    setup::{self, Setup},
};

/// Evaluates and prints the result.
///
/// # Errors
/// The data, the model or a file cannot be used, or the split has no questions.
pub async fn eval(args: &EvalArgs, progress: &Progress) -> Result<()> {
    let mut config = RunConfig::resolve(&args.config)?;
    config.learner.rollout.sampling.temperature = args.temperature;
    config.learner.rollout.shots = args.shots;
    let mut setup = Setup::open(&config, progress)?;
    if let Some(address) = &args.env {
        setup.remote = Some(EnvClient::new(Transport::dial(address).context("--env")?));
    }
    let examiner = Examiner {
        config: &config,
        setup: &setup,
        progress,
    };
    let questions = questions(args, &setup)?;
    let model = setup::base_model(&config)?;
    let chat = Arc::new(model.chat.clone());
    let mode = if args.temperature == 0.0 {
        Mode::Greedy
    } else {
        Mode::Sampled
    };
    let (name, policy): (run::PolicyName, Box<dyn Policy>) = match args.policy {
        PolicyName::Random => (
            run::PolicyName::Random,
            examiner.scripted(run::PolicyName::Random, &chat),
        ),
        PolicyName::Oracle => (
            run::PolicyName::Oracle,
            examiner.scripted(run::PolicyName::Oracle, &chat),
        ),
        PolicyName::Model => {
            let engine = examiner.engine(&model, 0)?;
            (
                run::PolicyName::Base,
                Box::new(examiner.model(&engine, mode)),
            )
        }
    };
    let candidate = Candidate {
        policy: name,
        policy_version: 0,
        step: 0,
        mode,
    };
    let (evaluation, episodes) = examiner
        .examine(candidate, &*policy, &chat, &args.split, &questions)
        .await;
    print_evaluation(&evaluation, &episodes);
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&evaluation)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.transcripts {
        write_transcripts(path, &examiner, name, &episodes)?;
    }
    Ok(())
}

fn questions(args: &EvalArgs, setup: &Setup) -> Result<Vec<Question>> {
    let mut questions = shuffled(setup, &args.split);
    ensure!(
        !questions.is_empty(),
        "split {:?} has no questions; --split takes one of {}",
        args.split,
        setup.dataset.split_names().join(", ")
    );
    questions.truncate(args.questions.unwrap_or(usize::MAX));
    Ok(questions)
}

fn print_evaluation(evaluation: &run::Evaluation, episodes: &[EpisodeRecord]) {
    let percent = |rate: f64| 100.0 * rate;
    println!(
        "{} of {} correct: {:.1} % (95 % interval {:.1} to {:.1})",
        evaluation.correct,
        evaluation.questions,
        percent(evaluation.success_rate),
        percent(evaluation.wilson_low),
        percent(evaluation.wilson_high)
    );
    println!(
        "mean reward {:.3}, mean steps {:.2}, malformed calls {:.1} %",
        evaluation.mean_reward,
        evaluation.mean_steps,
        percent(evaluation.malformed_rate)
    );
    let broken_off = episodes
        .iter()
        .filter(|episode| !episode.failure.is_empty())
        .count();
    if broken_off > 0 {
        println!("{broken_off} episodes broke off and count as wrong");
    }
    for (title, tallies) in [
        ("level", &evaluation.by_level),
        ("database", &evaluation.by_database),
    ] {
        println!("by {title}:");
        for (name, tally) in tallies {
            let rate = tally.correct as f64 / tally.questions.max(1) as f64;
            println!(
                "  {name:<28} {:>5} / {:<5} {:>5.1} %",
                tally.correct,
                tally.questions,
                percent(rate)
            );
        }
    }
}

fn write_transcripts(
    path: &Path,
    examiner: &Examiner<'_>,
    name: run::PolicyName,
    episodes: &[EpisodeRecord],
) -> Result<()> {
    let context = || format!("cannot write {}", path.display());
    let mut file = File::create(path).with_context(context)?;
    for transcript in examiner.transcripts(name, episodes) {
        writeln!(file, "{}", serde_json::to_string(&transcript)?).with_context(context)?;
    }
    Ok(())
}
