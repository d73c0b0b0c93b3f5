//! The policy term of each loss type: clipped ratio, SAPO's gate, CISPO's and VESPO's weights.
//!
//! Pure. Without factors, KL and aggregation, which `loss` adds.

use std::ops::Range;

use super::{
    CispoStats, ClipStats, LossInput, LossSettings, LossStats, LossType, RatioLevel, Ratios,
    SamplerCorrection,
};

/// ln 1e-8 and 20: the bounds of VESPO's log weight.
const VESPO_LOG_BOUNDS: (f64, f64) = (-18.420_680_743_952_367, 20.0);

/// One token's policy term: its value and its derivatives by the ratio and by the log-probability itself.
#[derive(Clone, Copy, Default)]
pub(super) struct Term {
    pub(super) value: f64,
    pub(super) d_ratio: f64,
    pub(super) d_logprob: f64,
}

/// Every token's policy term; counts what was clipped or weighted into `stats`.
pub(super) fn terms(
    input: &LossInput<'_>,
    settings: &LossSettings,
    ratios: &Ratios,
    corrections: &[f64],
    stats: &mut LossStats,
) -> Vec<Term> {
    let tokens = input
        .advantages
        .iter()
        .zip(&ratios.values)
        .zip(input.logprobs);
    match settings.loss_type {
        LossType::Sapo => tokens
            .map(|((&a, &r), _)| sapo_term(a, r, settings))
            .collect(),
        LossType::Cispo => {
            stats.cispo = Some(cispo_share(input, settings, ratios));
            let weight = |a: f64, r: f64| r.min(settings.high()) * a;
            tokens
                .map(|((&a, &r), &l)| weighted_term(weight(a, r), l))
                .collect()
        }
        LossType::Vespo => {
            let phi = vespo_phi(input, settings, ratios, corrections);
            stats.vespo_phi = Some(input.row_ranges().map(|row| mean_or(&phi[row], 1.0)).sum());
            tokens
                .zip(phi)
                .map(|(((&a, _), &l), phi)| weighted_term(phi * a, l))
                .collect()
        }
        LossType::Grpo | LossType::Bnpo | LossType::DrGrpo | LossType::Dapo | LossType::Luspo => {
            stats.clip = Some(clip_stats(input, settings, ratios));
            tokens
                .map(|((&a, &r), _)| clipped_term(a, r, settings))
                .collect()
        }
    }
}

/// `-min(min(ratio, delta) * a, clip(ratio) * a)`.
fn clipped_term(a: f64, ratio: f64, settings: &LossSettings) -> Term {
    let (low, high) = (1.0 - settings.clip_low, 1.0 + settings.high());
    let cap = settings.delta.unwrap_or(f64::INFINITY);
    let open = (ratio.min(cap) * a, if ratio < cap { a } else { 0.0 });
    let clipped = (
        ratio.clamp(low, high) * a,
        if low < ratio && ratio < high { a } else { 0.0 },
    );
    let (value, slope) = if open.0 == clipped.0 {
        (open.0, 0.5 * (open.1 + clipped.1))
    } else if open.0 < clipped.0 {
        open
    } else {
        clipped
    };
    Term {
        value: -value,
        d_ratio: -slope,
        d_logprob: 0.0,
    }
}

/// `-a * sigmoid(t * (ratio - 1)) * 4 / t`.
fn sapo_term(a: f64, ratio: f64, settings: &LossSettings) -> Term {
    let positive = a > 0.0;
    let t = if positive {
        settings.sapo_temperature_pos
    } else {
        settings.sapo_temperature_neg
    };
    let gate = 1.0 / (1.0 + (-t * (ratio - 1.0)).exp());
    Term {
        value: -a * gate * 4.0 / t,
        d_ratio: -4.0 * a * gate * (1.0 - gate),
        d_logprob: 0.0,
    }
}

/// `-weight * logprob`, the weight without gradient.
fn weighted_term(weight: f64, logprob: f64) -> Term {
    Term {
        value: -weight * logprob,
        d_ratio: 0.0,
        d_logprob: -weight,
    }
}

/// VESPO's weight `exp(lambda + k * ln w - lambda * w)`, w the row's bounded importance weight.
fn vespo_phi(
    input: &LossInput<'_>,
    settings: &LossSettings,
    ratios: &Ratios,
    corrections: &[f64],
) -> Vec<f64> {
    let (low, high) = VESPO_LOG_BOUNDS;
    let by_row = matches!(
        settings.sampler_correction,
        SamplerCorrection::SequenceMask | SamplerCorrection::SequenceTruncate
    );
    let mut out = Vec::with_capacity(ratios.logs.len());
    for row in input.row_ranges() {
        let drift: f64 = ratios.logs[row.clone()]
            .iter()
            .map(|d| d.clamp(-20.0, 20.0))
            .sum();
        let counted = if by_row {
            row.start..row.end.min(row.start + 1)
        } else {
            row.clone()
        };
        let mismatch: f64 = corrections[counted]
            .iter()
            .map(|c| c.ln().clamp(low, high))
            .sum();
        let log_w = (drift + mismatch).clamp(low, high);
        out.extend(row.map(|t| {
            let (k, lambda) = if input.advantages[t] >= 0.0 {
                (settings.vespo_k_pos, settings.vespo_lambda_pos)
            } else {
                (settings.vespo_k_neg, settings.vespo_lambda_neg)
            };
            let phi = (lambda + k * log_w - lambda * log_w.exp()).exp();
            if phi.is_finite() { phi } else { 0.0 }
        }));
    }
    out
}

fn clip_stats(input: &LossInput<'_>, settings: &LossSettings, ratios: &Ratios) -> ClipStats {
    let cap = settings.delta.unwrap_or(f64::INFINITY);
    let (low, high) = (1.0 - settings.clip_low, 1.0 + settings.high());
    let is_low = |t: usize| ratios.values[t].min(cap) < low && input.advantages[t] < 0.0;
    let is_high = |t: usize| ratios.values[t].min(cap) > high && input.advantages[t] > 0.0;
    let mut stats = ClipStats::default();
    for row in input.row_ranges() {
        let units = units(&row, settings.ratio_level);
        let count = |hit: &dyn Fn(usize) -> bool| {
            let counted = row.clone().take(units as usize);
            counted.filter(|&t| hit(t)).count() as f64
        };
        stats.row(units, count(&is_low), count(&is_high), !row.is_empty());
    }
    stats
}

fn cispo_share(input: &LossInput<'_>, settings: &LossSettings, ratios: &Ratios) -> CispoStats {
    let capped = |t: &usize| ratios.values[*t] > settings.high() && input.advantages[*t] > 0.0;
    let mut stats = CispoStats::default();
    for row in input.row_ranges() {
        let units = units(&row, settings.ratio_level);
        stats.capped += row.take(units as usize).filter(capped).count() as f64;
        stats.units += units;
    }
    stats
}

/// Tokens at token level; one row at sequence level, even an empty one.
fn units(row: &Range<usize>, level: RatioLevel) -> f64 {
    match level {
        RatioLevel::Token => row.len() as f64,
        RatioLevel::Sequence => 1.0,
    }
}

fn mean_or(values: &[f64], empty: f64) -> f64 {
    if values.is_empty() {
        empty
    } else {
        values.iter().sum::<f64>() / values.len() as f64
    }
}
