//! Schedules the rows of the next forward pass: continuous batching with chunked prefill. Pure.
//!
//! A row is one completion being sampled. Rows wait for a slot in order of arrival, but a row that
//! must wait for a prefix lets the rows behind it pass. Rows enter and leave between passes.
//!
//! Decode comes first: each row with a single pending token gets it in every pass, so a long prompt
//! never delays the rows that are sampling. The rest of the pass's token budget prefills prompts in
//! chunks, in order of admission. Completing the oldest prompts first lets their rows sample early.
//!
//! Invariant: a pass never exceeds the budget, and each pass makes progress. This file only
//! decides; tokens, caches and weights belong to the sampler.

use std::collections::VecDeque;

/// Identifies a row while it is in the batcher.
pub(crate) type RowId = u64;

/// A run of one row's pending tokens that a pass computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduledTokens {
    /// The row.
    pub(crate) row: RowId,
    /// Number of tokens, at least one.
    pub(crate) tokens: usize,
    /// True if these are the last pending tokens, so that a token is sampled after them.
    pub(crate) samples: bool,
}

#[derive(Debug)]
struct PendingRow {
    row: RowId,
    pending_tokens: usize,
}

/// The waiting rows and the running rows.
#[derive(Debug)]
pub(crate) struct Batcher {
    slots: usize,
    pass_tokens: usize,
    waiting: VecDeque<RowId>,
    running: Vec<PendingRow>,
}

impl Batcher {
    /// Creates a batcher that runs at most `slots` rows at once. A pass computes at most
    /// `pass_tokens`, which is raised to one token per slot so that every decoding row fits.
    pub(crate) fn new(slots: usize, pass_tokens: usize) -> Self {
        let slots = slots.max(1);
        Self {
            slots,
            pass_tokens: pass_tokens.max(slots),
            waiting: VecDeque::new(),
            running: Vec::new(),
        }
    }

    /// Returns the number of running rows.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns the number of rows that wait for a slot.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if no row runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Adds a row to the end of the queue.
    pub(crate) fn enqueue(&mut self, row: RowId) {
        self.waiting.push_back(row);
    }

    /// Removes the first waiting row that is `ready`, if a slot is free. The caller then runs it by
    /// [`Self::start`], or drops it. While no row runs, at least one waiting row must be ready, or
    /// none ever will be.
    pub(crate) fn admit(&mut self, ready: impl Fn(RowId) -> bool) -> Option<RowId> {
        if self.running.len() == self.slots {
            return None;
        }
        let index = self.waiting.iter().position(|&row| ready(row))?;
        self.waiting.remove(index)
    }

    /// Runs an admitted row, which has `pending_tokens` (at least one) before its first sample.
    pub(crate) fn start(&mut self, row: RowId, pending_tokens: usize) {
        self.running.push(PendingRow {
            row,
            pending_tokens: pending_tokens.max(1),
        });
    }

    /// Schedules the next pass and counts its tokens as computed.
    pub(crate) fn schedule(&mut self) -> Vec<ScheduledTokens> {
        let mut budget = self.pass_tokens;
        let mut rows: Vec<&mut PendingRow> = self.running.iter_mut().collect();
        // The sort is stable: decoding rows and prompts each keep their order of admission. The
        // budget covers every decoding row, so only prompts are cut into chunks.
        rows.sort_by_key(|row| row.pending_tokens > 1);
        rows.into_iter()
            .filter_map(|row| {
                let tokens = row.pending_tokens.min(budget);
                budget -= tokens;
                row.pending_tokens -= tokens;
                (tokens > 0).then_some(ScheduledTokens {
                    row: row.row,
                    tokens,
                    samples: row.pending_tokens == 0,
                })
            })
            .collect()
    }

    /// Makes a row's sampled token pending, so that the next pass decodes it.
    pub(crate) fn continue_row(&mut self, row: RowId) {
        if let Some(running) = self.running.iter_mut().find(|running| running.row == row) {
            running.pending_tokens = 1;
        }
    }

    /// Removes a running row and frees its slot.
    pub(crate) fn remove(&mut self, row: RowId) {
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
            batcher.enqueue(row as RowId);
        }
        while let Some(row) = batcher.admit(|_| true) {
            batcher.start(row, pending[row as usize]);
        }
        batcher
    }

    #[test]
    fn decode_comes_first_and_prompts_are_prefilled_in_chunks() {
        let mut batcher = started(3, 8, &[10, 1, 1]);
        assert_eq!(
            batcher.schedule(),
            [
                ScheduledTokens {
                    row: 1,
                    tokens: 1,
                    samples: true
                },
                ScheduledTokens {
                    row: 2,
                    tokens: 1,
                    samples: true
                },
                ScheduledTokens {
                    row: 0,
                    tokens: 6,
                    samples: false
                },
            ]
        );
        batcher.continue_row(1);
        batcher.remove(2);
        assert_eq!(
            batcher.schedule(),
            [
                ScheduledTokens {
                    row: 1,
                    tokens: 1,
                    samples: true
                },
                ScheduledTokens {
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
        batcher.remove(1);
        assert_eq!(batcher.admit(|_| true), Some(2));
        batcher.start(2, 5);
        assert_eq!(batcher.admit(|_| true), None);
    }

    #[test]
    fn a_row_that_is_not_ready_keeps_its_place_in_the_queue() {
        let mut batcher = Batcher::new(2, 64);
        (0..3).for_each(|row| batcher.enqueue(row));
        assert_eq!(batcher.admit(|row| row > 0), Some(1));
        batcher.start(1, 1);
        assert_eq!(batcher.admit(|row| row > 2), None);
        assert_eq!(batcher.admit(|_| true), Some(0));
    }

    proptest! {
        #[test]
        fn every_row_computes_exactly_its_tokens_and_finishes(
            slots in 1usize..6,
            pass_tokens in 1usize..20,
            rows in prop::collection::vec((1usize..40, 1usize..6), 0..20),
        ) {
            let mut batcher = Batcher::new(slots, pass_tokens);
            let mut left: BTreeMap<RowId, (usize, usize)> = BTreeMap::new();
            for (row, (prompt, samples)) in rows.iter().enumerate() {
                batcher.enqueue(row as RowId);
                left.insert(row as RowId, (*prompt, *samples));
            }
            while !batcher.is_idle() {
                while let Some(row) = batcher.admit(|_| true) {
                    batcher.start(row, left[&row].0);
                }
                let scheduled = batcher.schedule();
                prop_assert!(!scheduled.is_empty(), "each pass makes progress");
                let tokens: usize = scheduled.iter().map(|run| run.tokens).sum();
                prop_assert!(tokens <= pass_tokens.max(slots));
                prop_assert!(scheduled.len() <= slots);
                for run in scheduled {
                    let (pending, samples) = left.get_mut(&run.row).unwrap();
                    *pending -= run.tokens;
                    prop_assert_eq!(run.samples, *pending == 0);
                    if run.samples {
                        *samples -= 1;
                        if *samples == 0 {
                            batcher.remove(run.row);
                        } else {
                            *pending = 1;
                            batcher.continue_row(run.row);
                        }
                    }
                }
            }
            prop_assert!(left.values().all(|counts| *counts == (0, 0)));
        }
    }
}
