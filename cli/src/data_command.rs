//! `sqlenv data`: builds, imports, checks and describes questions, and trains the tokenizer of the
//! embedded policy on them.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context as _, Result};
use baselines::{Demonstrations, Demonstrator, DemonstratorMix, ScriptedPolicy, demonstrate};
use data::{Dataset, ProceduralData, WordShare};
use tokio_util::sync::CancellationToken;

use crate::{
    args::{ConfigArgs, DataCommand, Preset},
    config::RunConfig,
    data_check, data_import, draft_command,
    evaluation::Evaluator,
    out_file,
    progress::Progress,
    setup::{self, Setup},
    stdout,
};

/// Runs a data command.
pub(crate) async fn run(command: DataCommand, progress: &Progress) -> Result<()> {
    match command {
        DataCommand::Build { out, seed } => {
            setup::build_own(&out, seed, progress)?;
            stdout::print(data::stats(&Dataset::open(&out, None)?))?;
        }
        DataCommand::Import(args) => data_import::import(&args, progress)?,
        DataCommand::Check(args) => data_check::check(&args)?,
        DataCommand::Stats(args) => data_check::stats(&args)?,
        DataCommand::List { folder, questions } => data_check::list(&folder, questions)?,
        DataCommand::Procedural {
            out,
            seed,
            databases,
            questions,
            held_out,
            declared_percent,
            messy_percent,
        } => {
            let words = if held_out {
                WordShare::HeldOut
            } else {
                WordShare::Training
            };
            let wanted = ProceduralData {
                seed,
                first: 0,
                databases,
                questions,
                words,
                declared_percent,
                messy_percent,
                is_simple: false,
            };
            let stage = progress.stage("building data", databases as u64, "databases");
            data::build_procedural(&out, &wanted, &mut |built| stage.set(built.done as u64))?;
            stage.finish(&format!("in {}", out.display()));
            stdout::print(data::stats(&Dataset::open(&out, None)?))?;
        }
        DataCommand::Draft(args) => draft_command::run(args, progress)?,
        DataCommand::Tokenizer { data, out } => tokenizer(&data, &out, progress).await?,
    }
    Ok(())
}

/// Trains the tokenizer on demonstrations of the train split, in the form that the policy sees.
async fn tokenizer(data: &Path, out: &Path, progress: &Progress) -> Result<()> {
    out_file::check(out)?;
    let mut config = RunConfig::resolve(&ConfigArgs {
        preset: Some(Preset::Tiny),
        data: Some(data.to_owned()),
        ..ConfigArgs::default()
    })?;
    // No episode is too long, so the present tokenizer has no effect on the texts.
    config.learner.rollout.max_context_tokens = u32::MAX / 2;
    let setup = Setup::open(&config, progress)?;
    let evaluator = Evaluator {
        config: &config,
        setup: &setup,
        progress,
        shutdown: &CancellationToken::new(),
    };
    let chat = Arc::new(policy::tiny::model(0)?.chat);
    let demonstrator = ScriptedPolicy::new(
        Arc::clone(&chat),
        Demonstrator::new(Arc::clone(&setup.solutions), DemonstratorMix::mixed()),
    );
    let question_ids: Vec<String> = setup
        .dataset
        .split("train")
        .map(|question| question.question_id.clone())
        .collect();
    let stage = progress.stage("demonstrations", question_ids.len() as u64, "episodes");
    let wanted = Demonstrations {
        question_ids: &question_ids,
        seed: 0,
        concurrency: config.evaluation.concurrency,
    };
    let episodes = demonstrate(
        &[&demonstrator],
        &evaluator.episode_settings(&chat),
        &wanted,
        |done| {
            stage.set(done as u64);
        },
    )
    .await;
    stage.finish("");
    let texts: Vec<String> = episodes
        .iter()
        .flat_map(|episode| &episode.segments)
        .map(|segment| chat.decode(&segment.tokens))
        .collect::<Result<_, _>>()?;
    let bytes = policy::tiny::train_tokenizer(texts.into_iter(), policy::tiny::VOCABULARY_SIZE)?;
    fs::write(out, bytes).with_context(|| format!("cannot write {}", out.display()))?;
    progress.say(&format!("wrote {}", out.display()));
    Ok(())
}
