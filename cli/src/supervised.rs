//! Supervised training on demonstrations: the stages of the warm start, and the imitation of the
//! oracle that GRPO is compared with.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, bail};
use candle_core::Device;
use learner::sft::{self, SftConfig, SftNext, SftProgress};
use policy::{Model, durable, random::derive_seed};
use proto::v1::Segment;
use report::{LearnerStepRecord, RunFolder, TrainingStage};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::now, config::RunConfig, evaluation::Evaluator, progress::Progress, shutdown::Interrupted,
};

/// The time between two checkpoints: the most that an interrupted training repeats.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(300);

/// The steps and tokens of the training so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct TrainingTotals {
    steps: u64,
    tokens: u64,
}

/// Trains models on demonstrations.
pub(crate) struct ImitationTrainer<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) progress: &'a Progress,
    pub(crate) shutdown: &'a CancellationToken,
    /// Where steps are recorded.
    pub(crate) folder: Option<&'a RunFolder>,
    /// Where each training has a folder of checkpoints, from which it continues.
    pub(crate) checkpoints: PathBuf,
}

impl<'a> ImitationTrainer<'a> {
    /// Trains with the settings of evaluations, and records nothing.
    pub(crate) fn of(evaluator: &Evaluator<'a>, checkpoints: PathBuf) -> Self {
        Self {
            config: evaluator.config,
            progress: evaluator.progress,
            shutdown: evaluator.shutdown,
            folder: None,
            checkpoints,
        }
    }

    /// Trains on demonstrations, and returns the model and the totals up to the end of this
    /// training. Recorded steps are counted from `before`. `title` is the label of the random seed,
    /// too.
    pub(crate) fn imitate(
        &self,
        title: &str,
        start: &Model,
        episodes: &[Segment],
        config: &SftConfig,
        before: TrainingTotals,
    ) -> Result<(Model, TrainingTotals)> {
        let tokens: usize = episodes.iter().map(|it| it.tokens.len()).sum();
        let budget = match config.budget_tokens {
            0 => tokens as u64,
            budget => budget,
        };
        let stage = self.progress.stage(title, budget, "tokens");
        let mut failure = None;
        let run = self.config;
        let arguments = run.arguments(derive_seed(run.seed, title));
        let (device, dtype) = run.placement().open(&start.config)?;
        let placed = start.to(&device, dtype)?;
        let checkpoints = self.checkpoints.join(slug(title));
        let (mut saved, mut is_first) = (now(), true);
        let mut progress = |state: SftProgress| {
            if std::mem::take(&mut is_first) {
                stage.continue_from(state.tokens - state.batch_tokens);
            }
            stage.note(&format!("loss {:.3}", state.loss));
            stage.set(state.tokens.min(budget));
            failure = self.record(before, &state).err();
            if failure.is_some() {
                SftNext::Abort
            } else if self.shutdown.is_cancelled() {
                SftNext::Stop
            } else if saved.elapsed() >= CHECKPOINT_EVERY {
                saved = now();
                SftNext::Checkpoint
            } else {
                SftNext::Continue
            }
        };
        let folder = Some(checkpoints.as_path());
        let train = || sft::train(&placed, episodes, config, arguments, folder, &mut progress);
        let outcome = tokio::task::block_in_place(train);
        if let Some(error) = failure {
            return Err(error);
        }
        let outcome = outcome?;
        if !outcome.finished {
            bail!(Interrupted);
        }
        stage.finish("");
        let model = Model {
            weights: outcome.weights.to(&Device::Cpu, dtype)?,
            ..start.clone()
        };
        let totals = TrainingTotals {
            steps: before.steps + outcome.steps,
            tokens: before.tokens + outcome.tokens,
        };
        Ok((model, totals))
    }

    fn record(&self, before: TrainingTotals, state: &SftProgress) -> Result<()> {
        let Some(folder) = self.folder else {
            return Ok(());
        };
        Ok(folder.append_step(&step_record(before, state, state.loss))?)
    }
}

/// Returns the record of a step of supervised training, or of several with a mean `loss`.
pub(crate) fn step_record(
    before: TrainingTotals,
    state: &SftProgress,
    loss: f64,
) -> LearnerStepRecord {
    let metrics = [
        ("loss", loss),
        ("grad_norm", state.grad_norm),
        ("learning_rate", state.learning_rate),
        ("num_tokens", (before.tokens + state.tokens) as f64),
    ];
    LearnerStepRecord {
        step: before.steps + state.step,
        stage: TrainingStage::Sft,
        policy_version: 0,
        metrics: metrics.map(|(name, value)| (name.to_owned(), value)).into(),
    }
}

/// Removes the checkpoints of the trainings with these titles, whose model is saved, and the folder
/// if nothing else is in it. What cannot be removed is only reported, since the work is done.
pub(crate) fn remove_checkpoints(folder: &Path, titles: &[&str]) {
    for title in titles {
        let checkpoints = folder.join(slug(title));
        if let Err(fault) = durable::remove_folder(&checkpoints) {
            let folder = checkpoints.display();
            tracing::warn!(%folder, %fault, "checkpoints of a finished training were not removed");
        }
    }
    // It stays if it holds anything else.
    let _ = std::fs::remove_dir(folder);
}

/// Returns a title as the name of a folder.
fn slug(title: &str) -> String {
    let words = title.split(|it: char| !it.is_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}
