//! Samples a token from softmax(logits / temperature) without filters, on the CPU.
//!
//! Invariant: weights are f32 by the crate's own exponential and sums run in a fixed order, so the
//! token is the same on every instruction set.

use super::math::exp;
use super::simd::{Kernel, LANES, Simd, dispatch};

/// Columns of a block. The search for the token goes over block sums first, then within one block.
const BLOCK: usize = 256;

/// Returns the token whose share of the cumulative distribution, in index order, contains `uniform`
/// in [0, 1). Returns `None` if a logit is NaN or plus infinity, or if none is finite.
pub(crate) fn draw_token(logits: &[f32], temperature: f32, uniform: f64) -> Option<u32> {
    let mut weights = vec![0.0; logits.len()];
    let blocks = dispatch(SoftmaxWeights {
        logits,
        inverse_temperature: temperature.recip(),
        weights: &mut weights,
    });
    let total: f64 = blocks.iter().sum();
    if !total.is_finite() {
        return None;
    }
    let target = uniform * total;
    let (mut before, mut held) = (0.0, None);
    for (block, weights) in blocks.iter().zip(weights.chunks(BLOCK).enumerate()) {
        if *block > 0.0 {
            held = Some((before, weights));
        }
        before += block;
        if target < before {
            break;
        }
    }
    let (before, (block, weights)) = held?;
    let mut cumulative = before;
    let holds = |&weight: &f32| {
        cumulative += f64::from(weight);
        target < cumulative
    };
    // Rounding can leave the sum a few ulp below the target.
    let place = weights
        .iter()
        .position(holds)
        .or_else(|| weights.iter().rposition(|&weight| weight > 0.0))?;
    Some((block * BLOCK + place) as u32)
}

struct SoftmaxWeights<'a> {
    logits: &'a [f32],
    inverse_temperature: f32,
    weights: &'a mut [f32],
}

impl Kernel for SoftmaxWeights<'_> {
    /// The sum of each block.
    type Output = Vec<f64>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Vec<f64> {
        // Loops instead of iterator adaptors: a closure that is not inlined is compiled without the
        // instruction set (measured: 17 % of the sampler's time as closures, 1 % as loops).
        let mut max = S::splat(f32::NEG_INFINITY);
        for logits in self.logits.chunks(LANES) {
            max = S::load_some(logits, f32::NEG_INFINITY).max(max);
        }
        let max = S::splat(max.max_lane());
        let scale = S::splat(self.inverse_temperature);
        let mut sums = Vec::with_capacity(self.logits.len().div_ceil(BLOCK));
        let blocks = self
            .logits
            .chunks(BLOCK)
            .zip(self.weights.chunks_mut(BLOCK));
        for (logits, weights) in blocks {
            let mut sum = S::splat(0.0);
            for (logits, weights) in logits.chunks(LANES).zip(weights.chunks_mut(LANES)) {
                let shifted = S::load_some(logits, f32::NEG_INFINITY).sub(max).mul(scale);
                let weight = exp(shifted);
                weight.store_some(weights);
                sum = sum.add(weight);
            }
            sums.push(f64::from(sum.sum_lanes()));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::simd::{InstructionSet, with_instruction_set};

    /// Shares of e^(logit / temperature) in f64.
    fn shares(logits: &[f32], temperature: f64) -> Vec<f64> {
        let weights: Vec<f64> = logits
            .iter()
            .map(|&logit| libm::exp(f64::from(logit) / temperature))
            .collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    #[test]
    fn every_token_takes_its_share() {
        for (columns, temperature) in [(1, 1.0), (7, 0.7), (256, 1.0), (1000, 1.3)] {
            let logits: Vec<f32> = (0..columns).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
            let mut cumulative = 0.0;
            for (token, share) in shares(&logits, f64::from(temperature)).iter().enumerate() {
                for within in [0.01, 0.5, 0.99] {
                    let uniform = cumulative + share * within;
                    let drawn = InstructionSet::available().into_iter().map(|set| {
                        with_instruction_set(set, || draw_token(&logits, temperature, uniform))
                    });
                    for drawn in drawn {
                        assert_eq!(drawn, Some(Some(token as u32)), "{uniform} of {columns}");
                    }
                }
                cumulative += share;
            }
        }
    }

    #[test]
    fn a_column_without_weight_is_never_drawn() {
        let low = f32::NEG_INFINITY;
        let mut logits = vec![low; 600];
        (logits[300], logits[310]) = (1.0, 1.0);
        for (uniform, token) in [(0.0, 300), (0.49, 300), (0.51, 310), (1.0 - 1e-16, 310)] {
            assert_eq!(draw_token(&logits, 1.0, uniform), Some(token));
        }
    }

    #[test]
    fn logits_that_are_no_numbers_give_no_token() {
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        for logits in [
            vec![],
            vec![nan; 3],
            vec![1.0, nan, 2.0],
            vec![1.0, 2.0, infinite],
            vec![-infinite; 3],
        ] {
            assert_eq!(draw_token(&logits, 1.0, 0.5), None, "{logits:?}");
        }
    }
}
