//! Demonstrations among the rows of a step: their supervised loss, beside that of what was sampled.
//!
//! Invariant: the loss of GRPO and its statistics see sampled tokens only. A demonstration has
//! neither an importance ratio nor a KL divergence nor an entropy bonus.

use proto::v1::Segment;

use super::LossRows;
use crate::{
    batch::{MicroBatch, Sample},
    config::LearnerConfig,
    metrics::Metrics,
    network::Scores,
};

impl<'a> LossRows<'a> {
    pub(super) fn push_demonstration(&mut self, demonstration: &'a Segment) {
        let Segment { tokens, mask, .. } = demonstration;
        let scored: Vec<usize> = (0..tokens.len()).filter(|&at| mask[at] == 1).collect();
        self.sampler.push(vec![f64::NAN; scored.len()]);
        self.advantages.push(vec![0.0; scored.len()]);
        self.completion_lengths.push(scored.len());
        self.completions += 1;
        self.group_of.push(None);
        self.versions.push(1.0);
        self.samples.push(Sample {
            tokens: tokens.into(),
            scored,
            allowed: Vec::new(),
        });
    }

    /// Returns the weight of a micro-batch in the entropy bonus: its share of all sampled tokens of
    /// the step, so that every token has the same weight, whatever is packed beside it.
    pub(super) fn entropy_share(&self, micro: &MicroBatch) -> f64 {
        let sampled = |row: usize| match self.group_of[row] {
            Some(_) => self.samples[row].scored.len(),
            None => 0,
        };
        let of_step: usize = (0..self.samples.len()).map(sampled).sum();
        let own: usize = micro.samples.iter().map(|&row| sampled(row)).sum();
        own as f64 / of_step.max(1) as f64
    }

    /// Counts the demonstrations that are trained on, and all their tokens.
    pub(super) fn demonstration_metrics(&self) -> Metrics {
        let rows = self.samples.iter().zip(&self.group_of);
        let demonstrations = rows.filter(|(sample, group)| {
            let is_trained_on = !sample.scored.is_empty();
            group.is_none() && is_trained_on
        });
        let tokens = demonstrations.map(|(sample, _)| sample.tokens.len());
        let tokens: Vec<usize> = tokens.collect();
        let all: usize = tokens.iter().sum();
        Metrics::from([
            ("demonstrations/count".to_owned(), tokens.len() as f64),
            ("demonstrations/tokens".to_owned(), all as f64),
        ])
    }
}

/// The scored tokens of a micro-batch that the policy sampled.
pub(super) struct SampledTokens {
    /// Their places among all scored tokens.
    places: Vec<usize>,
    /// Scored tokens of each sampled row.
    pub(super) rows: Vec<usize>,
    /// Scored tokens of the whole trajectory of each.
    pub(super) completion_lengths: Vec<usize>,
}

impl SampledTokens {
    pub(super) fn of(rows: &LossRows<'_>, micro: &MicroBatch) -> Self {
        let mut sampled = Self {
            places: Vec::new(),
            rows: Vec::new(),
            completion_lengths: Vec::new(),
        };
        let mut start = 0;
        for (&row, &scored) in micro.samples.iter().zip(&micro.scored) {
            if rows.group_of[row].is_some() {
                sampled.places.extend(start..start + scored);
                sampled.rows.push(scored);
                sampled
                    .completion_lengths
                    .push(rows.completion_lengths[row]);
            }
            start += scored;
        }
        sampled
    }

    /// Returns the values of the sampled tokens among those of all scored ones.
    pub(super) fn pick(&self, all: &[f64]) -> Vec<f64> {
        self.places.iter().map(|&place| all[place]).collect()
    }

    /// Puts the values of the sampled tokens into those of all scored ones.
    pub(super) fn put(&self, values: &[f64], mut all: Vec<f64>) -> Vec<f64> {
        for (&place, value) in self.places.iter().zip(values) {
            all[place] = *value;
        }
        all
    }
}

/// The loss of the demonstrations of a micro-batch.
pub(super) struct DemonstrationLoss {
    pub(super) loss: f64,
    /// d loss / d log-probability of each scored token; 0 for sampled ones.
    pub(super) d_logprobs: Vec<f64>,
}

/// Returns the negative log-likelihood of demonstrations, with their weight, averaged as the loss
/// averages completions. `divisor` is that of the whole batch.
pub(super) fn demonstration_loss(
    config: &LearnerConfig,
    rows: &LossRows<'_>,
    micro: &MicroBatch,
    scores: &Scores,
    divisor: f64,
) -> DemonstrationLoss {
    let mut out = DemonstrationLoss {
        loss: 0.0,
        d_logprobs: Vec::with_capacity(scores.logprobs.len()),
    };
    for (&row, &scored) in micro.samples.iter().zip(&micro.scored) {
        let own = match config.loss.averages_completions() {
            true => scored.max(1) as f64,
            false => 1.0,
        };
        let weight = match rows.group_of[row] {
            None => 1.0 / (own * divisor) * config.demonstration_weight,
            Some(_) => 0.0,
        };
        for _ in 0..scored {
            let logprob = scores.logprobs[out.d_logprobs.len()];
            out.loss -= weight * logprob;
            out.d_logprobs.push(-weight);
        }
    }
    out
}
