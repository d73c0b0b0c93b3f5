//! `sqlenv sft`: supervised training on demonstrations or on conversations of the user.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use policy::{Chat, Model};
use proto::v1::Segment;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    args::SftArgs,
    config::{self, RunConfig},
    evaluation::Evaluator,
    progress::Progress,
    setup::{self, Setup},
    shutdown::read_unless_interrupted,
    supervised::{ImitationTrainer, TrainingTotals, remove_checkpoints},
    warm_start,
};

/// The title of a training on conversations of the user, which also seeds random numbers.
const TRANSCRIPTS: &str = "imitating transcripts";

/// Trains, and writes the model folder.
pub(crate) async fn sft(
    args: &SftArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let config = config::resolve(&args.config)?;
    // Checked before the training, so that its result is not lost.
    Model::check_target(&args.out).context("--out")?;
    let checkpoints = beside(&args.out);
    let trained = match args.transcripts.is_empty() {
        true => on_demonstrations(&config, progress, &shutdown, &checkpoints).await?,
        false => {
            on_transcripts(
                &args.transcripts,
                &config,
                progress,
                &shutdown,
                &checkpoints,
            )
            .await?
        }
    };
    trained.save(&args.out)?;
    progress.print(&format!("wrote {}", args.out.display()));
    match args.transcripts.is_empty() {
        true => remove_checkpoints(&checkpoints, &warm_start::TITLES),
        false => remove_checkpoints(&checkpoints, &[TRANSCRIPTS]),
    }
    Ok(())
}

/// Returns the folder of checkpoints: the model folder's name with `.checkpoints`.
fn beside(out: &Path) -> PathBuf {
    let mut name = out.components().as_path().as_os_str().to_owned();
    name.push(".checkpoints");
    name.into()
}

/// Runs the warm start alone.
async fn on_demonstrations(
    config: &RunConfig,
    progress: &Progress,
    shutdown: &CancellationToken,
    checkpoints: &Path,
) -> Result<Model> {
    ensure!(
        config.warm_start.enabled,
        "warm_start.enabled is false, so there is nothing to train; give --preset scratch, \
         --model DIR, or your own conversations by --transcripts FILE"
    );
    let (setup, base) = Setup::open_with_base(config, progress, shutdown).await?;
    let evaluator = Evaluator {
        config,
        setup: &setup,
        progress,
        shutdown,
    };
    warm_start::warm_start(&evaluator, &base, None, checkpoints.to_owned()).await
}

/// Imitates conversations. Needs no data.
async fn on_transcripts(
    files: &[PathBuf],
    config: &RunConfig,
    progress: &Progress,
    shutdown: &CancellationToken,
    checkpoints: &Path,
) -> Result<Model> {
    let (run, files, shown) = (config.clone(), files.to_owned(), progress.clone());
    let open = move || {
        let base = setup::base_model(&run.model, run.seed, run.placement())?;
        let episodes = read(&files, &base, &shown)?;
        Ok((base, episodes))
    };
    let (base, episodes) = read_unless_interrupted(shutdown, open).await?;
    let trainer = ImitationTrainer {
        config,
        progress,
        shutdown,
        folder: None,
        checkpoints: checkpoints.to_owned(),
    };
    let settings = &config.warm_start.oracle;
    let before = TrainingTotals::default();
    let (trained, _) = trainer.imitate(TRANSCRIPTS, &base, &episodes, settings, before)?;
    Ok(trained)
}

/// Reads all conversations, and prints how many are used. Those that do not fit into the model's
/// context are left out: it would learn what it never uses.
fn read(files: &[PathBuf], model: &Model, progress: &Progress) -> Result<Vec<Segment>> {
    let most = model.config.max_positions;
    let mut episodes = Vec::new();
    let (mut wrong, mut long) = (0, 0);
    for file in files {
        let before = episodes.len() + wrong + long;
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read --transcripts {}", file.display()))?;
        // A byte order mark is not shown by editors.
        let lines = text.trim_start_matches('\u{feff}').lines().enumerate();
        for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let read = conversation(&model.chat, line);
            match read.map_err(|fault| located(file, number, &fault))? {
                Some(episode) if episode.tokens.len() > most => long += 1,
                Some(episode) => episodes.push(episode),
                None => wrong += 1,
            }
        }
        ensure!(
            episodes.len() + wrong + long > before,
            "--transcripts {} has no conversation; give one as a line of JSON, or leave the file out",
            file.display()
        );
    }
    let left_out = left_out(wrong, long, most);
    ensure!(
        !episodes.is_empty(),
        "no conversation can be imitated; left out: {left_out}"
    );
    let tokens: usize = episodes.iter().map(|it| it.tokens.len()).sum();
    let learned = episodes.iter().flat_map(|it| &it.mask);
    let learned = learned.filter(|&&mask| mask == 1).count();
    progress.print(&format!(
        "{} conversations of {tokens} tokens, {learned} of the assistant; left out: {left_out}",
        episodes.len()
    ));
    Ok(episodes)
}

/// Says how many conversations are left out and why.
fn left_out(wrong: usize, long: usize, most: usize) -> String {
    let reasons = [
        (wrong, "with `correct: false`".to_owned()),
        (
            long,
            format!("longer than the model's context of {most} tokens"),
        ),
    ];
    let reasons = reasons.iter().filter(|(count, _)| *count > 0);
    let reasons: Vec<String> = reasons
        .map(|(count, why)| format!("{count} {why}"))
        .collect();
    match reasons.is_empty() {
        true => "none".to_owned(),
        false => reasons.join(", "),
    }
}

fn conversation(chat: &Chat, line: &str) -> Result<Option<Segment>, String> {
    // The position in the message is that in the line.
    let line: Value = serde_json::from_str(line).map_err(|fault| {
        let fault = fault.to_string();
        let problem = fault.split(" at line").next().unwrap_or_default();
        format!("is no JSON ({problem}); give one conversation on each line")
    })?;
    baselines::demonstration_of(chat, &line)
}

fn located(file: &Path, line: usize, fault: &str) -> anyhow::Error {
    anyhow!("{}:{}: {fault}", file.display(), line + 1)
}
