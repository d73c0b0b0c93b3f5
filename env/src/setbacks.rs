//! The steps whose query hit the wall clock.
//!
//! Invariant: bounded, the oldest are forgotten first; a step that is forgotten counts as new, which costs one more retry.
//! Leaves out what is answered: that is `node.rs`.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use sha2::{Digest, Sha256};

/// Steps remembered. A retry comes within seconds; that many hits between are a broken machine.
const CAPACITY: usize = 1_024;

/// Names a step: the token before it and its SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepId([u8; 32]);

impl StepId {
    pub(crate) fn new(token: &[u8], sql: &str) -> Self {
        // A token's length is part of what is hashed: no other pair gives the same bytes.
        let hasher = Sha256::new()
            .chain_update(token.len().to_le_bytes())
            .chain_update(token)
            .chain_update(sql);
        Self(hasher.finalize().into())
    }
}

/// A bounded memory of steps.
#[derive(Debug, Default)]
pub(crate) struct Setbacks(Mutex<VecDeque<StepId>>);

impl Setbacks {
    /// Remembers `step`; whether it was not there before.
    pub(crate) fn is_first(&self, step: StepId) -> bool {
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
    fn a_step_is_first_once_and_the_oldest_is_forgotten() {
        let setbacks = Setbacks::default();
        let step = |number: usize| StepId::new(b"token", &number.to_string());
        assert!(setbacks.is_first(step(0)) && !setbacks.is_first(step(0)));
        assert!(setbacks.is_first(StepId::new(b"other", "0")));
        assert!(StepId::new(b"ab", "c") != StepId::new(b"a", "bc"));
        assert!((1..CAPACITY).all(|number| setbacks.is_first(step(number))));
        assert!(setbacks.is_first(step(0)), "forgotten");
        assert!(!setbacks.is_first(step(CAPACITY - 1)));
    }
}
