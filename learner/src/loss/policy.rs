//! The policy term of each loss: the clipped ratio, SAPO's gate, CISPO's and VESPO's weights.
//!
//! Pure. Masks, corrections, KL and aggregation are not here; `loss` adds them.

use std::ops::Range;

use super::{
    CispoStats, ClipStats, LossInput, LossSettings, LossStats, LossType, RatioLevel, Ratios,
    SamplerCorrection, settings::ClipRange,
};

/// ln 1e-8 and 20: the bounds of VESPO's log weight.
const VESPO_LOG_BOUNDS: (f64, f64) = (-18.420_680_743_952_367, 20.0);

/// One token's policy term: its value and its derivatives by the ratio and by the log-probability
/// itself.
#[derive(Clone, Copy, Default)]
pub(super) struct PolicyTerm {
    pub(super) value: f64,
    pub(super) d_ratio: f64,
    pub(super) d_logprob: f64,
}

/// Returns every token's policy term, and counts in `stats` what was clipped or weighted.
pub(super) fn policy_terms(
    input: &LossInput<'_>,
    settings: &LossSettings,
    ratios: &Ratios,
    corrections: &[f64],
    stats: &mut LossStats,
) -> Vec<PolicyTerm> {
    let level = settings.ratio_level;
    let tokens = input.advantages.iter().zip(&ratios.values);
    match settings.loss_type {
        LossType::Grpo | LossType::Bnpo | LossType::DrGrpo | LossType::Dapo | LossType::Luspo => {
            let clip = settings.clip();
            stats.clip = Some(clip_stats(input, clip, level, ratios));
            tokens.map(|(&a, &r)| clipped_term(a, r, clip)).collect()
        }
        LossType::Sapo => tokens
            .map(|(&a, &r)| match a > 0.0 {
                true => sapo_term(a, r, settings.sapo_temperature_pos),
                false => sapo_term(a, r, settings.sapo_temperature_neg),
            })
            .collect(),
        LossType::Cispo => {
            let ratio_cap = settings.clip_high.unwrap_or(f64::INFINITY);
            stats.cispo = Some(cispo_stats(input, ratio_cap, level, ratios));
            let logprobs = tokens.zip(input.logprobs);
            logprobs
                .map(|((&a, &r), &logprob)| weighted_term(r.min(ratio_cap) * a, logprob))
                .collect()
        }
        LossType::Vespo => {
            let phi = vespo_phi(input, settings, ratios, corrections);
            stats.vespo_phi = Some(input.row_ranges().map(|row| mean_or(&phi[row], 1.0)).sum());
            let tokens = input.advantages.iter().zip(input.logprobs).zip(phi);
            tokens
                .map(|((&a, &logprob), phi)| weighted_term(phi * a, logprob))
                .collect()
        }
    }
}

/// `-min(min(ratio, delta) * a, clip(ratio) * a)`.
fn clipped_term(a: f64, ratio: f64, ClipRange { low, high, delta }: ClipRange) -> PolicyTerm {
    let open = (ratio.min(delta) * a, if ratio < delta { a } else { 0.0 });
    let clipped = (
        ratio.clamp(low, high) * a,
        if low < ratio && ratio < high { a } else { 0.0 },
    );
    // As in torch: a clamp has no gradient at its bound, and a tie of `min` splits the gradient.
    let (value, slope) = if open.0 == clipped.0 {
        (open.0, 0.5 * (open.1 + clipped.1))
    } else if open.0 < clipped.0 {
        open
    } else {
        clipped
    };
    PolicyTerm {
        value: -value,
        d_ratio: -slope,
        d_logprob: 0.0,
    }
}

/// `-a * sigmoid(t * (ratio - 1)) * 4 / t`.
fn sapo_term(a: f64, ratio: f64, t: f64) -> PolicyTerm {
    let gate = 1.0 / (1.0 + (-t * (ratio - 1.0)).exp());
    PolicyTerm {
        value: -a * gate * 4.0 / t,
        d_ratio: -4.0 * a * gate * (1.0 - gate),
        d_logprob: 0.0,
    }
}

/// `-weight * logprob`, the weight without gradient.
fn weighted_term(weight: f64, logprob: f64) -> PolicyTerm {
    PolicyTerm {
        value: -weight * logprob,
        d_ratio: 0.0,
        d_logprob: -weight,
    }
}

/// Returns VESPO's weight `exp(lambda + k * ln w - lambda * w)`, w the row's bounded importance
/// weight.
fn vespo_phi(
    input: &LossInput<'_>,
    settings: &LossSettings,
    ratios: &Ratios,
    corrections: &[f64],
) -> Vec<f64> {
    let (low, high) = VESPO_LOG_BOUNDS;
    // Each token has the correction of its row, but VESPO's weight takes it once.
    let by_row = matches!(
        settings.sampler_correction,
        SamplerCorrection::SequenceMask | SamplerCorrection::SequenceTruncate
    );
    let mut out = Vec::with_capacity(ratios.logs.len());
    for row in input.row_ranges() {
        let logs = ratios.logs[row.clone()].iter();
        let drift: f64 = logs.map(|log| log.clamp(-20.0, 20.0)).sum();
        let counted = match by_row {
            true => row.start..row.end.min(row.start + 1),
            false => row.clone(),
        };
        let mismatch = corrections[counted].iter();
        let mismatch: f64 = mismatch.map(|c| c.ln().clamp(low, high)).sum();
        let log_w = (drift + mismatch).clamp(low, high);
        out.extend(row.map(|t| {
            let (k, lambda) = match input.advantages[t] >= 0.0 {
                true => (settings.vespo_k_pos, settings.vespo_lambda_pos),
                false => (settings.vespo_k_neg, settings.vespo_lambda_neg),
            };
            let phi = (lambda + k * log_w - lambda * log_w.exp()).exp();
            if phi.is_finite() { phi } else { 0.0 }
        }));
    }
    out
}

fn clip_stats(
    input: &LossInput<'_>,
    clip: ClipRange,
    level: RatioLevel,
    ratios: &Ratios,
) -> ClipStats {
    let ratio = |t: usize| ratios.values[t].min(clip.delta);
    let is_low = |t: &usize| ratio(*t) < clip.low && input.advantages[*t] < 0.0;
    let is_high = |t: &usize| ratio(*t) > clip.high && input.advantages[*t] > 0.0;
    let mut stats = ClipStats::default();
    for row in input.row_ranges() {
        let units = units(&row, level);
        let counted = || row.clone().take(units as usize);
        let low = counted().filter(is_low).count() as f64;
        let high = counted().filter(is_high).count() as f64;
        stats.add_row(units, low, high, !row.is_empty());
    }
    stats
}

fn cispo_stats(
    input: &LossInput<'_>,
    ratio_cap: f64,
    level: RatioLevel,
    ratios: &Ratios,
) -> CispoStats {
    let capped = |t: &usize| ratios.values[*t] > ratio_cap && input.advantages[*t] > 0.0;
    let mut stats = CispoStats::default();
    for row in input.row_ranges() {
        let units = units(&row, level);
        stats.capped += row.take(units as usize).filter(capped).count() as f64;
        stats.units += units;
    }
    stats
}

/// Returns the ratios of a row: one per token, or at sequence level one, even for an empty row.
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
