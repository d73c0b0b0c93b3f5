//! `sqlenv data`: builds, imports, checks and describes questions, and trains the tokenizer of the
//! embedded policy on them.

mod check;
mod draft;
mod import;

use std::{ops::ControlFlow, path::Path, sync::Arc};

use anyhow::Result;
use baselines::{Demonstrations, Demonstrator, DemonstratorMix, ScriptedPolicy, demonstrate};
use data::{Dataset, ProceduralData, WordShare};
use policy::embedded;

use crate::{
    args::{ConfigArgs, DataCommand, Preset},
    config::{self, RunConfig},
    evaluation::episode_settings,
    out_file,
    progress::Progress,
    setup::{self, Setup},
    stdout,
};

pub(crate) use self::{check::DataFolderArgs, draft::DraftArgs, import::DataImportArgs};

/// Runs a data command.
pub(crate) async fn run(command: DataCommand, progress: &Progress) -> Result<()> {
    match command {
        DataCommand::Build { out, seed } => {
            setup::build_own(&out, seed, progress)?;
            stdout::print(data::stats(&Dataset::open(&out, None)?))?;
        }
        DataCommand::Import(args) => import::import(&args, progress)?,
        DataCommand::Check(args) => check::check(&args)?,
        DataCommand::Stats(args) => check::stats(&args)?,
        DataCommand::List { folder, questions } => check::list(&folder, questions)?,
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
            data::build_procedural(&out, &wanted, &mut |done, _| {
                stage.set(done as u64);
                ControlFlow::Continue(())
            })?;
            stage.finish(&format!("in {}", out.display()));
            stdout::print(data::stats(&Dataset::open(&out, None)?))?;
        }
        DataCommand::Draft(args) => draft::run(args, progress)?,
        DataCommand::Tokenizer { data, out } => tokenizer(&data, &out, progress).await?,
    }
    Ok(())
}

/// Trains the tokenizer on demonstrations of the train split, in the form that the policy sees.
async fn tokenizer(data: &Path, out: &Path, progress: &Progress) -> Result<()> {
    out_file::check(out)?;
    let mut config: RunConfig = config::resolve(&ConfigArgs {
        preset: Some(Preset::Tiny),
        data: Some(data.to_owned()),
        ..ConfigArgs::default()
    })?;
    // No episode is too long, so the present tokenizer has no effect on the texts.
    config.learner.rollout.max_context_tokens = u32::MAX / 2;
    let setup = Setup::open(&config, progress)?;
    let chat = Arc::new(embedded::model(0)?.chat);
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
    let rollout = &config.learner.rollout;
    let settings = episode_settings(&setup.env_client(), &chat, rollout, config.actor.env_retry);
    let on_done = |done| stage.set(done as u64);
    let episodes = demonstrate(&[&demonstrator], &settings, &wanted, on_done).await;
    stage.finish("");
    let texts: Vec<String> = episodes
        .iter()
        .flat_map(|episode| &episode.segments)
        .map(|segment| chat.decode(&segment.tokens))
        .collect::<Result<_, _>>()?;
    let bytes = embedded::train_tokenizer(texts.into_iter(), embedded::VOCABULARY_SIZE)?;
    out_file::write(out, bytes)?;
    progress.print(&format!("wrote {}", out.display()));
    Ok(())
}
