//! The GRPO family's loss and its exact derivative, in f64, without autograd.
//!
//! Pure. Input: log-probabilities of the loss tokens, packed row by row. Output: the loss, d loss /
//! d log-probability and d loss / d entropy per token, and metrics, as TRL 1.16.0 on torch 2.15
//! computes them (golden cases in `tests/golden/grpo_cases.json`). A `clamp` has no gradient
//! exactly at its bound, and a tie of `min` splits it. The caller leaves out tokens without loss:
//! prompts, tool results, padding and truncated rows. A row may be empty and still counts.
//!
//! Invariant: finite inputs give a finite loss and finite derivatives. Ratios are bounded before
//! they leave log space, which TRL does not do, by `MAX_LOG_RATIO`.

mod correction;
mod policy;
mod settings;
mod stats;

use std::ops::Range;

pub use settings::{LossSettings, LossType, RatioLevel, SamplerCorrection};
pub use stats::{CispoStats, ClipStats, LossStats, SamplingStats};

/// The largest logarithm of a ratio: e^30 is 1e13. A larger ratio comes from a policy that has
/// nothing to do with this one. It has no gradient, since a single such token would own the update
/// of a step, and its exponential may overflow. Small ratios need no bound.
const MAX_LOG_RATIO: f64 = 30.0;

/// The largest gap between the log-probabilities of the reference and the policy that the KL
/// divergence counts. Its exponential, about 5e34, and its sums stay finite in single precision.
const MAX_KL_GAP: f64 = 80.0;

/// The loss tokens of one micro-batch, row after row.
#[derive(Clone, Copy, Debug)]
pub struct LossInput<'a> {
    /// Loss tokens of each row.
    pub rows: &'a [usize],
    /// Loss tokens of each row's completion. A completion that was sampled in several contexts has
    /// a row for each of them.
    pub completion_lengths: &'a [usize],
    /// Log-probabilities under the policy being trained.
    pub logprobs: &'a [f64],
    /// Under the policy in the ratio's denominator; absent: `logprobs` without gradient.
    pub old: Option<&'a [f64]>,
    /// Recorded when sampling, NaN where unknown; absent: no sampler correction.
    pub sampler: Option<&'a [f64]>,
    /// Under the reference policy; absent: no KL term.
    pub reference: Option<&'a [f64]>,
    /// Entropies of the policy being trained, in nats.
    pub entropies: &'a [f64],
    /// One per token.
    pub advantages: &'a [f64],
}

/// Divisors of a micro-batch's sums, by which micro-batches of any shape add up to the loss of the
/// batch.
///
/// This is exact for all terms without an entropy mask. With one (`top_entropy_quantile` < 1) the
/// threshold and the mean of the masked tokens are the micro-batch's own, as in TRL, so the sum
/// depends on how the batch is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossDivisors {
    /// [`LossSettings::divisor`] of the whole batch.
    pub policy: f64,
    /// Weight of this micro-batch in the entropy bonus: its share of the batch's loss tokens,
    /// without those of demonstrations.
    pub entropy_share: f64,
}

/// The loss of a micro-batch and its derivatives.
#[derive(Clone, Debug, PartialEq)]
pub struct LossOutput {
    /// This micro-batch's part of the loss.
    pub loss: f64,
    /// d loss / d log-probability, one per token.
    pub d_logprobs: Vec<f64>,
    /// d loss / d entropy, one per token; absent without an entropy bonus.
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
pub fn loss(input: &LossInput<'_>, settings: &LossSettings, divisors: LossDivisors) -> LossOutput {
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
    let mut sum = LossSum::new(input, settings);
    let policy = policy::policy_terms(
        input,
        settings,
        &ratios,
        &corrections,
        &mut sum.output.stats,
    );
    // VESPO's weight contains the correction.
    if settings.loss_type != LossType::Vespo {
        factors
            .iter_mut()
            .zip(&corrections)
            .for_each(|(factor, ratio)| *factor *= ratio);
    }
    sum.add_rows(input, settings, divisors.policy, &ratios, &policy, &factors);
    sum.add_ratio_gradients(input, settings.ratio_level, &ratios);
    sum.add_entropy_bonus(input, settings, divisors.entropy_share, &entropy_mask);
    sum.output
}

/// Compares the log-probabilities of learner and sampler (NaN where unknown), over `rows` as in
/// [`LossInput`].
pub fn sampling_stats(
    learner: &[f64],
    sampler: &[f64],
    rows: &[usize],
    settings: &LossSettings,
) -> SamplingStats {
    correction::sampler_ratios(learner, sampler, rows, settings).1
}

/// exp(log-probability - old log-probability) of tokens or of rows, where each token has its row's.
struct Ratios {
    /// log-probability - old log-probability, one per token.
    logs: Vec<f64>,
    values: Vec<f64>,
    /// d value / d its logarithm, one per token: the value, or 0 beyond [`MAX_LOG_RATIO`].
    slopes: Vec<f64>,
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
        let of_level: Vec<f64> = match level {
            RatioLevel::Token => logs.clone(),
            RatioLevel::Sequence => input
                .row_ranges()
                .flat_map(|row| {
                    let mean = logs[row.clone()].iter().sum::<f64>() / row.len().max(1) as f64;
                    std::iter::repeat_n(mean, row.len())
                })
                .collect(),
        };
        let slope = |&log: &f64| match log > MAX_LOG_RATIO {
            true => 0.0,
            false => log.exp(),
        };
        Self {
            values: of_level.iter().copied().map(bounded_exp).collect(),
            slopes: of_level.iter().map(slope).collect(),
            logs,
        }
    }
}

/// Returns the ratio with a logarithm, which counts as [`MAX_LOG_RATIO`] if it is larger.
fn bounded_exp(log_ratio: f64) -> f64 {
    log_ratio.min(MAX_LOG_RATIO).exp()
}

/// The loss and its derivatives while they are summed.
struct LossSum {
    output: LossOutput,
    /// d loss / d ratio, one per token; [`Self::add_ratio_gradients`] carries them on to the
    /// log-probabilities.
    d_ratios: Vec<f64>,
}

impl LossSum {
    fn new(input: &LossInput<'_>, settings: &LossSettings) -> Self {
        let tokens = input.logprobs.len();
        let stats = LossStats {
            tokens: tokens as f64,
            rows: input.rows.len() as f64,
            entropy: input.entropies.iter().sum(),
            kl: (settings.kl_coef != 0.0 && input.reference.is_some()).then_some(0.0),
            ..LossStats::default()
        };
        let output = LossOutput {
            loss: 0.0,
            d_logprobs: vec![0.0; tokens],
            d_entropies: None,
            stats,
        };
        let d_ratios = vec![0.0; tokens];
        Self { output, d_ratios }
    }

    /// Adds every token's policy term, times its factor, and its KL term.
    fn add_rows(
        &mut self,
        input: &LossInput<'_>,
        settings: &LossSettings,
        divisor: f64,
        ratios: &Ratios,
        policy: &[policy::PolicyTerm],
        factors: &[f64],
    ) {
        for (row, &length) in input.row_ranges().zip(input.completion_lengths) {
            let own = match settings.averages_completions() {
                true => length.max(1) as f64,
                false => 1.0,
            };
            let weight = 1.0 / (own * divisor);
            for t in row {
                let (term, policy_weight) = (policy[t], weight * factors[t]);
                self.output.loss += policy_weight * term.value;
                self.d_ratios[t] += policy_weight * term.d_ratio;
                self.output.d_logprobs[t] += policy_weight * term.d_logprob;
                if let Some(reference) = input.reference {
                    let gap = reference[t] - input.logprobs[t];
                    self.add_kl(t, gap, weight, ratios.values[t], settings);
                }
            }
        }
    }

    /// Adds the KL divergence of token `t` to the reference, by Schulman's estimator k3: exp(gap) -
    /// gap - 1, constant beyond [`MAX_KL_GAP`]. It is unbiased for tokens of the current policy;
    /// the ratio corrects it for tokens of an older one (DeepSeek-V3.2, arXiv:2512.02556).
    fn add_kl(&mut self, t: usize, gap: f64, weight: f64, ratio: f64, settings: &LossSettings) {
        let Some(sum) = &mut self.output.stats.kl else {
            return;
        };
        let is_bounded = gap > MAX_KL_GAP;
        let gap = gap.min(MAX_KL_GAP);
        let k3 = gap.exp() - gap - 1.0;
        let slope = match is_bounded {
            true => 0.0,
            false => 1.0 - gap.exp(),
        };
        let ratio = match settings.kl_bias_correction {
            true => ratio,
            false => 1.0,
        };
        let kl_weight = weight * settings.kl_coef;
        *sum += k3 * ratio;
        self.output.loss += kl_weight * k3 * ratio;
        self.output.d_logprobs[t] += kl_weight * ratio * slope;
        if settings.kl_bias_correction {
            self.d_ratios[t] += kl_weight * k3;
        }
    }

    /// Applies the chain rule from ratios to log-probabilities. A token's ratio depends on its own
    /// log-probability, a row's ratio on those of all its tokens.
    fn add_ratio_gradients(&mut self, input: &LossInput<'_>, level: RatioLevel, ratios: &Ratios) {
        for row in input.row_ranges() {
            match level {
                RatioLevel::Token => {
                    for t in row {
                        self.output.d_logprobs[t] += self.d_ratios[t] * ratios.slopes[t];
                    }
                }
                RatioLevel::Sequence => {
                    let total: f64 = self.d_ratios[row.clone()].iter().sum();
                    for t in row.clone() {
                        self.output.d_logprobs[t] += total * ratios.slopes[t] / row.len() as f64;
                    }
                }
            }
        }
    }

    fn add_entropy_bonus(
        &mut self,
        input: &LossInput<'_>,
        settings: &LossSettings,
        share: f64,
        mask: &[f64],
    ) {
        if settings.entropy_coef == 0.0 {
            return;
        }
        self.output.stats.policy_loss = Some(self.output.loss);
        let weight = settings.entropy_coef * share / mask.iter().sum::<f64>().max(1.0);
        let masked = input.entropies.iter().zip(mask);
        let masked = masked.map(|(entropy, mask)| entropy * mask);
        self.output.loss -= weight * masked.sum::<f64>();
        self.output.d_entropies = Some(mask.iter().map(|mask| -weight * mask).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded log-probabilities far from the policy's, with every loss, level and setting under
    /// which an infinite ratio used to meet a slope of zero.
    #[test]
    fn extreme_ratios_give_finite_derivatives() {
        let types = [
            LossType::Grpo,
            LossType::Bnpo,
            LossType::DrGrpo,
            LossType::Dapo,
            LossType::Cispo,
            LossType::Sapo,
            LossType::Luspo,
            LossType::Vespo,
        ];
        for loss_type in types {
            for ratio_level in [RatioLevel::Token, RatioLevel::Sequence] {
                for (recorded, reference) in [(-800.0, -1.0), (-1.0, -9_000.0), (-104.0, 0.0)] {
                    let settings = LossSettings {
                        loss_type,
                        ratio_level,
                        clip_high: Some(5.0),
                        delta: Some(4.0),
                        kl_coef: 0.1,
                        ..LossSettings::default()
                    };
                    assert_finite(&settings, recorded, reference);
                }
            }
        }
    }

    fn assert_finite(settings: &LossSettings, recorded: f64, reference: f64) {
        let (logprobs, old) = ([-0.5, -2.0, -9_999.0], [recorded; 3]);
        let input = LossInput {
            rows: &[2, 1],
            completion_lengths: &[2, 1],
            logprobs: &logprobs,
            old: Some(&old),
            sampler: Some(&old),
            reference: Some(&[reference; 3]),
            entropies: &[1.0; 3],
            advantages: &[1.0, -1.0, 0.0],
        };
        let divisors = LossDivisors {
            policy: 3.0,
            entropy_share: 1.0,
        };
        let output = loss(&input, settings, divisors);
        let single = |value: &f64| (*value as f32).is_finite();
        assert!(
            output.loss.is_finite() && output.d_logprobs.iter().all(single),
            "{settings:?} against {recorded}: {output:?}"
        );
    }
}
