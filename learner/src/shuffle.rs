//! Random orders: the same for the same seed, epoch and purpose.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// Returns the random generator of an epoch for one purpose.
pub(crate) fn epoch_rng(seed: u64, epoch: u64, purpose: &[u8; 8]) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    key[16..24].copy_from_slice(purpose);
    ChaCha8Rng::from_seed(key)
}

/// Returns the numbers `0..len` in an order drawn from `rng`.
pub(crate) fn shuffled(len: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        order.swap(last, below(last as u64 + 1, rng) as usize);
    }
    order
}

/// Draws a uniform number below `bound`. Draws from the incomplete last range of u64 are rejected,
/// as a remainder of them would be biased.
fn below(bound: u64, rng: &mut ChaCha8Rng) -> u64 {
    let fair = u64::MAX - u64::MAX % bound;
    loop {
        let draw = rng.next_u64();
        if draw < fair {
            return draw % bound;
        }
    }
}
