//! Where the master copies of bf16 weights begin.
//!
//! A bf16 weight stands for all f32 values that are rounded to it. A master copy that begins at the
//! weight itself, in their middle, must move by half a unit in the last place before the rounded
//! weight changes, and the model that computes and samples would learn nothing of smaller updates:
//! after six steps at a learning rate of 2e-5, the weights of SmolLM2 had a tenth of the change of
//! their master copies. From a random value on, a rounded weight changes with the probability that
//! makes its mean change that of the master copy. Other trainers round each update at random
//! (stochastic rounding, Gupta et al. 2015, <https://arxiv.org/abs/1502.02551>). Here only the
//! beginning is random, so that an update stays a function of its gradient.

use policy::random::derive_seed;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// Moves each value, which is one of bf16, to a random f32 value that is rounded to it. The numbers
/// depend on `name` alone.
pub(super) fn dither(values: &mut [f32], name: &str) {
    let mut random = ChaCha8Rng::seed_from_u64(derive_seed(0, name));
    for four in values.chunks_mut(4) {
        let bits = random.next_u64();
        for (value, shift) in four.iter_mut().zip([0, 16, 32, 48]) {
            *value = moved(*value, (bits >> shift) as i16);
        }
    }
}

/// Moves a value of bf16 by `offset` f32 values. 2^15 of them lie between it and the next value of
/// bf16 half-way.
fn moved(value: f32, offset: i16) -> f32 {
    // A weight of exactly zero stays zero.
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    // The ends of the interval are rounded to even, which may be the neighbour.
    let offset = i32::from(offset.max(-i16::MAX));
    f32::from_bits(value.to_bits().wrapping_add_signed(offset))
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn every_value_is_still_rounded_to_its_weight() {
        for bits in 0..=u16::MAX {
            let weight = bf16::from_bits(bits);
            for offset in [i16::MIN, -i16::MAX, -1, 0, 1, 12_345, i16::MAX] {
                let rounded = bf16::from_f32(moved(weight.to_f32(), offset));
                let is_same = rounded == weight || weight.is_nan() && rounded.is_nan();
                assert!(is_same, "{weight} and {offset}: {rounded}");
            }
        }
    }

    /// Half a unit in the last place of these weights is 4.9e-4, so all updates but the last would
    /// be lost from the middle on.
    #[test]
    fn the_mean_change_of_rounded_weights_is_the_update() {
        let weight = bf16::from_f32(0.2).to_f32();
        let mut masters = vec![weight; 100_000];
        dither(&mut masters, "model.layers.0.mlp.up_proj.weight");
        for update in [2e-5, -1e-4, 4e-4, 2e-3] {
            let change = |master: &f32| bf16::from_f32(master + update).to_f32() - weight;
            let mean: f32 = masters.iter().map(change).sum::<f32>() / masters.len() as f32;
            // Four standard errors of the mean of changes by one unit, of 9.8e-4.
            let error = 4.0 * (update.abs() * 9.8e-4 / masters.len() as f32).sqrt();
            assert!((mean - update).abs() < error, "{update}: {mean}");
        }
    }

    #[test]
    fn names_have_numbers_of_their_own() {
        let masters = |name| {
            let mut values = vec![0.5; 9];
            dither(&mut values, name);
            values
        };
        assert_eq!(masters("a"), masters("a"));
        assert_ne!(masters("a"), masters("b"));
        let all = masters("a");
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    }
}
