//! The GRPO family's loss and its exact derivative, in f64, without autograd.
//!
//! Pure. In: log-probabilities of the loss tokens, packed row by row. Out: the loss, d loss / d log-probability and
//! d loss / d entropy per token, and metrics, as TRL 1.16.0 on torch 2.15 computes them (golden cases in
//! `tests/golden/grpo_cases.json`; a `clamp` has no gradient exactly at its bound and a tie of `min` splits it). The
//! trainer back-propagates `sum(log-probability * constant(derivative))`. Tokens without loss (prompts, tool results,
//! padding, truncated rows) are left out before; a row may be empty and still counts as a row.

mod correction;
mod policy;
mod settings;
mod stats;

use std::ops::Range;

pub use settings::{LossSettings, LossType, RatioLevel, SamplerCorrection};
pub use stats::{CispoStats, ClipStats, LossStats, SamplingStats};

/// The loss tokens of one micro-batch, rows laid end to end.
#[derive(Clone, Copy, Debug)]
pub struct LossInput<'a> {
    /// Loss tokens of each row.
    pub rows: &'a [usize],
    /// Log-probabilities under the policy being trained.
    pub logprobs: &'a [f64],
    /// Under the policy that the ratio is held against; absent: `logprobs`, detached.
    pub old: Option<&'a [f64]>,
    /// As recorded when sampling, NaN where unknown; absent: no sampler correction.
    pub sampler: Option<&'a [f64]>,
    /// Under the reference policy; absent: no KL term.
    pub reference: Option<&'a [f64]>,
    /// Entropies of the policy being trained, in nats.
    pub entropies: &'a [f64],
    /// One a token.
    pub advantages: &'a [f64],
}

/// What this micro-batch's sums are divided by, so that micro-batches of any shape add up to the batch's loss.
///
/// Exact for all terms without an entropy mask. With one (`top_entropy_quantile` < 1) threshold and mean of the masked
/// tokens are the micro-batch's own, as in TRL, and the sum depends on how the batch is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// [`LossSettings::divisor`] of the whole batch.
    pub divisor: f64,
    /// Share of this micro-batch in the entropy bonus.
    pub entropy_share: f64,
}

/// The loss of a micro-batch and its derivatives.
#[derive(Clone, Debug, PartialEq)]
pub struct LossOutput {
    /// This micro-batch's part of the loss.
    pub loss: f64,
    /// d loss / d log-probability, one a token.
    pub d_logprobs: Vec<f64>,
    /// d loss / d entropy, one a token; absent without an entropy bonus.
    pub d_entropies: Option<Vec<f64>>,
    /// Sums behind the metrics.
    pub stats: LossStats,
}

impl LossInput<'_> {
    pub(super) fn row_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.rows.iter().scan(0, |start, &len| {
            let range = *start..*start + len;
            *start += len;
            Some(range)
        })
    }
}

/// Computes the loss of one micro-batch.
#[must_use]
pub fn loss(input: &LossInput<'_>, settings: &LossSettings, scale: Scale) -> LossOutput {
    let ratios = Ratios::new(input, settings.ratio_level);
    let corrections = match (input.sampler, settings.sampler_correction) {
        (None, _) | (_, SamplerCorrection::Off) => vec![1.0; input.logprobs.len()],
        (Some(sampler), _) => {
            let old = input.old.unwrap_or(input.logprobs);
            correction::sampler_ratios(old, sampler, input.rows, settings).0
        }
    };
    let entropy_mask = correction::entropy_mask(input.entropies, settings.top_entropy_quantile);
    let mut factors = correction::off_policy_mask(input, settings);
    for (factor, mask) in factors.iter_mut().zip(&entropy_mask) {
        *factor *= mask;
    }
    let mut sum = Accumulator::new(input, settings);
    let policy = policy::terms(input, settings, &ratios, &corrections, &mut sum.stats);
    if settings.loss_type != LossType::Vespo {
        factors
            .iter_mut()
            .zip(&corrections)
            .for_each(|(factor, ratio)| *factor *= ratio);
    }
    sum.rows(input, settings, scale, &ratios, &policy, &factors);
    sum.spread_ratio_gradient(input, settings.ratio_level, &ratios);
    sum.entropy_bonus(input, settings, scale, &entropy_mask);
    sum.out()
}

/// How far `learner`'s log-probs are from `sampler`'s (NaN where unknown), over `rows` as in [`LossInput`].
#[must_use]
pub fn sampling_stats(
    learner: &[f64],
    sampler: &[f64],
    rows: &[usize],
    settings: &LossSettings,
) -> SamplingStats {
    correction::sampler_ratios(learner, sampler, rows, settings).1
}

/// exp(log-prob - old log-prob), per token or per row, repeated at each token of the row.
struct Ratios {
    /// log-prob - old log-prob.
    logs: Vec<f64>,
    values: Vec<f64>,
}

impl Ratios {
    fn new(input: &LossInput<'_>, level: RatioLevel) -> Self {
        let old = input.old.unwrap_or(input.logprobs);
        let logs: Vec<f64> = input
            .logprobs
            .iter()
            .zip(old)
            .map(|(new, old)| new - old)
            .collect();
        let values = match level {
            RatioLevel::Token => logs.iter().map(|d| d.exp()).collect(),
            RatioLevel::Sequence => input
                .row_ranges()
                .flat_map(|row| {
                    let mean = logs[row.clone()].iter().sum::<f64>() / row.len().max(1) as f64;
                    std::iter::repeat_n(mean.exp(), row.len())
                })
                .collect(),
        };
        Self { logs, values }
    }
}

/// The loss and its derivatives as they are summed up.
struct Accumulator {
    loss: f64,
    d_logprobs: Vec<f64>,
    /// d loss / d ratio, one a token, until it is spread over the log-probabilities.
    d_ratios: Vec<f64>,
    d_entropies: Option<Vec<f64>>,
    stats: LossStats,
}

impl Accumulator {
    fn new(input: &LossInput<'_>, settings: &LossSettings) -> Self {
        let tokens = input.logprobs.len();
        let stats = LossStats {
            tokens: tokens as f64,
            rows: input.rows.len() as f64,
            entropy: input.entropies.iter().sum(),
            kl: (settings.kl_coef != 0.0 && input.reference.is_some()).then_some(0.0),
            ..LossStats::default()
        };
        Self {
            loss: 0.0,
            d_logprobs: vec![0.0; tokens],
            d_ratios: vec![0.0; tokens],
            d_entropies: None,
            stats,
        }
    }

    /// Adds every token's policy term (times its factor) and KL term.
    fn rows(
        &mut self,
        input: &LossInput<'_>,
        settings: &LossSettings,
        scale: Scale,
        ratios: &Ratios,
        policy: &[policy::Term],
        factors: &[f64],
    ) {
        for row in input.row_ranges() {
            let own = if settings.averages_rows() {
                row.len() as f64
            } else {
                1.0
            };
            let weight = 1.0 / (own * scale.divisor);
            for t in row {
                let (term, bearing) = (policy[t], weight * factors[t]);
                self.loss += bearing * term.value;
                self.d_ratios[t] += bearing * term.d_ratio;
                self.d_logprobs[t] += bearing * term.d_logprob;
                if let (Some(reference), Some(sum)) = (input.reference, &mut self.stats.kl) {
                    let gap = reference[t] - input.logprobs[t];
                    let k3 = gap.exp() - gap - 1.0;
                    let ratio = if settings.kl_bias_correction {
                        ratios.values[t]
                    } else {
                        1.0
                    };
                    let kl_weight = weight * settings.kl_coef;
                    *sum += k3 * ratio;
                    self.loss += kl_weight * k3 * ratio;
                    self.d_logprobs[t] += kl_weight * ratio * (1.0 - gap.exp());
                    if settings.kl_bias_correction {
                        self.d_ratios[t] += kl_weight * k3;
                    }
                }
            }
        }
    }

    /// Chain rule from ratios to log-probabilities: a token's own ratio, or the row's, which all its tokens share.
    fn spread_ratio_gradient(&mut self, input: &LossInput<'_>, level: RatioLevel, ratios: &Ratios) {
        for row in input.row_ranges() {
            match level {
                RatioLevel::Token => {
                    for t in row {
                        self.d_logprobs[t] += self.d_ratios[t] * ratios.values[t];
                    }
                }
                RatioLevel::Sequence => {
                    let total: f64 = self.d_ratios[row.clone()].iter().sum();
                    for t in row.clone() {
                        self.d_logprobs[t] += total * ratios.values[t] / row.len() as f64;
                    }
                }
            }
        }
    }

    fn entropy_bonus(
        &mut self,
        input: &LossInput<'_>,
        settings: &LossSettings,
        scale: Scale,
        mask: &[f64],
    ) {
        if settings.entropy_coef == 0.0 {
            return;
        }
        self.stats.policy_loss = Some(self.loss);
        let weight =
            settings.entropy_coef * scale.entropy_share / mask.iter().sum::<f64>().max(1.0);
        let masked = input
            .entropies
            .iter()
            .zip(mask)
            .map(|(entropy, mask)| entropy * mask);
        self.loss -= weight * masked.sum::<f64>();
        self.d_entropies = Some(mask.iter().map(|mask| -weight * mask).collect());
    }

    fn out(self) -> LossOutput {
        let Self {
            loss,
            d_logprobs,
            d_entropies,
            stats,
            ..
        } = self;
        LossOutput {
            loss,
            d_logprobs,
            d_entropies,
            stats,
        }
    }
}
