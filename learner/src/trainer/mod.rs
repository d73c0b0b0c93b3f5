//! One GRPO step: groups in, new weights and metrics out.
//!
//! Invariant: the result is a function of the groups, in index order, the settings and the
//! trainer's state. A step either makes all its updates, or refuses groups before the first one and
//! changes nothing. A row of the loss is a segment: a trajectory has several where older tool
//! results were dropped from its context, each with the trajectory's advantage. A demonstration is
//! a row, too. With several ranks, each cuts the same micro-batches and computes its share of them.

mod constrained;
mod demonstrated;
mod refused_groups;

use std::sync::Arc;

use self::demonstrated::{SampledTokens, demonstration_loss};
use policy::{Constrainer, Decoder, DecoderMode, Model, ops::LogprobGradients};
use proto::v1::Trajectory;

use crate::{
    advantage::advantages,
    batch::{MicroBatch, Prefixes, Sample, micro_batches_for, min_workers},
    config::{LearnerConfig, RatioAgainst},
    error::Result,
    group::{Group, RefusedGroup, StepGroups},
    loss::{
        LossDivisors, LossInput, LossStats, SamplerCorrection, SamplingStats, loss, sampling_stats,
    },
    metrics::{self, Metrics},
    network::{Network, PassSettings, Scores, scores_unless},
    optimizer::global_norm,
    ranks::{MicroBatchStatistics, Ranks},
};

/// The policy being trained and everything else that a step needs besides its groups.
pub struct Trainer {
    config: LearnerConfig,
    threads: usize,
    /// The policy being trained.
    pub network: Network,
    /// The ranks that train together; by default one.
    pub ranks: Ranks,
    /// Tokens seen so far, as TRL counts them: those of prompts and completions.
    pub tokens_seen: u64,
    /// Groups of the last step whose log-probabilities differ, if the settings only count them.
    pub suspects: Vec<RefusedGroup>,
    /// Places of the demonstrations of the last step that the constraint excludes.
    pub excluded_demonstrations: Vec<usize>,
    reference: Option<Decoder>,
    constrainer: Option<Constrainer>,
}

/// The rows of the loss, with one value per scored token.
struct LossRows<'a> {
    groups: &'a [Arc<Group>],
    samples: Vec<Sample<'a>>,
    /// Recorded when sampling. In a demonstration, which was not sampled, NaN.
    sampler: Vec<Vec<f64>>,
    advantages: Vec<Vec<f64>>,
    /// Scored tokens of each row's trajectory, which has a row for each of its segments.
    completion_lengths: Vec<usize>,
    /// Trajectories that have rows, which are those that [`is_completion`] counts, and
    /// demonstrations.
    completions: usize,
    /// The place of each row's group in `groups`; none for a demonstration.
    group_of: Vec<Option<usize>>,
    /// 1 plus the number of versions by which the weights that sampled a row lag behind.
    versions: Vec<f64>,
}

/// The part of a step that this rank computes.
struct RankShare {
    micro_batches: Vec<MicroBatch>,
    /// The number of each micro-batch among all of the step.
    numbers: Vec<usize>,
    /// Loss tokens of all micro-batches of the step.
    step_tokens: f64,
    /// Log-probabilities under the reference policy, by micro-batch; absent without a KL term.
    reference: Option<Vec<Vec<f64>>>,
    /// Log-probabilities under the policy before the first update, by micro-batch; absent until
    /// that update.
    old: Option<Vec<Vec<f64>>>,
}

impl Trainer {
    /// Returns a trainer whose policy is `model`, and its reference policy too if the loss has a KL
    /// term.
    ///
    /// # Errors
    /// The model's weights do not fit its configuration, or the model does not fit the constraint.
    pub fn new(config: &LearnerConfig, threads: usize, model: &Model) -> Result<Self> {
        let reference = (config.loss.kl_coef > 0.0)
            .then(|| Decoder::new(&model.config, &model.weights, DecoderMode::Sample))
            .transpose()?;
        let network = Network::new(&model.config, &model.weights, config.optimizer.clone())?
            .with_threads(threads);
        let (constraint, shots) = (config.rollout.constraint, config.rollout.shots);
        let constrainer = Constrainer::for_model(constraint, model, shots as usize)?;
        let mut config = config.clone();
        if config.ratio_against == RatioAgainst::Sampler {
            // The ratio contains the mismatch already; without a correction the metrics show it as
            // it is.
            config.loss.sampler_correction = SamplerCorrection::Off;
        }
        Ok(Self {
            config,
            threads,
            network,
            ranks: Ranks::default(),
            tokens_seen: 0,
            suspects: Vec::new(),
            excluded_demonstrations: Vec::new(),
            reference,
            constrainer,
        })
    }

    /// Trains on one batch with the policy of `version` and returns the step's metrics. Without
    /// kept groups and demonstrations the weights do not change. Every rank calls it with the same
    /// groups; the metrics are those of rank 0.
    ///
    /// # Errors
    /// A pass failed or training diverged, and the weights are those before the step. Or
    /// another rank is gone, or holds other weights.
    /// [`LearnerError::Refused`](crate::LearnerError::Refused) names groups without which the step
    /// can be made.
    pub fn step(&mut self, groups: &StepGroups, version: u64) -> Result<Metrics> {
        self.suspects.clear();
        self.excluded_demonstrations.clear();
        let mut rows = LossRows::new(&groups.kept, &self.config, version);
        for demonstration in &groups.demonstrations {
            rows.push_demonstration(demonstration);
        }
        self.constrain(&mut rows)?;
        let workers = self.ranks.count().max(min_workers(self.network.device()));
        let budget = self.config.micro_batch_tokens;
        let all = micro_batches_for(workers, &rows.samples, budget, self.prefixes());
        let mut metrics = metrics::of_rollouts(groups, &self.config, version);
        let tokens_seen = self.tokens_seen + metrics::tokens(groups);
        metrics.insert("num_tokens".to_owned(), tokens_seen as f64);
        metrics.extend(rows.demonstration_metrics());
        if !all.is_empty() {
            let mut share = self.rank_share(all)?;
            self.updates(&rows, &mut share, version, &mut metrics)?;
            self.ranks.agree(&self.network, version + 1)?;
        }
        self.tokens_seen = tokens_seen;
        Ok(metrics)
    }

    /// Makes the updates of a step: all of them or none. Metrics of the loss are those of the last
    /// one.
    fn updates(
        &mut self,
        rows: &LossRows<'_>,
        share: &mut RankShare,
        version: u64,
        metrics: &mut Metrics,
    ) -> Result<()> {
        // A single update is refused or stopped before it changes anything, and ends the run if it
        // diverges.
        let before = (self.config.num_iterations > 1).then(|| self.network.training_state());
        for iteration in 0..self.config.num_iterations {
            let learning_rate = self.learning_rate(version, iteration);
            if let Err(fault) = self.update(rows, share, learning_rate, metrics) {
                before.map_or(Ok(()), |before| self.network.put_back(before))?;
                return Err(fault);
            }
        }
        Ok(())
    }

    fn prefixes(&self) -> Prefixes {
        match self.config.share_prefixes {
            true => Prefixes::Shared,
            false => Prefixes::Repeated,
        }
    }

    fn rank_share(&mut self, all: Vec<MicroBatch>) -> Result<RankShare> {
        let step_tokens: usize = all.iter().map(|micro| micro.targets.len()).sum();
        let numbers = self.ranks.share(&all);
        let numbered = all.into_iter().enumerate();
        let own = numbered.filter(|(number, _)| numbers.contains(number));
        let micro_batches: Vec<MicroBatch> = own.map(|(_, micro)| micro).collect();
        Ok(RankShare {
            reference: self.reference_logprobs(&micro_batches)?,
            micro_batches,
            numbers,
            step_tokens: step_tokens as f64,
            old: None,
        })
    }

    fn pass_settings(&self) -> PassSettings {
        PassSettings {
            temperature: self.config.rollout.sampling.logprob_temperature(),
            threads: self.threads,
            checkpointing: PassSettings::checkpointing(self.config.gradient_checkpointing),
        }
    }

    fn reference_logprobs(&self, micro_batches: &[MicroBatch]) -> Result<Option<Vec<Vec<f64>>>> {
        let Some(decoder) = &self.reference else {
            return Ok(None);
        };
        let stopping = self.network.stopping();
        let all = scores_unless(&stopping, decoder, micro_batches, self.pass_settings())?;
        Ok(Some(
            all.into_iter().map(|scores| scores.logprobs).collect(),
        ))
    }

    /// Makes one optimizer update over the whole batch.
    fn update(
        &mut self,
        rows: &LossRows<'_>,
        share: &mut RankShare,
        learning_rate: f64,
        metrics: &mut Metrics,
    ) -> Result<()> {
        let divisor = self.divisor(rows, share.step_tokens);
        let (gradients, parts) = self.network.gradients(
            &share.micro_batches,
            self.pass_settings(),
            |index, micro, scores| {
                let divisors = LossDivisors {
                    policy: divisor,
                    entropy_share: rows.entropy_share(micro),
                };
                let (derivatives, statistics) =
                    micro_batch_loss(&self.config, rows, share, index, scores, divisors);
                (derivatives, (statistics, scores.logprobs.clone()))
            },
        )?;
        let (statistics, logprobs): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let parameters = self.network.parameters();
        let (gradients, statistics) = self.ranks.reduce(parameters, gradients, statistics)?;
        if share.old.is_none() {
            self.check_logprobs(rows, &statistics)?;
        }
        let norm = global_norm(&gradients)?;
        // Later updates of a step have changed the weights already.
        if !norm.is_finite() && share.old.is_none() {
            return Err(self.why_not_finite(rows)?);
        }
        self.network.update_with(gradients, norm, learning_rate)?;
        if share.old.is_none() {
            // Later iterations compute their ratios against this policy. Before the first update,
            // the gap to the sampler measures staleness and mismatch alone, without the step's own
            // updates.
            share.old = Some(logprobs);
            let sampling = statistics.iter().map(|statistics| &statistics.sampling);
            metrics.extend(merged(sampling, SamplingStats::merge).metrics());
        }
        let stats = statistics.iter().map(|statistics| &statistics.stats);
        metrics.extend(merged(stats, LossStats::merge).metrics());
        let loss = statistics.iter().map(|statistics| statistics.loss).sum();
        metrics.insert("loss".to_owned(), loss);
        metrics.insert("grad_norm".to_owned(), norm);
        metrics.insert("learning_rate".to_owned(), learning_rate);
        Ok(())
    }

    /// Returns what the sums of the loss are divided by.
    fn divisor(&self, rows: &LossRows<'_>, step_tokens: f64) -> f64 {
        let context_tokens = self.config.rollout.max_context_tokens;
        let completions = rows.completions as f64;
        self.config
            .loss
            .divisor(completions, step_tokens, context_tokens)
    }

    /// Returns the learning rate of an update of the step after `version`. The rate falls in steps
    /// without groups to train on as well, as TRL's does, so that it ends with the run.
    fn learning_rate(&self, version: u64, iteration: u64) -> f64 {
        let config = &self.config;
        let total = config.steps * config.num_iterations;
        let done = version.saturating_mul(config.num_iterations);
        let done = done.saturating_add(iteration);
        config.optimizer.learning_rate * config.schedule.factor(done, total)
    }
}

/// Returns the derivatives of the loss of the share's micro-batch at `index`, and its statistics,
/// in which demonstrations do not count.
fn micro_batch_loss(
    config: &LearnerConfig,
    rows: &LossRows<'_>,
    share: &RankShare,
    index: usize,
    scores: &Scores,
    divisors: LossDivisors,
) -> (LogprobGradients, MicroBatchStatistics) {
    let micro = &share.micro_batches[index];
    let sampled = SampledTokens::of(rows, micro);
    let logprobs = sampled.pick(&scores.logprobs);
    let recorded = sampled.pick(&micro.gather(&rows.sampler));
    let old = share.old.as_ref().map(|old| sampled.pick(&old[index]));
    let reference = share.reference.as_ref();
    let reference = reference.map(|reference| sampled.pick(&reference[index]));
    let (old, sampler) = match config.ratio_against {
        RatioAgainst::Sampler => (Some(recorded.as_slice()), None),
        RatioAgainst::Learner => (old.as_deref(), Some(recorded.as_slice())),
    };
    let input = LossInput {
        rows: &sampled.rows,
        completion_lengths: &sampled.completion_lengths,
        logprobs: &logprobs,
        old,
        sampler,
        reference: reference.as_deref(),
        entropies: &sampled.pick(&scores.entropies),
        advantages: &sampled.pick(&micro.gather(&rows.advantages)),
    };
    let output = loss(&input, &config.loss, divisors);
    let demonstrated = demonstration_loss(config, rows, micro, scores, divisors.policy);
    let statistics = MicroBatchStatistics {
        micro_batch: share.numbers[index] as u64,
        loss: output.loss + demonstrated.loss,
        stats: output.stats,
        sampling: sampling_stats(&logprobs, &recorded, &sampled.rows, &config.loss),
        // Later updates of a step have changed the policy.
        differences: match share.old {
            None => refused_groups::differences(
                rows,
                micro,
                &scores.logprobs,
                config.trust.max_logprob_difference,
            ),
            Some(_) => Vec::new(),
        },
    };
    let derivatives = LogprobGradients {
        logprobs: sampled.put(&output.d_logprobs, demonstrated.d_logprobs),
        entropies: output
            .d_entropies
            .map(|it| sampled.put(&it, vec![0.0; scores.entropies.len()])),
    };
    (derivatives, statistics)
}

/// Returns whether a trajectory counts in the loss. An episode that failed has no reward, at
/// whatever point it failed, so neither its tokens nor the episode itself count in a divisor.
fn is_completion(trajectory: &Trajectory) -> bool {
    trajectory.scored && !trajectory.segments.is_empty()
}

/// Returns the advantages of all trajectories of the groups, in order.
fn group_advantages(groups: &[Arc<Group>], config: &LearnerConfig) -> Vec<f64> {
    let rewards = groups.iter().flat_map(|group| group.rewards.clone());
    let rewards: Vec<Vec<Option<f64>>> = rewards.collect();
    let weights = config.rewards.weights();
    advantages(&rewards, &weights, config.group_size, config.advantage)
}

impl<'a> LossRows<'a> {
    fn new(groups: &'a [Arc<Group>], config: &LearnerConfig, version: u64) -> Self {
        let mut rows = Self {
            groups,
            samples: Vec::new(),
            sampler: Vec::new(),
            advantages: Vec::new(),
            completion_lengths: Vec::new(),
            completions: 0,
            group_of: Vec::new(),
            versions: Vec::new(),
        };
        let numbered = groups.iter().enumerate();
        let trajectories = numbered
            .flat_map(|(number, group)| group.trajectories.iter().map(move |it| (number, it)));
        let all = trajectories.zip(group_advantages(groups, config));
        for ((number, trajectory), advantage) in all.filter(|((_, it), _)| is_completion(it)) {
            let is_masked =
                config.loss.mask_truncated_completions && metrics::is_truncated(trajectory);
            let oldest = trajectory.turns.iter().map(|turn| turn.policy_version);
            let lag = version.saturating_sub(oldest.min().unwrap_or(version));
            let first_row = rows.samples.len();
            for segment in &trajectory.segments {
                let sampled = (0..segment.tokens.len()).filter(|&at| segment.mask[at] == 1);
                let scored: Vec<usize> = sampled.filter(|_| !is_masked).collect();
                let recorded = scored.iter().map(|&at| f64::from(segment.logprobs[at]));
                rows.sampler.push(recorded.collect());
                rows.advantages.push(vec![advantage; scored.len()]);
                rows.group_of.push(Some(number));
                rows.versions.push(1.0 + lag as f64);
                rows.samples.push(Sample {
                    tokens: (&segment.tokens).into(),
                    scored,
                    allowed: Vec::new(),
                });
            }
            let own = &rows.samples[first_row..];
            let length: usize = own.iter().map(|sample| sample.scored.len()).sum();
            rows.completion_lengths
                .extend(std::iter::repeat_n(length, own.len()));
            rows.completions += 1;
        }
        rows
    }

    /// Returns the rows of one group, or those of the demonstrations.
    fn of(&self, group: Option<usize>) -> Self {
        fn pick<T: Clone>(all: &[T], rows: &[usize]) -> Vec<T> {
            rows.iter().map(|&row| all[row].clone()).collect()
        }
        let rows = 0..self.samples.len();
        let rows: Vec<usize> = rows.filter(|&row| self.group_of[row] == group).collect();
        Self {
            groups: self.groups,
            samples: pick(&self.samples, &rows),
            sampler: pick(&self.sampler, &rows),
            advantages: pick(&self.advantages, &rows),
            completion_lengths: pick(&self.completion_lengths, &rows),
            completions: group.map_or(rows.len(), |number| {
                let trajectories = self.groups[number].trajectories.iter();
                trajectories.filter(|it| is_completion(it)).count()
            }),
            group_of: pick(&self.group_of, &rows),
            versions: pick(&self.versions, &rows),
        }
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

#[cfg(test)]
mod tests;
