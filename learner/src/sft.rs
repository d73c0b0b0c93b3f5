//! Supervised training on demonstrations: the warm start.
//!
//! Invariant: the order of the episodes, the micro-batches and so the weights are a function of
//! episodes, settings and seed. Each epoch shuffles the episodes, sorts them by length inside
//! blocks of batches, so that a batch holds similar lengths, and shuffles the batches of a block.
//! Budgets are tokens, never seconds, and this file reads no clock: a caller that wants a rate
//! divides [`SftProgress::tokens`] by its own time.

mod trainer;

use std::{ops::ControlFlow, path::Path};

use policy::{Model, Weights};
use proto::v1::Segment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use smart_default::SmartDefault;

use crate::{
    bounds::{count, range},
    checkpoint,
    config::{MAX_TOKENS, RunArguments},
    error::{LearnerError, Result},
    optimizer::OptimizerSettings,
    schedule::{ScheduleKind, ScheduleSettings},
};

pub use trainer::SftTrainer;
use trainer::WeightedEpisodes;

/// Settings of a supervised training. The defaults suit pretrained models: assistant tokens only
/// and a small rate (TRL's `SFTConfig`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct SftConfig {
    /// Tokens after which training stops, at the end of a batch; 0: one epoch, unless the section
    /// says otherwise.
    pub budget_tokens: u64,
    /// Episodes per optimizer update.
    #[default(8)]
    pub batch_episodes: usize,
    /// Batches per block; episodes are sorted by length inside a block, so that a batch holds
    /// similar lengths.
    #[default(16)]
    pub block_batches: usize,
    /// Weight of the tokens that the assistant did not write; 0: only assistant tokens count.
    pub context_weight: f64,
    /// Largest number of tokens in a forward pass; a longer episode has a pass of its own.
    #[default(4096)]
    pub micro_batch_tokens: usize,
    /// As `learner.gradient_checkpointing`.
    pub gradient_checkpointing: bool,
    /// AdamW and gradient clipping.
    #[default(OptimizerSettings { learning_rate: 2e-5, ..OptimizerSettings::default() })]
    pub optimizer: OptimizerSettings,
    /// The learning rate over time.
    #[default(ScheduleSettings { kind: ScheduleKind::Linear, ..ScheduleSettings::default() })]
    pub schedule: ScheduleSettings,
}

impl SftConfig {
    /// Checks every number; the error names the field and what it may be.
    pub fn validate(&self) -> Result<()> {
        count("batch_episodes", self.batch_episodes as u64, 1 << 20)?;
        count("block_batches", self.block_batches as u64, 1 << 20)?;
        let pass_tokens = self.micro_batch_tokens as u64;
        count("micro_batch_tokens", pass_tokens, MAX_TOKENS)?;
        range("context_weight", self.context_weight, 0.0, 1.0)?;
        self.optimizer.validate()?;
        self.schedule.validate()
    }
}

/// The state of a training after an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SftProgress {
    /// Updates made.
    pub step: u64,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// Tokens of this update.
    pub batch_tokens: u64,
    /// Mean negative log-likelihood, in nats, of the batch's assistant tokens before the update.
    pub loss: f64,
    /// Gradient norm before clipping.
    pub grad_norm: f64,
    /// Learning rate of the update.
    pub learning_rate: f64,
}

/// The result of a training.
#[derive(Clone, Debug)]
pub struct SftOutcome {
    /// The weights.
    pub weights: Weights,
    /// Updates made.
    pub steps: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// False if `progress` ended the training early.
    pub finished: bool,
}

/// What a training does after an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SftNext {
    /// Makes the next update.
    Continue,
    /// Writes a checkpoint, if the training has a folder for them, and continues.
    Checkpoint,
    /// Writes a checkpoint and ends.
    Stop,
    /// Ends without a checkpoint: the update failed to be recorded.
    Abort,
}

/// Trains a copy of `model`'s weights on `episodes`; tokens of mask 1 are the assistant's. Calls
/// `progress` after every update.
///
/// With a folder for `checkpoints`, the training continues from the newest one. The weights are the
/// same whether it was interrupted or not. At its end there is a checkpoint, too.
///
/// # Errors
/// No episode has a token to learn, a setting cannot be used, a pass failed or training diverged; a
/// checkpoint is of another training, or cannot be written.
pub fn train(
    model: &Model,
    episodes: &[Segment],
    config: &SftConfig,
    arguments: RunArguments,
    checkpoints: Option<&Path>,
    progress: &mut dyn FnMut(SftProgress) -> SftNext,
) -> Result<SftOutcome> {
    let mut trainer = SftTrainer::new(model, config, arguments)?;
    let fingerprint = fingerprint(model, episodes, config, arguments)?;
    if let Some(folder) = checkpoints {
        checkpoint::check_writable(folder)?;
        resume(&mut trainer, folder, &fingerprint)?;
    }
    let episodes = WeightedEpisodes::new(episodes, config.context_weight)?;
    let batches = trainer.batches(&episodes);
    let planned = batches.len() as u64;
    let finished = loop {
        let left = &batches[batches.len().min(trainer.steps() as usize)..];
        let mut next = SftNext::Continue;
        let finished = trainer.run(&episodes, left, planned, &mut |state| {
            next = progress(state);
            match next {
                SftNext::Continue => ControlFlow::Continue(()),
                SftNext::Checkpoint | SftNext::Stop | SftNext::Abort => ControlFlow::Break(()),
            }
        })?;
        if next == SftNext::Abort {
            break false;
        }
        if let Some(folder) = checkpoints.filter(|_| !left.is_empty()) {
            trainer.save_as(folder, trainer.steps(), model, &fingerprint)?;
        }
        if finished || next == SftNext::Stop {
            break finished;
        }
    };
    Ok(SftOutcome {
        weights: trainer.weights(),
        steps: trainer.steps(),
        tokens: trainer.tokens(),
        finished,
    })
}

/// Continues from the newest checkpoint, if there is one.
fn resume(trainer: &mut SftTrainer<'_>, folder: &Path, fingerprint: &str) -> Result<()> {
    let Some(newest) = checkpoint::load_latest(folder)? else {
        return Ok(());
    };
    if newest.state.fingerprint != fingerprint {
        let reason = "is of a training with other settings, episodes or weights; give the same, or \
                      remove the folder";
        return Err(LearnerError::broken(folder, reason.to_owned()));
    }
    trainer.restore(&newest)
}

/// Identifies what a training starts from, and what its weights depend on.
fn fingerprint(
    model: &Model,
    episodes: &[Segment],
    config: &SftConfig,
    arguments: RunArguments,
) -> Result<String> {
    let mut hash = Sha256::new();
    let settings = SftConfig {
        // It saves memory and changes no weight.
        gradient_checkpointing: false,
        ..config.clone()
    };
    hash.update(serde_json::to_vec(&settings).expect("settings serialise: this is a bug"));
    hash.update(arguments.seed.to_le_bytes());
    hash.update(format!("{:?}", model.config));
    // With the dtype of each tensor.
    hash.update(model.weights.to_bytes()?);
    for episode in episodes {
        hash.update((episode.tokens.len() as u64).to_le_bytes());
        episode
            .tokens
            .iter()
            .for_each(|token| hash.update(token.to_le_bytes()));
        hash.update(&episode.mask);
    }
    Ok(hex::encode(hash.finalize()))
}
