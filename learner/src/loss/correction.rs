//! Factors of the policy term without gradient: sampler correction, off-policy mask and entropy
//! mask.
//!
//! Pure. None of them applies to the KL term.

use super::{LossInput, LossSettings, SamplerCorrection, bounded_exp, stats::SamplingStats};

/// Returns the ratios of the sampler correction, one per token, and their statistics. Each token of
/// a row has the row's ratio. Without a correction the ratios are those of the tokens.
pub(super) fn sampler_ratios(
    learner: &[f64],
    sampler: &[f64],
    rows: &[usize],
    settings: &LossSettings,
) -> (Vec<f64>, SamplingStats) {
    let mut stats = SamplingStats::default();
    let gap = |(learner, sampler): (&f64, &f64)| {
        if sampler.is_nan() {
            return 0.0;
        }
        stats.add_difference(learner - sampler);
        learner - sampler
    };
    let gaps: Vec<f64> = learner.iter().zip(sampler).map(gap).collect();
    let mut ratios = Vec::with_capacity(gaps.len());
    let mut rest = gaps.as_slice();
    for &len in rows {
        let (row, tail) = rest.split_at(len);
        rest = tail;
        row_ratios(row, settings, &mut ratios, &mut stats);
    }
    (ratios, stats)
}

fn row_ratios(
    gaps: &[f64],
    settings: &LossSettings,
    out: &mut Vec<f64>,
    stats: &mut SamplingStats,
) {
    let min = settings.sampler_clip_min.unwrap_or(f64::NEG_INFINITY);
    let max = settings.sampler_clip_max.unwrap_or(f64::INFINITY);
    let bound = |ratio: f64| match settings.sampler_correction {
        SamplerCorrection::Off => ratio,
        SamplerCorrection::TokenTruncate | SamplerCorrection::SequenceTruncate => {
            ratio.max(min).min(max)
        }
        SamplerCorrection::TokenMask | SamplerCorrection::SequenceMask => {
            match (min..=max).contains(&ratio) {
                true => ratio,
                false => 0.0,
            }
        }
    };
    match settings.sampler_correction {
        SamplerCorrection::Off
        | SamplerCorrection::TokenMask
        | SamplerCorrection::TokenTruncate => {
            for gap in gaps {
                let ratio = bound(bounded_exp(*gap));
                stats.add_ratio(ratio);
                out.push(ratio);
            }
        }
        SamplerCorrection::SequenceMask | SamplerCorrection::SequenceTruncate => {
            let ratio = bound(bounded_exp(gaps.iter().sum()));
            stats.add_ratio(ratio);
            out.extend(std::iter::repeat_n(ratio, gaps.len()));
        }
    }
}

/// Returns 1 for tokens that the off-policy mask keeps, else 0. It drops tokens of negative
/// advantage in rows whose log-probability fell too far: they push a policy further away that has
/// left them already (DeepSeek-V3.2, arXiv:2512.02556).
pub(super) fn off_policy_mask(input: &LossInput<'_>, settings: &LossSettings) -> Vec<f64> {
    let Some(threshold) = settings.off_policy_mask_threshold else {
        return vec![1.0; input.logprobs.len()];
    };
    let behaviour = input.sampler.or(input.old).unwrap_or(input.logprobs);
    let mut keep = Vec::with_capacity(input.logprobs.len());
    for row in input.row_ranges() {
        let drift: f64 = row.clone().map(|t| behaviour[t] - input.logprobs[t]).sum();
        let near = drift / row.len().max(1) as f64 <= threshold;
        keep.extend(row.map(|t| f64::from(u8::from(near || input.advantages[t] >= 0.0))));
    }
    keep
}

/// Returns 1 for the tokens in the top `top_quantile` by entropy, else 0.
///
/// The threshold is the linearly interpolated quantile over these tokens, those of one micro-batch,
/// with the roundings of `torch.quantile` in f32 (torch 2.15), as in TRL: whether a token exactly
/// at the threshold counts depends on them.
pub(super) fn entropy_mask(entropies: &[f64], top_quantile: f64) -> Vec<f64> {
    if top_quantile >= 1.0 || entropies.is_empty() {
        return vec![1.0; entropies.len()];
    }
    let mut sorted: Vec<f32> = entropies.iter().map(|&e| e as f32).collect();
    sorted.sort_by(f32::total_cmp);
    let level = (1.0 - top_quantile) as f32;
    let rank = f64::from(level) * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    let threshold = lerp(below, above, (rank - rank.floor()) as f32);
    entropies
        .iter()
        .map(|&e| f64::from(u8::from(e as f32 >= threshold)))
        .collect()
}

/// Interpolates as torch does: from the nearer end, with a fused product and sum.
fn lerp(start: f32, end: f32, weight: f32) -> f32 {
    match weight < 0.5 {
        true => weight.mul_add(end - start, start),
        false => (weight - 1.0).mul_add(end - start, end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counts are those of `entropies >= torch.quantile(entropies, 1 - q)` in torch 2.15.
    #[test]
    fn the_top_quantile_is_that_of_torch() {
        for (tokens, top_quantile, kept) in [
            (26, 0.4, 10),
            (51, 0.7, 35),
            (101, 0.85, 85),
            (21, 0.9, 19),
            (7, 0.5, 4),
            (11, 0.2, 3),
            (1, 0.3, 1),
        ] {
            let entropies: Vec<f64> = (0..tokens).map(f64::from).collect();
            let mask = entropy_mask(&entropies, top_quantile);
            let found = mask.iter().filter(|&&weight| weight == 1.0).count();
            assert_eq!(found, kept, "{top_quantile} of {tokens}");
        }
    }
}
