//! The steps whose query hit the wall clock.
//!
//! Invariant: the number of steps is bounded and the oldest are dropped first. A dropped step
//! counts as new, which costs one more retry. `environment.rs` decides what is answered.

use std::collections::VecDeque;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// Steps that are kept. A retry comes within seconds; a machine with more hits in between is
/// broken.
const CAPACITY: usize = 1_024;

/// A bounded set of steps, each as the hash of the token before it and its SQL.
#[derive(Debug, Default)]
pub(crate) struct WallClockHits(Mutex<VecDeque<[u8; 32]>>);

impl WallClockHits {
    /// Adds a step. Returns whether it was not in the set.
    pub(crate) fn insert(&self, token: &[u8], sql: &str) -> bool {
        // The length of the token is hashed too, so no other pair gives the same bytes.
        let hasher = Sha256::new()
            .chain_update(token.len().to_le_bytes())
            .chain_update(token)
            .chain_update(sql);
        let step = hasher.finalize().into();
        let mut steps = self.0.lock();
        if steps.contains(&step) {
            return false;
        }
        if steps.len() == CAPACITY {
            steps.pop_front();
        }
        steps.push_back(step);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_new_once_and_the_oldest_is_dropped() {
        let hits = WallClockHits::default();
        let is_new = |number: usize| hits.insert(b"token", &number.to_string());
        assert!(is_new(0) && !is_new(0));
        assert!(hits.insert(b"other", "0"));
        assert!((1..CAPACITY).all(is_new));
        assert!(is_new(0), "dropped");
        assert!(!is_new(CAPACITY - 1));
        assert!(hits.insert(b"ab", "c") && hits.insert(b"a", "bc"));
    }
}
