//! Supervised training on demonstrations: the warm start.
//!
//! Invariant: the order of the episodes, the micro-batches and so the weights are a function of episodes and settings.
//! Episodes are shuffled per epoch, sorted by length inside blocks of batches (so that a batch holds like lengths), and
//! the batches of a block come in shuffled order. Budgets are tokens, never seconds. Leaves out the clock: a caller that
//! wants a rate divides [`SftProgress::tokens`] by its own time.

use std::ops::ControlFlow;

use policy::{Model, Weights};
use proto::v1::Segment;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde::{Deserialize, Serialize};

use crate::{
    batch::{MicroBatch, Prefixes, Sample, micro_batches},
    error::{LearnerError, Result},
    network::{Coefficients, Network, Pass, Scores},
    optimizer::OptimizerSettings,
    schedule::{ScheduleKind, ScheduleSettings},
    scheduler::shuffled,
};

/// Settings of a supervised training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SftConfig {
    /// Seed of the episodes' order.
    pub seed: u64,
    /// Training stops after the batch that reaches this many tokens; 0: one epoch.
    pub budget_tokens: u64,
    /// Episodes an update.
    pub batch_episodes: usize,
    /// Batches a block; episodes are sorted by length inside a block.
    pub block_batches: usize,
    /// Weight of the tokens that the assistant did not write; 0 trains on assistant tokens only.
    pub context_weight: f64,
    /// Tokens a forward pass holds at most, a longer episode aside.
    pub micro_batch_tokens: usize,
    /// As the learner's.
    pub gradient_checkpointing: bool,
    /// Threads that compute micro-batches; changes speed, never results.
    pub threads: usize,
    /// AdamW and clipping.
    pub optimizer: OptimizerSettings,
    /// The course of the learning rate.
    pub schedule: ScheduleSettings,
}

impl Default for SftConfig {
    /// For pretrained models: assistant tokens only, a small rate (TRL's `SFTConfig`).
    fn default() -> Self {
        Self {
            seed: 42,
            budget_tokens: 0,
            batch_episodes: 8,
            block_batches: 16,
            context_weight: 0.0,
            micro_batch_tokens: 4096,
            gradient_checkpointing: false,
            threads: 1,
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
    /// Checks every number.
    ///
    /// # Errors
    /// [`LearnerError::Setting`] names the field and what it may be.
    pub fn validate(&self) -> Result<()> {
        let counts = [
            ("sft.batch_episodes", self.batch_episodes),
            ("sft.block_batches", self.block_batches),
            ("sft.micro_batch_tokens", self.micro_batch_tokens),
            ("sft.threads", self.threads),
        ];
        if let Some((field, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(LearnerError::setting(field, "is 0; give at least 1"));
        }
        if !(0.0..=1.0).contains(&self.context_weight) {
            let problem = format!("is {}; give a number from 0 to 1", self.context_weight);
            return Err(LearnerError::setting("sft.context_weight", problem));
        }
        self.optimizer.validate()?;
        self.schedule.validate()
    }
}

/// Where a training stands after an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SftProgress {
    /// Updates made.
    pub step: u64,
    /// Updates planned.
    pub steps: u64,
    /// Tokens fed so far.
    pub tokens: u64,
    /// Tokens planned.
    pub budget_tokens: u64,
    /// Mean negative log-likelihood of the batch's tokens of full weight (the assistant's), in nats, before the update.
    pub loss: f64,
    /// Gradient norm before clipping.
    pub grad_norm: f64,
    /// Rate of the update.
    pub learning_rate: f64,
}

/// What a training came to.
#[derive(Clone, Debug)]
pub struct SftOutcome {
    /// The weights.
    pub weights: Weights,
    /// Updates made.
    pub steps: u64,
    /// Tokens fed.
    pub tokens: u64,
    /// False where `progress` broke off the training.
    pub finished: bool,
}

/// Trains a copy of `model`'s weights on `episodes` (mask 1: the assistant's tokens). `progress` hears of every update
/// and may break off.
///
/// # Errors
/// No episode has anything to learn, a setting cannot be used, a pass failed or training diverged.
pub fn train(
    model: &Model,
    episodes: &[Segment],
    config: &SftConfig,
    progress: &mut dyn FnMut(SftProgress) -> ControlFlow<()>,
) -> Result<SftOutcome> {
    config.validate()?;
    let corpus = Corpus::new(episodes, config.context_weight);
    let plan = plan(&corpus.lengths(), config)?;
    let steps = plan.len() as u64;
    let budget_tokens = plan
        .iter()
        .flatten()
        .map(|&episode| corpus.length(episode))
        .sum();
    let mut network = Network::new(&model.config, &model.weights, config.optimizer.clone())?;
    let (mut tokens, mut finished) = (0, true);
    for (step, batch) in (1..).zip(&plan) {
        let learning_rate =
            config.optimizer.learning_rate * config.schedule.factor(step - 1, steps);
        let (loss, grad_norm) = update(&mut network, &corpus, batch, config, learning_rate)?;
        tokens += batch
            .iter()
            .map(|&episode| corpus.length(episode))
            .sum::<u64>();
        let state = SftProgress {
            step,
            steps,
            tokens,
            budget_tokens,
            loss,
            grad_norm,
            learning_rate,
        };
        if progress(state).is_break() {
            finished = step == steps;
            break;
        }
    }
    let steps = network.optimizer.updates;
    Ok(SftOutcome {
        weights: network.weights(),
        steps,
        tokens,
        finished,
    })
}

impl SftConfig {
    fn pass(&self) -> Pass {
        Pass {
            temperature: 1.0,
            threads: self.threads,
            keep: Pass::keep(self.gradient_checkpointing),
        }
    }
}

/// Episodes as samples, with the weight of each scored token.
struct Corpus {
    samples: Vec<Sample>,
    weights: Vec<Vec<f64>>,
}

impl Corpus {
    fn new(episodes: &[Segment], context_weight: f64) -> Self {
        let mut corpus = Self {
            samples: Vec::new(),
            weights: Vec::new(),
        };
        for Segment { tokens, mask, .. } in episodes {
            let weight = |at: usize| if mask[at] == 1 { 1.0 } else { context_weight };
            let scored: Vec<usize> = (1..tokens.len()).filter(|&at| weight(at) > 0.0).collect();
            corpus
                .weights
                .push(scored.iter().map(|&at| weight(at)).collect());
            corpus.samples.push(Sample {
                tokens: tokens.clone(),
                scored,
            });
        }
        corpus
    }

    /// Tokens an episode costs.
    fn length(&self, episode: usize) -> u64 {
        self.samples[episode].fed_tokens() as u64
    }

    fn lengths(&self) -> Vec<u64> {
        (0..self.samples.len())
            .map(|episode| self.length(episode))
            .collect()
    }
}

/// One optimiser update; returns the mean loss of the assistant tokens and the gradient's norm.
fn update(
    network: &mut Network,
    corpus: &Corpus,
    batch: &[usize],
    config: &SftConfig,
    learning_rate: f64,
) -> Result<(f64, f64)> {
    let samples: Vec<Sample> = batch
        .iter()
        .map(|&episode| corpus.samples[episode].clone())
        .collect();
    let weights: Vec<Vec<f64>> = batch
        .iter()
        .map(|&episode| corpus.weights[episode].clone())
        .collect();
    let total: f64 = weights.iter().flatten().sum();
    let micro_batches = micro_batches(&samples, config.micro_batch_tokens, Prefixes::Shared);
    let (gradients, parts) =
        network.gradients(&micro_batches, config.pass(), |_, micro, scores| {
            weighted_likelihood(micro, scores, &micro.gather(&weights), total)
        })?;
    let (sum, count) = parts
        .iter()
        .fold((0.0, 0.0), |a, part| (a.0 + part.0, a.1 + part.1));
    let norm = network.update(gradients, learning_rate)?;
    Ok((sum / f64::max(count, 1.0), norm))
}

/// Derivatives of the weighted mean negative log-likelihood; with them, its sum and count over assistant tokens.
fn weighted_likelihood(
    micro: &MicroBatch,
    scores: &Scores,
    weights: &[f64],
    total: f64,
) -> (Coefficients, (f64, f64)) {
    debug_assert_eq!(micro.targets.len(), weights.len());
    let assistant = weights
        .iter()
        .zip(&scores.logprobs)
        .filter(|(weight, _)| **weight == 1.0);
    let part = assistant.fold((0.0, 0.0), |(sum, count), (_, logprob)| {
        (sum - logprob, count + 1.0)
    });
    let d_logprobs = weights.iter().map(|weight| -weight / total).collect();
    (
        Coefficients {
            d_logprobs,
            d_entropies: None,
        },
        part,
    )
}

/// The batches of the whole training, as places in the list of episodes.
fn plan(lengths: &[u64], config: &SftConfig) -> Result<Vec<Vec<usize>>> {
    let usable: Vec<usize> = (0..lengths.len())
        .filter(|&episode| lengths[episode] > 0)
        .collect();
    if usable.is_empty() {
        let problem = format!(
            "{} episodes, none with a token to learn; give demonstrations",
            lengths.len()
        );
        return Err(LearnerError::setting("sft", problem));
    }
    let mut batches = Vec::new();
    let mut tokens = 0;
    for epoch in 0.. {
        for batch in epoch_batches(&usable, lengths, config, epoch) {
            tokens += batch.iter().map(|&episode| lengths[episode]).sum::<u64>();
            batches.push(batch);
            if config.budget_tokens > 0 && tokens >= config.budget_tokens {
                return Ok(batches);
            }
        }
        if config.budget_tokens == 0 {
            break;
        }
    }
    Ok(batches)
}

fn epoch_batches(
    usable: &[usize],
    lengths: &[u64],
    config: &SftConfig,
    epoch: u64,
) -> Vec<Vec<usize>> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&config.seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    key[16..24].copy_from_slice(b"episodes");
    let mut rng = ChaCha8Rng::from_seed(key);
    let order: Vec<usize> = shuffled(usable.len(), &mut rng)
        .into_iter()
        .map(|at| usable[at])
        .collect();
    let mut batches = Vec::new();
    for block in order.chunks(config.batch_episodes * config.block_batches) {
        let mut block = block.to_vec();
        block.sort_by_key(|&episode| lengths[episode]);
        let sorted: Vec<&[usize]> = block.chunks(config.batch_episodes).collect();
        let order = shuffled(sorted.len(), &mut rng);
        batches.extend(order.into_iter().map(|at| sorted[at].to_vec()));
    }
    batches
}
