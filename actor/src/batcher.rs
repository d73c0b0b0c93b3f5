//! Which rows run in the next forward pass: continuous batching as counters.
//!
//! A row is one completion being sampled. Rows wait in order of arrival for one of the slots, where one that has reason to
//! wait lets those behind it pass; running rows that are about to sample get their one token first, the rest of the pass's
//! token budget feeds prompts in chunks. Rows enter and leave between passes. Invariant: a pass never exceeds the budget and
//! every running row makes progress while others finish. Leaves out tokens, caches and weights: those are the engine's
//! mechanism, this is its policy.

use std::collections::VecDeque;

/// Names a row for its life in the batcher.
pub type RowId = u64;

/// A run of one row's pending tokens to feed in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The row.
    pub row: RowId,
    /// Tokens to feed, at least one.
    pub tokens: usize,
    /// True where these are the last pending ones, so that a token is to be sampled after them.
    pub samples: bool,
}

#[derive(Debug)]
struct Running {
    row: RowId,
    pending_tokens: usize,
}

/// The waiting line and the running rows.
#[derive(Debug)]
pub struct Batcher {
    slots: usize,
    pass_tokens: usize,
    waiting: VecDeque<RowId>,
    running: Vec<Running>,
}

impl Batcher {
    /// At most `slots` rows run at once; a pass feeds at most `pass_tokens`, never fewer than one for each slot.
    #[must_use]
    pub fn new(slots: usize, pass_tokens: usize) -> Self {
        let slots = slots.max(1);
        Self {
            slots,
            pass_tokens: pass_tokens.max(slots),
            waiting: VecDeque::new(),
            running: Vec::new(),
        }
    }

    /// Rows that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Rows that wait for a slot.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// True where nothing runs or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Puts a row at the end of the line.
    pub fn arrive(&mut self, row: RowId) {
        self.waiting.push_back(row);
    }

    /// Takes the first of the line that is `ready` if a slot is free; [`Self::start`] follows. With nothing running, one row
    /// has to be ready.
    pub fn admit(&mut self, ready: impl Fn(RowId) -> bool) -> Option<RowId> {
        if self.running.len() == self.slots {
            return None;
        }
        let place = self.waiting.iter().position(|&row| ready(row))?;
        self.waiting.remove(place)
    }

    /// Lets an admitted row run with `pending_tokens` (at least one) to feed before its first sample.
    pub fn start(&mut self, row: RowId, pending_tokens: usize) {
        self.running.push(Running {
            row,
            pending_tokens: pending_tokens.max(1),
        });
    }

    /// The next pass: rows with one pending token first, then prompts in order of admission. Counts the chunks as fed.
    pub fn plan(&mut self) -> Vec<Chunk> {
        let mut budget = self.pass_tokens;
        let mut fed: Vec<&mut Running> = self.running.iter_mut().collect();
        // Stable, so that each kind keeps the order of admission.
        fed.sort_by_key(|running| running.pending_tokens > 1);
        fed.into_iter()
            .filter_map(|running| {
                let tokens = running.pending_tokens.min(budget);
                budget -= tokens;
                running.pending_tokens -= tokens;
                (tokens > 0).then_some(Chunk {
                    row: running.row,
                    tokens,
                    samples: running.pending_tokens == 0,
                })
            })
            .collect()
    }

    /// A token was sampled and is to be fed next.
    pub fn continues(&mut self, row: RowId) {
        if let Some(running) = self.running.iter_mut().find(|running| running.row == row) {
            running.pending_tokens = 1;
        }
    }

    /// A row is done; its slot is free.
    pub fn leave(&mut self, row: RowId) {
        self.running.retain(|running| running.row != row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn started(slots: usize, pass_tokens: usize, pending: &[usize]) -> Batcher {
        let mut batcher = Batcher::new(slots, pass_tokens);
        for row in 0..pending.len() {
            batcher.arrive(row as RowId);
        }
        while let Some(row) = batcher.admit(|_| true) {
            batcher.start(row, pending[row as usize]);
        }
        batcher
    }

    #[test]
    fn samples_come_before_prompts_and_prompts_come_in_chunks() {
        let mut batcher = started(3, 8, &[10, 1, 1]);
        assert_eq!(
            batcher.plan(),
            [
                Chunk {
                    row: 1,
                    tokens: 1,
                    samples: true
                },
                Chunk {
                    row: 2,
                    tokens: 1,
                    samples: true
                },
                Chunk {
                    row: 0,
                    tokens: 6,
                    samples: false
                },
            ]
        );
        batcher.continues(1);
        batcher.leave(2);
        assert_eq!(
            batcher.plan(),
            [
                Chunk {
                    row: 1,
                    tokens: 1,
                    samples: true
                },
                Chunk {
                    row: 0,
                    tokens: 4,
                    samples: true
                },
            ]
        );
    }

    #[test]
    fn rows_wait_in_order_for_a_slot() {
        let mut batcher = started(2, 64, &[1, 1, 1, 1]);
        assert_eq!((batcher.running(), batcher.waiting()), (2, 2));
        batcher.leave(1);
        assert_eq!(batcher.admit(|_| true), Some(2));
        batcher.start(2, 5);
        assert_eq!(batcher.admit(|_| true), None);
    }

    #[test]
    fn a_row_that_is_not_ready_is_passed_and_keeps_its_place() {
        let mut batcher = Batcher::new(2, 64);
        (0..3).for_each(|row| batcher.arrive(row));
        assert_eq!(batcher.admit(|row| row > 0), Some(1));
        batcher.start(1, 1);
        assert_eq!(batcher.admit(|row| row > 2), None);
        assert_eq!(batcher.admit(|_| true), Some(0));
    }

    proptest! {
        #[test]
        fn every_row_is_fed_exactly_and_finishes(
            slots in 1usize..6,
            pass_tokens in 1usize..20,
            rows in prop::collection::vec((1usize..40, 1usize..6), 0..20),
        ) {
            let mut batcher = Batcher::new(slots, pass_tokens);
            let mut left: BTreeMap<RowId, (usize, usize)> = BTreeMap::new();
            for (row, (prompt, samples)) in rows.iter().enumerate() {
                batcher.arrive(row as RowId);
                left.insert(row as RowId, (*prompt, *samples));
            }
            while !batcher.is_idle() {
                while let Some(row) = batcher.admit(|_| true) {
                    batcher.start(row, left[&row].0);
                }
                let chunks = batcher.plan();
                prop_assert!(!chunks.is_empty(), "each pass makes progress");
                prop_assert!(chunks.iter().map(|chunk| chunk.tokens).sum::<usize>() <= pass_tokens.max(slots));
                prop_assert!(chunks.len() <= slots);
                for chunk in chunks {
                    let (pending, samples) = left.get_mut(&chunk.row).unwrap();
                    *pending -= chunk.tokens;
                    prop_assert_eq!(chunk.samples, *pending == 0);
                    if chunk.samples {
                        *samples -= 1;
                        if *samples == 0 {
                            batcher.leave(chunk.row);
                        } else {
                            *pending = 1;
                            batcher.continues(chunk.row);
                        }
                    }
                }
            }
            prop_assert!(left.values().all(|counts| *counts == (0, 0)));
        }
    }
}
