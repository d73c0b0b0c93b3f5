//! A supervised training in progress: its weights, its optimizer and its position.

use std::{ops::ControlFlow, path::Path};

use candle_core::Device;
use policy::{Model, Weights, ops::LogprobGradients};
use proto::v1::Segment;

use super::{SftConfig, SftProgress};
use crate::{
    batch::{Prefixes, Sample, micro_batches_for, min_workers},
    checkpoint::{self, Checkpoint, CheckpointState},
    config::RunArguments,
    error::{LearnerError, Result},
    network::{Network, PassSettings, Scores},
    shuffle::{epoch_rng, shuffled},
};

const KEPT_CHECKPOINTS: usize = 2;

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
            network: Network::new(&model.config, &model.weights, config.optimizer.clone())?
                .with_threads(arguments.threads),
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

    /// Trains on the episodes of a shard once, in an order that depends on the seed and on `shard`.
    /// The learning rate follows its schedule over `planned_steps` updates of all shards. Returns
    /// false if `progress` ended the training before the shard's last batch.
    ///
    /// # Errors
    /// No episode has a token to learn, a pass failed or training diverged.
    pub fn train_shard(
        &mut self,
        shard: u64,
        episodes: &[Segment],
        planned_steps: u64,
        progress: &mut dyn FnMut(SftProgress) -> ControlFlow<()>,
    ) -> Result<bool> {
        let episodes = WeightedEpisodes::new(episodes, self.config.context_weight)?;
        let batches = self.epoch_batches(&episodes, shard);
        self.run(&episodes, &batches, planned_steps, progress)
    }

    /// Writes a checkpoint of the training after `shards` shards. `model` has the files besides the
    /// weights. The caller sees to it that the training continues under the same settings.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn save(&self, folder: &Path, shards: u64, model: &Model) -> Result<()> {
        self.save_as(folder, shards, model, "")
    }

    /// Writes a checkpoint with the weights of this training. `model` has the other files.
    pub(super) fn save_as(
        &self,
        folder: &Path,
        step: u64,
        model: &Model,
        fingerprint: &str,
    ) -> Result<()> {
        let model = Model {
            weights: self.weights().to(&Device::Cpu, self.network.dtype())?,
            ..model.clone()
        };
        let state = CheckpointState {
            step,
            updates: self.steps(),
            tokens_seen: self.tokens,
            fingerprint: fingerprint.to_owned(),
            ..CheckpointState::default()
        };
        checkpoint::save(
            folder,
            state,
            &model,
            &self.network,
            KEPT_CHECKPOINTS,
            || Ok(()),
        )?;
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

    pub(super) fn run(
        &mut self,
        episodes: &WeightedEpisodes<'_>,
        batches: &[Vec<usize>],
        planned_steps: u64,
        progress: &mut dyn FnMut(SftProgress) -> ControlFlow<()>,
    ) -> Result<bool> {
        for (number, batch) in (1..).zip(batches) {
            // A shard with corrected episodes has more batches than were planned.
            let done = self.steps().min(planned_steps);
            let factor = self.config.schedule.factor(done, planned_steps);
            let learning_rate = self.config.optimizer.learning_rate * factor;
            let (loss, grad_norm) = self.update(episodes, batch, learning_rate)?;
            let batch_tokens = episodes.tokens(batch);
            self.tokens += batch_tokens;
            let state = SftProgress {
                step: self.steps(),
                tokens: self.tokens,
                batch_tokens,
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
        episodes: &WeightedEpisodes<'_>,
        batch: &[usize],
        learning_rate: f64,
    ) -> Result<(f64, f64)> {
        let WeightedEpisodes { samples, weights } = episodes;
        let samples: Vec<Sample<'_>> = batch.iter().map(|&at| samples[at].clone()).collect();
        let weights: Vec<Vec<TokenWeight>> = batch.iter().map(|&at| weights[at].clone()).collect();
        let total: f64 = weights.iter().flatten().map(|token| token.weight).sum();
        let budget = self.config.micro_batch_tokens;
        let workers = min_workers(self.network.device());
        let micro_batches = micro_batches_for(workers, &samples, budget, Prefixes::Shared);
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
    pub(super) fn batches(&self, episodes: &WeightedEpisodes<'_>) -> Vec<Vec<usize>> {
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

    fn epoch_batches(&self, episodes: &WeightedEpisodes<'_>, epoch: u64) -> Vec<Vec<usize>> {
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
pub(super) struct WeightedEpisodes<'a> {
    samples: Vec<Sample<'a>>,
    weights: Vec<Vec<TokenWeight>>,
}

/// The weight of a token in the loss.
#[derive(Clone, Copy)]
struct TokenWeight {
    weight: f64,
    is_assistants: bool,
}

impl<'a> WeightedEpisodes<'a> {
    /// Weighs the tokens by their mask: 1 is learned, 0 is context, and a token with another mask
    /// has the weight 0.
    ///
    /// # Errors
    /// No episode has a token to learn.
    pub(super) fn new(episodes: &'a [Segment], context_weight: f64) -> Result<Self> {
        let weighted = episodes.iter().map(|Segment { tokens, mask, .. }| {
            let weight = |at: usize| match mask[at] {
                0 => context_weight,
                1 => 1.0,
                _ => 0.0,
            };
            let scored: Vec<usize> = (1..tokens.len()).filter(|&at| weight(at) > 0.0).collect();
            let token_weight = |&at: &usize| TokenWeight {
                weight: weight(at),
                is_assistants: mask[at] == 1,
            };
            let weights = scored.iter().map(token_weight).collect();
            let tokens = tokens.into();
            let sample = Sample {
                tokens,
                scored,
                ..Sample::default()
            };
            (sample, weights)
        });
        let (samples, weights) = weighted.unzip();
        let weighted = Self { samples, weights };
        if weighted.usable().is_empty() {
            let episodes = weighted.samples.len();
            return Err(LearnerError::NothingToLearn { episodes });
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
    weights: &[TokenWeight],
    total: f64,
) -> (LogprobGradients, (f64, f64)) {
    debug_assert_eq!(scores.logprobs.len(), weights.len());
    let tokens = weights.iter().zip(&scores.logprobs);
    let assistant = tokens.filter(|(token, _)| token.is_assistants);
    let part = assistant.fold((0.0, 0.0), |(sum, count), (_, logprob)| {
        (sum - logprob, count + 1.0)
    });
    let derivatives = LogprobGradients {
        logprobs: weights.iter().map(|token| -token.weight / total).collect(),
        entropies: None,
    };
    (derivatives, part)
}
