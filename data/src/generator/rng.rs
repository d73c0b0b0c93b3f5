//! Random numbers that depend only on a seed and a name. Pure.
//!
//! Invariant: draws use integer arithmetic on the output of ChaCha8, so every machine draws the
//! same numbers. Streams are never shared: each purpose names its own stream, so a change in one
//! place does not shift the draws of another.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::hash;

/// A named stream of random numbers.
pub(crate) struct RngStream(ChaCha8Rng);

impl RngStream {
    pub(crate) fn new(seed: u64, name: &[&str]) -> Self {
        let seed = seed.to_string();
        let parts: Vec<&str> = std::iter::once(seed.as_str())
            .chain(name.iter().copied())
            .collect();
        Self(ChaCha8Rng::from_seed(hash::name_hash(&parts)))
    }

    /// Draws uniformly from `0..n`. `n` must be positive.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        // The high half of a 64x64-bit product: the bias is below n / 2^64.
        ((u128::from(self.0.next_u64()) * n as u128) >> 64) as usize
    }

    /// Draws uniformly from `low..=high`.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// Returns true with a probability of `percent` per cent.
    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent as usize
    }

    /// Draws an index from `0..n` where index k has weight 1 / (k + 1).
    pub(crate) fn zipf(&mut self, n: usize) -> usize {
        const UNIT: usize = 1 << 20;
        let total: usize = (1..=n).map(|rank| UNIT / rank).sum();
        let mut point = self.below(total);
        for rank in 1..=n {
            match point.checked_sub(UNIT / rank) {
                Some(rest) => point = rest,
                None => return rank - 1,
            }
        }
        n - 1
    }

    /// Draws an index with a probability in proportion to its weight. One weight must be positive.
    pub(crate) fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut point = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            match point.checked_sub(*weight) {
                Some(rest) => point = rest,
                None => return index,
            }
        }
        weights.len() - 1
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden values, drawn with rand_chacha 0.10.0. A change here changes every build.
    #[test]
    fn the_draws_of_a_name_never_change() {
        let mut rng = RngStream::new(1, &["library", "books"]);
        let draws: Vec<usize> = (0..8).map(|_| rng.below(1000)).collect();
        assert_eq!(draws, [748, 743, 825, 428, 498, 403, 390, 217]);
    }

    #[test]
    fn names_are_hashed_part_by_part() {
        let first = |name: &[&str]| RngStream::new(1, name).below(usize::MAX);
        assert_ne!(first(&["ab", "c"]), first(&["a", "bc"]));
        assert_ne!(first(&["a"]), RngStream::new(2, &["a"]).below(usize::MAX));
    }

    #[test]
    fn draws_stay_in_range_and_zipf_falls() {
        let mut rng = RngStream::new(7, &["range"]);
        let mut counts = [0; 5];
        for _ in 0..10_000 {
            assert!((3..=9).contains(&rng.between(3, 9)));
            counts[rng.zipf(5)] += 1;
        }
        assert!(
            counts.windows(2).all(|pair| pair[0] > pair[1]),
            "{counts:?}"
        );
        // Weight 1 of 1 + 1/2 + 1/3 + 1/4 + 1/5.
        assert!((4_200..4_560).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn a_shuffle_keeps_what_it_shuffles() {
        let mut items: Vec<u32> = (0..50).collect();
        RngStream::new(3, &["shuffle"]).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
