//! One GRPO step: groups in, new weights and metrics out.
//!
//! Invariant: the result is a function of the groups (in index order), the settings and the trainer's state. A row of the
//! loss is a segment: a trajectory whose old tool results gave way has several, each with the trajectory's advantage. Where
//! there are several ranks, each cuts the same micro-batches and computes its share of them.

use std::sync::Arc;

use policy::{Decoder, DecoderMode, Model, Weights};

use crate::{
    advantage::{Advantages, advantages},
    batch::{LEAST_WORKERS, MicroBatch, Prefixes, Sample, micro_batches_for},
    config::{LearnerConfig, RatioAgainst},
    error::Result,
    group::Group,
    loss::{LossInput, LossStats, SamplerCorrection, SamplingStats, Scale, loss, sampling_stats},
    metrics::{self, Metrics},
    network::{LossDerivatives, Network, PassSettings, Scores, scores},
    ranks::{MicroBatchStatistics, Ranks},
};

/// The policy being trained and what a step needs beside the groups.
pub struct Trainer {
    config: LearnerConfig,
    threads: usize,
    /// The policy being trained.
    pub network: Network,
    /// Who trains with it; by default nobody.
    pub ranks: Ranks,
    /// Tokens seen so far, prompts and tool results included.
    pub tokens_seen: u64,
    reference: Option<Decoder>,
}

/// The groups of a step.
#[derive(Clone, Debug, Default)]
pub struct StepGroups {
    /// Those that are trained on, in index order.
    pub kept: Vec<Arc<Group>>,
    /// Those that were looked at and left out.
    pub left_out: Vec<Arc<Group>>,
}

/// The rows of the loss, and one value per scored token of each.
struct Rows {
    samples: Vec<Sample>,
    sampler: Vec<Vec<f64>>,
    advantages: Vec<Vec<f64>>,
}

/// The part of a step that this rank computes.
struct Share {
    micro_batches: Vec<MicroBatch>,
    /// The number of each among all of the step.
    numbers: Vec<usize>,
    /// Loss tokens of all micro-batches of the step.
    tokens: f64,
    /// The reference's log-probs of each of its micro-batches.
    reference: Vec<Option<Vec<f64>>>,
    /// The policy's before the first update.
    old: Option<Vec<Vec<f64>>>,
}

impl Trainer {
    /// A trainer whose policy, and whose reference if the settings ask for one, is `model`.
    ///
    /// # Errors
    /// The model's weights do not fit its configuration.
    pub fn new(config: &LearnerConfig, threads: usize, model: &Model) -> Result<Self> {
        let reference = (config.loss.kl_coef > 0.0)
            .then(|| Decoder::new(&model.config, &model.weights, DecoderMode::Sample))
            .transpose()?;
        let network = Network::new(&model.config, &model.weights, config.optimizer.clone())?;
        let mut config = config.clone();
        if config.ratio_against == RatioAgainst::Sampler {
            // Nothing is corrected, so the metrics show the bare ratios.
            config.loss.sampler_correction = SamplerCorrection::Off;
        }
        Ok(Self {
            config,
            threads,
            network,
            ranks: Ranks::default(),
            tokens_seen: 0,
            reference,
        })
    }

    /// The weights after the last step.
    #[must_use]
    pub fn weights(&self) -> Weights {
        self.network.weights()
    }

    /// Trains on one batch at version `version` and returns the step's metrics. Without kept groups the weights stay. Every
    /// rank calls it with the same groups; the metrics are rank 0's.
    ///
    /// # Errors
    /// A pass failed or training diverged; the weights are then as before the failing update. Another rank is gone, or holds
    /// other weights.
    pub fn step(&mut self, groups: &StepGroups, version: u64) -> Result<Metrics> {
        let advantages = group_advantages(&groups.kept, &self.config);
        let rows = Rows::new(
            &groups.kept,
            &advantages,
            self.config.loss.mask_truncated_completions,
        );
        let prefixes = match self.config.share_prefixes {
            true => Prefixes::Shared,
            false => Prefixes::Repeated,
        };
        let workers = self.ranks.count().max(LEAST_WORKERS);
        let budget = self.config.micro_batch_tokens;
        let all = micro_batches_for(workers, &rows.samples, budget, prefixes);
        let mut metrics = metrics::of_rollouts(groups, &self.config.rewards, version);
        self.tokens_seen += metrics::tokens(groups);
        metrics.insert("num_tokens".to_owned(), self.tokens_seen as f64);
        if all.is_empty() {
            return Ok(metrics);
        }
        let mut share = self.share(all)?;
        for _ in 0..self.config.num_iterations {
            self.iterate(&rows, &mut share, &mut metrics)?;
        }
        self.ranks.agree(&self.network, version + 1)?;
        Ok(metrics)
    }

    fn share(&self, all: Vec<MicroBatch>) -> Result<Share> {
        let tokens: usize = all.iter().map(|micro| micro.targets.len()).sum();
        let numbers = self.ranks.share(&all);
        let numbered = all.into_iter().enumerate();
        let own = numbered.filter(|(number, _)| numbers.contains(number));
        let micro_batches: Vec<MicroBatch> = own.map(|(_, micro)| micro).collect();
        Ok(Share {
            reference: self.reference_logprobs(&micro_batches)?,
            micro_batches,
            numbers,
            tokens: tokens as f64,
            old: None,
        })
    }

    fn pass(&self) -> PassSettings {
        let temperature = self.config.rollout.sampling.logprob_temperature();
        PassSettings {
            temperature,
            threads: self.threads,
            checkpointing: PassSettings::checkpointing(self.config.gradient_checkpointing),
        }
    }

    fn reference_logprobs(&self, micro_batches: &[MicroBatch]) -> Result<Vec<Option<Vec<f64>>>> {
        match &self.reference {
            None => Ok(vec![None; micro_batches.len()]),
            Some(decoder) => {
                let all = scores(decoder, micro_batches, self.pass())?;
                Ok(all
                    .into_iter()
                    .map(|scores| Some(scores.logprobs))
                    .collect())
            }
        }
    }

    /// One optimiser update over the whole batch.
    fn iterate(&mut self, rows: &Rows, share: &mut Share, metrics: &mut Metrics) -> Result<()> {
        let divisor = self.config.loss.divisor(
            rows.samples.len() as f64,
            share.tokens,
            self.config.dr_grpo_length().into(),
        );
        let (gradients, traces) =
            self.network
                .gradients(&share.micro_batches, self.pass(), |place, micro, scores| {
                    let scale = Scale {
                        divisor,
                        entropy_share: micro.targets.len() as f64 / share.tokens,
                    };
                    let (coefficients, figures) =
                        trace(&self.config, rows, share, place, scores, scale);
                    (coefficients, (figures, scores.logprobs.clone()))
                })?;
        let (figures, logprobs): (Vec<_>, Vec<_>) = traces.into_iter().unzip();
        let parameters = self.network.parameters();
        let (gradients, figures) = self.ranks.reduce(parameters, gradients, figures)?;
        let learning_rate = self.learning_rate();
        let norm = self.network.update(gradients, learning_rate)?;
        if share.old.is_none() {
            share.old = Some(logprobs);
            let sampling = figures.iter().map(|figures| &figures.sampling);
            metrics.extend(merged(sampling, SamplingStats::merge).metrics());
        }
        let stats = figures.iter().map(|figures| &figures.stats);
        metrics.extend(merged(stats, LossStats::merge).metrics());
        let loss = figures.iter().map(|figures| figures.loss).sum();
        metrics.insert("loss".to_owned(), loss);
        metrics.insert("grad_norm".to_owned(), norm);
        metrics.insert("learning_rate".to_owned(), learning_rate);
        Ok(())
    }

    /// The rate of the next update.
    fn learning_rate(&self) -> f64 {
        let total = self.config.steps * self.config.num_iterations;
        let factor = self
            .config
            .schedule
            .factor(self.network.optimizer.updates, total);
        self.config.optimizer.learning_rate * factor
    }
}

/// Derivatives and figures of the micro-batch at `place` of the share.
fn trace(
    config: &LearnerConfig,
    rows: &Rows,
    share: &Share,
    place: usize,
    scores: &Scores,
    scale: Scale,
) -> (LossDerivatives, MicroBatchStatistics) {
    let micro = &share.micro_batches[place];
    let recorded = micro.gather(&rows.sampler);
    let learner = share.old.as_ref().map(|old| old[place].as_slice());
    let (old, sampler) = match config.ratio_against {
        RatioAgainst::Sampler => (Some(recorded.as_slice()), None),
        RatioAgainst::Learner => (learner, Some(recorded.as_slice())),
    };
    let input = LossInput {
        rows: &micro.scored,
        logprobs: &scores.logprobs,
        old,
        sampler,
        reference: share.reference[place].as_deref(),
        entropies: &scores.entropies,
        advantages: &micro.gather(&rows.advantages),
    };
    let output = loss(&input, &config.loss, scale);
    let figures = MicroBatchStatistics {
        micro_batch: share.numbers[place] as u64,
        loss: output.loss,
        stats: output.stats,
        sampling: sampling_stats(&scores.logprobs, &recorded, &micro.scored, &config.loss),
    };
    let coefficients = LossDerivatives {
        d_logprobs: output.d_logprobs,
        d_entropies: output.d_entropies,
    };
    (coefficients, figures)
}

/// Advantages of all trajectories of the kept groups, in order.
fn group_advantages(kept: &[Arc<Group>], config: &LearnerConfig) -> Advantages {
    let rewards: Vec<Vec<Option<f64>>> = kept
        .iter()
        .flat_map(|group| group.rewards.clone())
        .collect();
    advantages(
        &rewards,
        &config.rewards.weights(),
        config.group_size,
        config.advantage,
    )
}

impl Rows {
    fn new(kept: &[Arc<Group>], advantages: &Advantages, mask_truncated: bool) -> Self {
        let mut rows = Self {
            samples: Vec::new(),
            sampler: Vec::new(),
            advantages: Vec::new(),
        };
        let trajectories = kept.iter().flat_map(|group| &group.trajectories);
        for (trajectory, &advantage) in trajectories.zip(&advantages.advantages) {
            let masked = mask_truncated && metrics::is_truncated(trajectory);
            for segment in &trajectory.segments {
                let sampled =
                    (0..segment.tokens.len()).filter(|&at| segment.mask[at] == 1 && !masked);
                let scored: Vec<usize> = sampled.collect();
                let recorded = scored
                    .iter()
                    .map(|&at| f64::from(segment.logprobs[at]))
                    .collect();
                rows.sampler.push(recorded);
                rows.advantages.push(vec![advantage; scored.len()]);
                rows.samples.push(Sample {
                    tokens: segment.tokens.clone(),
                    scored,
                });
            }
        }
        rows
    }
}

fn merged<'a, T: Default + 'a>(
    parts: impl Iterator<Item = &'a T>,
    merge: impl Fn(&mut T, &T),
) -> T {
    parts.fold(T::default(), |mut sum, part| {
        merge(&mut sum, part);
        sum
    })
}
