//! The steps whose query hit the wall clock.
//!
//! Invariant: the number of steps is bounded and the oldest are dropped first. A dropped step
//! counts as new, which costs one more retry. `environment.rs` decides what is answered.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use sha2::{Digest, Sha256};

/// Steps that are kept. A retry comes within seconds; a machine with more hits in between is
/// broken.
const CAPACITY: usize = 1_024;

/// Names a step: the token before it and its SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepId([u8; 32]);

impl StepId {
    pub(crate) fn new(token: &[u8], sql: &str) -> Self {
        // The length of the token is hashed too, so no other pair gives the same bytes.
        let hasher = Sha256::new()
            .chain_update(token.len().to_le_bytes())
            .chain_update(token)
            .chain_update(sql);
        Self(hasher.finalize().into())
    }
}

/// A bounded set of steps.
#[derive(Debug, Default)]
pub(crate) struct WallClockHits(Mutex<VecDeque<StepId>>);

impl WallClockHits {
    /// Adds `step`. Returns whether it was not in the set.
    pub(crate) fn insert(&self, step: StepId) -> bool {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        let step = |number: usize| StepId::new(b"token", &number.to_string());
        assert!(hits.insert(step(0)) && !hits.insert(step(0)));
        assert!(hits.insert(StepId::new(b"other", "0")));
        assert!(StepId::new(b"ab", "c") != StepId::new(b"a", "bc"));
        assert!((1..CAPACITY).all(|number| hits.insert(step(number))));
        assert!(hits.insert(step(0)), "dropped");
        assert!(!hits.insert(step(CAPACITY - 1)));
    }
}
