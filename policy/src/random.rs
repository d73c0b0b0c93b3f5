//! Counter-based randomness: a random number is a function of its coordinates in the run. Pure.
//!
//! Invariant: the value at given [`Coordinates`] is the same on every machine, in every batch, on
//! every thread and at every attempt. There is no generator state to share, seed or save.
//! [`derive_seed`] derives named seeds from the run seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// The coordinates of one sampled token in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Coordinates {
    /// The seed of the run.
    pub run_seed: u64,
    /// The group's index in the run.
    pub group: u64,
    /// The trajectory within the group.
    pub member: u32,
    /// The turn within the trajectory.
    pub turn: u32,
    /// The token within the turn's completion.
    pub position: u32,
}

impl Coordinates {
    /// Returns the uniform number in [0, 1) at these coordinates, with 53 random bits: the first
    /// output of ChaCha8 under the key that spells the coordinates.
    pub fn uniform(&self) -> f64 {
        let bits = chacha_output(&[
            &self.run_seed.to_le_bytes(),
            &self.group.to_le_bytes(),
            &self.member.to_le_bytes(),
            &self.turn.to_le_bytes(),
            &self.position.to_le_bytes(),
            b"draw",
        ]);
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the coordinates of another token of the turn.
    pub fn at(self, position: u32) -> Self {
        Self { position, ..self }
    }
}

/// Derives the seed that `label` names from `seed`: independent streams for shuffling,
/// initialisation, evaluation and so on.
pub fn derive_seed(seed: u64, label: &str) -> u64 {
    let mut state = absorb(seed, 0, &[]);
    for (index, chunk) in label.as_bytes().chunks(16).enumerate() {
        state = absorb(state, index as u32 + 1, chunk);
    }
    state
}

fn absorb(state: u64, index: u32, chunk: &[u8]) -> u64 {
    let mut padded = [0; 16];
    padded[..chunk.len()].copy_from_slice(chunk);
    // The length of the chunk is part of the key, so labels that differ in trailing zeros differ.
    let length = (index << 8 | chunk.len() as u32).to_le_bytes();
    chacha_output(&[&state.to_le_bytes(), &padded, &length, b"seed"])
}

/// Returns the first output of ChaCha8 under the key that the 32 bytes of `parts` spell.
fn chacha_output(parts: &[&[u8]]) -> u64 {
    let key = parts.concat().try_into();
    ChaCha8Rng::from_seed(key.expect("the parts are 32 bytes: this is a bug")).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from a ChaCha8 written in Python by the specification (RFC 8439 with 8 rounds,
    /// counter and nonce 0).
    #[test]
    fn numbers_agree_with_an_independent_chacha8() {
        let place = |run_seed, group, member, turn, position| Coordinates {
            run_seed,
            group,
            member,
            turn,
            position,
        };
        let max = u32::MAX;
        for (coordinates, expected) in [
            (place(0, 0, 0, 0, 0), 0.8713392968638889),
            (place(1, 2, 3, 4, 5), 0.3135914923045),
            (place(u64::MAX, u64::MAX, max, max, max), 0.6610791089025851),
        ] {
            assert_eq!(coordinates.uniform(), expected, "{coordinates:?}");
        }
        for (seed, label, expected) in [
            (0, "", 2272144428750679671),
            (0, "shuffle", 16566495471207814180),
            (7, "a label longer than one key block", 13974461778694871218),
        ] {
            assert_eq!(derive_seed(seed, label), expected, "{label}");
        }
    }

    #[test]
    fn every_coordinate_matters() {
        let base = Coordinates::default();
        let others = [
            Coordinates {
                run_seed: 1,
                ..base
            },
            Coordinates { group: 1, ..base },
            Coordinates { member: 1, ..base },
            Coordinates { turn: 1, ..base },
            base.at(1),
        ];
        let mut values: Vec<u64> = others
            .iter()
            .chain([&base])
            .map(|c| c.uniform().to_bits())
            .collect();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), 6);
    }

    #[test]
    fn labels_that_differ_in_trailing_zeros_differ() {
        assert_ne!(derive_seed(1, "a"), derive_seed(1, "a\0"));
        assert_ne!(derive_seed(1, ""), derive_seed(1, "\0"));
    }
}
