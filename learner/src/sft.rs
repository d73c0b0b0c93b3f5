//! Supervised training on demonstrations: the warm start.
//!
//! Invariant: the order of the episodes, the micro-batches and so the weights are a function of
//! episodes, settings and seed. Each epoch shuffles the episodes, sorts them by length inside
//! blocks of batches, so that a batch holds similar lengths, and shuffles the batches of a block.
//! Budgets are tokens, never seconds, and this file reads no clock: a caller that wants a rate
//! divides [`SftProgress::tokens`] by its own time.

use std::ops::ControlFlow;

use policy::{Model, Weights, ops::LogprobGradients};
use proto::v1::Segment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::{
    batch::{Prefixes, Sample, micro_batches},
    bounds::{at_least_one, range},
    config::RunArguments,
    error::{LearnerError, Result},
    network::{Network, PassSettings, Scores},
    optimizer::OptimizerSettings,
    schedule::{ScheduleKind, ScheduleSettings},
    scheduler::{epoch_rng, shuffled},
};

/// Settings of a supervised training. The defaults suit pretrained models: assistant tokens only
/// and a small rate (TRL's `SFTConfig`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct SftConfig {
    /// Tokens after which training stops, at the end of a batch; 0: one epoch.
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
    /// Tokens trained on so far.
    pub tokens: u64,
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
    config.validate()?;
    let training = Training {
        episodes: WeightedEpisodes::new(episodes, config.context_weight),
        config,
        arguments,
    };
    let plan = training.plan()?;
    let steps = plan.len() as u64;
    let mut network = Network::new(&model.config, &model.weights, config.optimizer.clone())?;
    let (mut tokens, mut finished) = (0, true);
    for (step, batch) in (1..).zip(&plan) {
        let factor = config.schedule.factor(step - 1, steps);
        let learning_rate = config.optimizer.learning_rate * factor;
        let (loss, grad_norm) = training.update(&mut network, batch, learning_rate)?;
        tokens += training.episodes.tokens(batch);
        let state = SftProgress {
            step,
            tokens,
            loss,
            grad_norm,
            learning_rate,
        };
        if progress(state).is_break() {
            finished = step == steps;
            break;
        }
    }
    Ok(SftOutcome {
        weights: network.weights(),
        steps: network.optimizer.updates,
        tokens,
        finished,
    })
}

/// Episodes as samples, with the weight of each scored token.
struct WeightedEpisodes<'a> {
    samples: Vec<Sample<'a>>,
    weights: Vec<Vec<f64>>,
}

impl<'a> WeightedEpisodes<'a> {
    fn new(episodes: &'a [Segment], context_weight: f64) -> Self {
        let weighted = episodes.iter().map(|Segment { tokens, mask, .. }| {
            let weight = |at: usize| if mask[at] == 1 { 1.0 } else { context_weight };
            let scored: Vec<usize> = (1..tokens.len()).filter(|&at| weight(at) > 0.0).collect();
            let weights = scored.iter().map(|&at| weight(at)).collect();
            let tokens = tokens.into();
            (Sample { tokens, scored }, weights)
        });
        let (samples, weights) = weighted.unzip();
        Self { samples, weights }
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

/// Everything that decides the weights, besides the initial ones.
struct Training<'a> {
    episodes: WeightedEpisodes<'a>,
    config: &'a SftConfig,
    arguments: RunArguments,
}

impl Training<'_> {
    /// Makes one optimizer update; returns the mean loss of the assistant tokens and the gradient's
    /// norm.
    fn update(
        &self,
        network: &mut Network,
        batch: &[usize],
        learning_rate: f64,
    ) -> Result<(f64, f64)> {
        let WeightedEpisodes { samples, weights } = &self.episodes;
        let samples: Vec<Sample<'_>> = batch.iter().map(|&at| samples[at].clone()).collect();
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
            network.gradients(&micro_batches, computation, |_, micro, scores| {
                weighted_likelihood(scores, &micro.gather(&weights), total)
            })?;
        let (sum, count) = parts
            .iter()
            .fold((0.0, 0.0), |a, part| (a.0 + part.0, a.1 + part.1));
        let norm = network.update(gradients, learning_rate)?;
        Ok((sum / f64::max(count, 1.0), norm))
    }

    /// Returns the batches of the whole training, as indices of episodes.
    fn plan(&self) -> Result<Vec<Vec<usize>>> {
        let count = self.episodes.samples.len();
        let usable = (0..count).filter(|&episode| self.episodes.length(episode) > 0);
        let usable: Vec<usize> = usable.collect();
        if usable.is_empty() {
            let problem =
                format!("{count} episodes, none with a token to learn; give demonstrations");
            return Err(LearnerError::setting("sft", problem));
        }
        let budget_tokens = self.config.budget_tokens;
        let mut batches = Vec::new();
        let mut tokens = 0;
        for epoch in 0.. {
            for batch in self.epoch_batches(&usable, epoch) {
                tokens += self.episodes.tokens(&batch);
                batches.push(batch);
                if budget_tokens > 0 && tokens >= budget_tokens {
                    return Ok(batches);
                }
            }
            if budget_tokens == 0 {
                break;
            }
        }
        Ok(batches)
    }

    fn epoch_batches(&self, usable: &[usize], epoch: u64) -> Vec<Vec<usize>> {
        let mut rng = epoch_rng(self.arguments.seed, epoch, b"episodes");
        let order = shuffled(usable.len(), &mut rng).into_iter();
        let order: Vec<usize> = order.map(|at| usable[at]).collect();
        let batch_episodes = self.config.batch_episodes;
        let mut batches = Vec::new();
        for block in order.chunks(batch_episodes * self.config.block_batches) {
            let mut block = block.to_vec();
            block.sort_by_key(|&episode| self.episodes.length(episode));
            let sorted: Vec<&[usize]> = block.chunks(batch_episodes).collect();
            let order = shuffled(sorted.len(), &mut rng);
            batches.extend(order.into_iter().map(|at| sorted[at].to_vec()));
        }
        batches
    }
}

/// Returns the derivatives of the weighted mean negative log-likelihood, and its sum and count over
/// assistant tokens.
fn weighted_likelihood(
    scores: &Scores,
    weights: &[f64],
    total: f64,
) -> (LogprobGradients, (f64, f64)) {
    debug_assert_eq!(scores.logprobs.len(), weights.len());
    let tokens = weights.iter().zip(&scores.logprobs);
    let assistant = tokens.filter(|(weight, _)| **weight == 1.0);
    let part = assistant.fold((0.0, 0.0), |(sum, count), (_, logprob)| {
        (sum - logprob, count + 1.0)
    });
    let derivatives = LogprobGradients {
        logprobs: weights.iter().map(|weight| -weight / total).collect(),
        entropies: None,
    };
    (derivatives, part)
}
