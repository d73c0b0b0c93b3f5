//! Supervised training on demonstrations: the warm start.
//!
//! Invariant: the order of the episodes, the micro-batches and so the weights are a function of
//! episodes, settings and seed. Each epoch shuffles the episodes, sorts them by length inside
//! blocks of batches, so that a batch holds similar lengths, and shuffles the batches of a block.
//! Budgets are tokens, never seconds, and this file reads no clock: a caller that wants a rate
//! divides [`SftProgress::tokens`] by its own time.

use std::{collections::BTreeMap, ops::ControlFlow, path::Path};

use policy::{Model, Weights};
use proto::v1::Segment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    batch::{Prefixes, Sample, micro_batches},
    bounds::{at_least_one, range},
    checkpoint::{self, Checkpoint, CheckpointState},
    config::RunArguments,
    error::{LearnerError, Result},
    network::{LossDerivatives, Network, PassSettings, Scores},
    optimizer::OptimizerSettings,
    schedule::{ScheduleKind, ScheduleSettings},
    scheduler::{epoch_rng, shuffled},
};

const KEPT_CHECKPOINTS: usize = 2;

/// Settings of a supervised training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SftConfig {
    /// Tokens after which training stops, at the end of a batch; 0: one epoch.
    pub budget_tokens: u64,
    /// Episodes per optimizer update.
    pub batch_episodes: usize,
    /// Batches per block; episodes are sorted by length inside a block, so that a batch holds
    /// similar lengths.
    pub block_batches: usize,
    /// Weight of the tokens that the assistant did not write; 0: only assistant tokens count.
    pub context_weight: f64,
    /// Largest number of tokens in a forward pass; a longer episode has a pass of its own.
    pub micro_batch_tokens: usize,
    /// As `learner.gradient_checkpointing`.
    pub gradient_checkpointing: bool,
    /// AdamW and gradient clipping.
    pub optimizer: OptimizerSettings,
    /// The learning rate over time.
    pub schedule: ScheduleSettings,
}

impl Default for SftConfig {
    /// Suits pretrained models: assistant tokens only and a small rate (TRL's `SFTConfig`).
    fn default() -> Self {
        Self {
            budget_tokens: 0,
            batch_episodes: 8,
            block_batches: 16,
            context_weight: 0.0,
            micro_batch_tokens: 4096,
            gradient_checkpointing: false,
            optimizer: OptimizerSettings {
                learning_rate: 2e-5,
                ..OptimizerSettings::default()
            },
            schedule: ScheduleSettings {
                kind: ScheduleKind::Linear,
                ..ScheduleSettings::default()
            },
        }
    }
}

impl SftConfig {
    /// Checks every number; the error names the field and what it may be.
    pub fn validate(&self) -> Result<()> {
        at_least_one("sft.batch_episodes", self.batch_episodes as u64)?;
        at_least_one("sft.block_batches", self.block_batches as u64)?;
        at_least_one("sft.micro_batch_tokens", self.micro_batch_tokens as u64)?;
        range("sft.context_weight", self.context_weight, 0.0, 1.0)?;
        self.optimizer.validate()?;
        self.schedule.validate()
    }
}

/// The state of a training after an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SftProgress {
    /// Updates made.
    pub step: u64,
    /// Updates planned.
    pub steps: u64,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// Tokens planned.
    pub budget_tokens: u64,
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

/// Trains a copy of `model`'s weights on `episodes`; tokens of mask 1 are the assistant's. Calls
/// `progress` after every update, which may end the training.
///
/// # Errors
/// No episode has a token to learn, a setting cannot be used, a pass failed or training diverged.
pub fn train(
    model: &Model,
    episodes: &[Segment],
    config: &SftConfig,
    arguments: RunArguments,
    progress: &mut dyn FnMut(SftProgress) -> ControlFlow<()>,
) -> Result<SftOutcome> {
    let mut trainer = SftTrainer::new(model, config, arguments)?;
    let episodes = WeightedEpisodes::new(episodes, config.context_weight)?;
    let batches = trainer.batches(&episodes);
    let planned = PlannedTraining {
        steps: batches.len() as u64,
        tokens: batches.iter().map(|batch| episodes.tokens(batch)).sum(),
    };
    let finished = trainer.run(&episodes, &batches, planned, progress)?;
    Ok(SftOutcome {
        weights: trainer.network.weights(),
        steps: trainer.network.optimizer.updates,
        tokens: trainer.tokens,
        finished,
    })
}

/// How long a whole training is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedTraining {
    /// Updates, over which the learning rate follows its schedule.
    pub steps: u64,
    /// Tokens, for display.
    pub tokens: u64,
}

/// A supervised training in progress. A training on more episodes than fit into memory goes over
/// one shard of them after the other.
pub struct SftTrainer<'a> {
    network: Network,
    config: &'a SftConfig,
    arguments: RunArguments,
    tokens: u64,
}

impl<'a> SftTrainer<'a> {
    /// Returns a trainer that starts from a copy of the model's weights.
    ///
    /// # Errors
    /// A setting cannot be used.
    pub fn new(model: &Model, config: &'a SftConfig, arguments: RunArguments) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            network: Network::new(&model.config, &model.weights, config.optimizer.clone())?,
            config,
            arguments,
            tokens: 0,
        })
    }

    /// Returns the weights.
    pub fn weights(&self) -> Weights {
        self.network.weights()
    }

    /// Returns the number of updates made.
    pub fn steps(&self) -> u64 {
        self.network.optimizer.updates
    }

    /// Returns the number of tokens trained on.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Trains on the episodes of a shard once, in an order that depends on the seed and on
    /// `shard`. Returns false if `progress` ended the training before the last of them.
    ///
    /// # Errors
    /// No episode has a token to learn, a pass failed or training diverged.
    pub fn train_shard(
        &mut self,
        shard: u64,
        episodes: &[Segment],
        planned: PlannedTraining,
        progress: &mut dyn FnMut(SftProgress) -> ControlFlow<()>,
    ) -> Result<bool> {
        let episodes = WeightedEpisodes::new(episodes, self.config.context_weight)?;
        let batches = self.epoch_batches(&episodes, shard);
        self.run(&episodes, &batches, planned, progress)
    }

    /// Writes a checkpoint of the training after `shards` shards. `model` gets the weights.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn save(&self, folder: &Path, shards: u64, fingerprint: &str, model: &Model) -> Result<()> {
        let state = CheckpointState {
            step: shards,
            next_group_index: 0,
            journal_offset: 0,
            updates: self.steps(),
            tokens_seen: self.tokens,
            fingerprint: fingerprint.to_owned(),
            files: BTreeMap::new(),
        };
        checkpoint::save(folder, state, model, &self.network, KEPT_CHECKPOINTS)?;
        Ok(())
    }

    /// Continues from a checkpoint that [`Self::save`] wrote.
    ///
    /// # Errors
    /// The checkpoint is of another model.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        checkpoint.restore(&mut self.network)?;
        self.tokens = checkpoint.state.tokens_seen;
        Ok(())
    }

    fn run(
        &mut self,
        episodes: &WeightedEpisodes,
        batches: &[Vec<usize>],
        planned: PlannedTraining,
        progress: &mut dyn FnMut(SftProgress) -> ControlFlow<()>,
    ) -> Result<bool> {
        for (number, batch) in (1..).zip(batches) {
            let factor = self.config.schedule.factor(self.steps(), planned.steps);
            let learning_rate = self.config.optimizer.learning_rate * factor;
            let (loss, grad_norm) = self.update(episodes, batch, learning_rate)?;
            self.tokens += episodes.tokens(batch);
            let state = SftProgress {
                step: self.steps(),
                steps: planned.steps,
                tokens: self.tokens,
                budget_tokens: planned.tokens,
                loss,
                grad_norm,
                learning_rate,
            };
            if progress(state).is_break() {
                return Ok(number == batches.len());
            }
        }
        Ok(true)
    }

    /// Makes one optimizer update; returns the mean loss of the assistant tokens and the gradient's
    /// norm.
    fn update(
        &mut self,
        episodes: &WeightedEpisodes,
        batch: &[usize],
        learning_rate: f64,
    ) -> Result<(f64, f64)> {
        let WeightedEpisodes { samples, weights } = episodes;
        let samples: Vec<Sample> = batch.iter().map(|&at| samples[at].clone()).collect();
        let weights: Vec<Vec<f64>> = batch.iter().map(|&at| weights[at].clone()).collect();
        let total: f64 = weights.iter().flatten().sum();
        let budget = self.config.micro_batch_tokens;
        let micro_batches = micro_batches(&samples, budget, Prefixes::Shared);
        let computation = PassSettings {
            temperature: 1.0,
            threads: self.arguments.threads,
            checkpointing: PassSettings::checkpointing(self.config.gradient_checkpointing),
        };
        let (gradients, parts) =
            self.network
                .gradients(&micro_batches, computation, |_, micro, scores| {
                    weighted_likelihood(scores, &micro.gather(&weights), total)
                })?;
        let (sum, count) = parts
            .iter()
            .fold((0.0, 0.0), |a, part| (a.0 + part.0, a.1 + part.1));
        let norm = self.network.update(gradients, learning_rate)?;
        Ok((sum / f64::max(count, 1.0), norm))
    }

    /// Returns the batches of a whole training on `episodes`, as indices.
    fn batches(&self, episodes: &WeightedEpisodes) -> Vec<Vec<usize>> {
        let budget_tokens = self.config.budget_tokens;
        let mut batches = Vec::new();
        let mut tokens = 0;
        for epoch in 0.. {
            for batch in self.epoch_batches(episodes, epoch) {
                tokens += episodes.tokens(&batch);
                batches.push(batch);
                if budget_tokens > 0 && tokens >= budget_tokens {
                    return batches;
                }
            }
            if budget_tokens == 0 {
                break;
            }
        }
        batches
    }

    fn epoch_batches(&self, episodes: &WeightedEpisodes, epoch: u64) -> Vec<Vec<usize>> {
        let mut rng = epoch_rng(self.arguments.seed, epoch, b"episodes");
        let usable = episodes.usable();
        let order = shuffled(usable.len(), &mut rng).into_iter();
        let order: Vec<usize> = order.map(|at| usable[at]).collect();
        let batch_episodes = self.config.batch_episodes;
        let mut batches = Vec::new();
        for block in order.chunks(batch_episodes * self.config.block_batches) {
            let mut block = block.to_vec();
            block.sort_by_key(|&episode| episodes.length(episode));
            let sorted: Vec<&[usize]> = block.chunks(batch_episodes).collect();
            let order = shuffled(sorted.len(), &mut rng);
            batches.extend(order.into_iter().map(|at| sorted[at].to_vec()));
        }
        batches
    }
}

/// Episodes as samples, with the weight of each scored token.
struct WeightedEpisodes {
    samples: Vec<Sample>,
    weights: Vec<Vec<f64>>,
}

impl WeightedEpisodes {
    fn new(episodes: &[Segment], context_weight: f64) -> Result<Self> {
        let weighted = episodes.iter().map(|Segment { tokens, mask, .. }| {
            let weight = |at: usize| if mask[at] == 1 { 1.0 } else { context_weight };
            let scored: Vec<usize> = (1..tokens.len()).filter(|&at| weight(at) > 0.0).collect();
            let weights = scored.iter().map(|&at| weight(at)).collect();
            let tokens = tokens.clone();
            (Sample { tokens, scored }, weights)
        });
        let (samples, weights) = weighted.unzip();
        let weighted = Self { samples, weights };
        if weighted.usable().is_empty() {
            let count = weighted.samples.len();
            let problem =
                format!("{count} episodes, none with a token to learn; give demonstrations");
            return Err(LearnerError::setting("sft", problem));
        }
        Ok(weighted)
    }

    /// Returns the episodes with a token to learn.
    fn usable(&self) -> Vec<usize> {
        let count = self.samples.len();
        (0..count)
            .filter(|&episode| self.length(episode) > 0)
            .collect()
    }

    /// Tokens of a batch's forward passes.
    fn tokens(&self, batch: &[usize]) -> u64 {
        let tokens = batch.iter().map(|&episode| self.length(episode));
        tokens.sum()
    }

    fn length(&self, episode: usize) -> u64 {
        self.samples[episode].forward_tokens() as u64
    }
}

/// Returns the derivatives of the weighted mean negative log-likelihood, and its sum and count over
/// assistant tokens.
fn weighted_likelihood(
    scores: &Scores,
    weights: &[f64],
    total: f64,
) -> (LossDerivatives, (f64, f64)) {
    debug_assert_eq!(scores.logprobs.len(), weights.len());
    let tokens = weights.iter().zip(&scores.logprobs);
    let assistant = tokens.filter(|(weight, _)| **weight == 1.0);
    let part = assistant.fold((0.0, 0.0), |(sum, count), (_, logprob)| {
        (sum - logprob, count + 1.0)
    });
    let derivatives = LossDerivatives {
        d_logprobs: weights.iter().map(|weight| -weight / total).collect(),
        d_entropies: None,
    };
    (derivatives, part)
}
