//! The block tables of a paged KV cache: which pages hold the tokens of which slot. Slots with a
//! common prefix share its pages.
//!
//! Pure. Invariant: a page that a slot is about to write to has no other owner (copy on write). A
//! slot never needs more pages than its share, so allocation cannot fail. The design is that of
//! PagedAttention (Kwon et al., arXiv:2309.06180).

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::ops::PAGE;

/// The block tables of all slots.
pub(crate) struct PageTables {
    slots: Vec<Vec<u32>>,
    /// For each page, the number of slots that hold it.
    reference_counts: Vec<u32>,
    /// The free pages, the lowest first, so that a sequence's pages are consecutive where possible:
    /// the kernel reads consecutive pages as one strip.
    free: BinaryHeap<Reverse<u32>>,
}

impl PageTables {
    /// Builds empty tables for `slots` sequences of up to `capacity_tokens` tokens.
    pub(crate) fn new(slots: usize, capacity_tokens: usize) -> Self {
        let pages = Self::pages(slots, capacity_tokens);
        Self {
            slots: vec![Vec::new(); slots],
            reference_counts: vec![0; pages],
            free: (0..pages as u32).map(Reverse).collect(),
        }
    }

    /// Returns the pages that so many slots need.
    pub(crate) fn pages(slots: usize, capacity_tokens: usize) -> usize {
        slots * capacity_tokens.div_ceil(PAGE)
    }

    /// Returns the pages of a slot, in the order of its tokens.
    pub(crate) fn table(&self, slot: usize) -> &[u32] {
        &self.slots[slot]
    }

    /// Keeps the first `past` tokens of a slot and allocates pages for `len` more. Returns the page
    /// that the caller must copy before it writes, as (from, to).
    pub(crate) fn prepare(&mut self, slot: usize, past: usize, len: usize) -> Option<(u32, u32)> {
        self.truncate(slot, past);
        let mut copy = None;
        if !past.is_multiple_of(PAGE) {
            copy = self.copy_last_on_write(slot);
        }
        while self.slots[slot].len() < (past + len).div_ceil(PAGE) {
            let page = self.allocate();
            self.slots[slot].push(page);
        }
        copy
    }

    /// Makes slot `to` hold the first `tokens` tokens of slot `from` and nothing else.
    pub(crate) fn share(&mut self, from: usize, to: usize, tokens: usize) {
        let shared = self.slots[from][..tokens.div_ceil(PAGE)].to_vec();
        // Counted before slot `to` is emptied, because it may already hold some of these pages,
        // which must not be freed in between.
        for &page in &shared {
            self.reference_counts[page as usize] += 1;
        }
        self.truncate(to, 0);
        self.slots[to] = shared;
    }

    /// Frees the pages beyond the first `tokens` tokens.
    pub(crate) fn truncate(&mut self, slot: usize, tokens: usize) {
        while self.slots[slot].len() > tokens.div_ceil(PAGE) {
            if let Some(page) = self.slots[slot].pop() {
                self.release(page);
            }
        }
    }

    /// Replaces a slot's last page by a copy of its own, if other slots share it.
    fn copy_last_on_write(&mut self, slot: usize) -> Option<(u32, u32)> {
        let last = *self.slots[slot].last()?;
        if self.reference_counts[last as usize] == 1 {
            return None;
        }
        let own = self.allocate();
        self.slots[slot].pop();
        self.slots[slot].push(own);
        self.release(last);
        Some((last, own))
    }

    fn allocate(&mut self) -> u32 {
        let Reverse(page) = self
            .free
            .pop()
            .expect("a slot never exceeds its share of pages: this is a bug");
        self.reference_counts[page as usize] = 1;
        page
    }

    fn release(&mut self, page: u32) {
        let reference_counts = &mut self.reference_counts[page as usize];
        *reference_counts -= 1;
        if *reference_counts == 0 {
            self.free.push(Reverse(page));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOTS: usize = 4;
    const CAPACITY: usize = 100;

    #[derive(Clone, Debug)]
    enum Operation {
        Write {
            slot: usize,
            past: usize,
            len: usize,
        },
        Share {
            from: usize,
            to: usize,
            tokens: usize,
        },
        Reset {
            slot: usize,
        },
    }

    fn operation() -> impl Strategy<Value = Operation> {
        let slot = 0..SLOTS;
        prop_oneof![
            (slot.clone(), 0..CAPACITY, 1..CAPACITY)
                .prop_map(|(slot, past, len)| Operation::Write { slot, past, len }),
            (slot.clone(), slot.clone(), 0..CAPACITY)
                .prop_map(|(from, to, tokens)| Operation::Share { from, to, tokens }),
            slot.prop_map(|slot| Operation::Reset { slot }),
        ]
    }

    proptest! {
        /// Pages hold token numbers in place of keys: each slot reads back what was written to it,
        /// whatever the other slots did.
        #[test]
        fn a_slot_reads_what_it_wrote(operations in prop::collection::vec(operation(), 1..60)) {
            let mut tables = PageTables::new(SLOTS, CAPACITY);
            let mut pages = vec![[0_usize; PAGE]; PageTables::pages(SLOTS, CAPACITY)];
            let mut expected: Vec<Vec<usize>> = vec![Vec::new(); SLOTS];
            let mut next = 0;
            for operation in operations {
                match operation {
                    Operation::Write { slot, past, len } => {
                        let past = past.min(expected[slot].len());
                        let len = len.min(CAPACITY - past);
                        if let Some((from, to)) = tables.prepare(slot, past, len) {
                            pages[to as usize] = pages[from as usize];
                        }
                        expected[slot].truncate(past);
                        for position in past..past + len {
                            next += 1;
                            expected[slot].push(next);
                            let page = tables.table(slot)[position / PAGE];
                            pages[page as usize][position % PAGE] = next;
                        }
                    }
                    Operation::Share { from, to, tokens } => {
                        let tokens = tokens.min(expected[from].len());
                        tables.share(from, to, tokens);
                        expected[to] = expected[from][..tokens].to_vec();
                    }
                    Operation::Reset { slot } => {
                        tables.truncate(slot, 0);
                        expected[slot].clear();
                    }
                }
                for (slot, expected) in expected.iter().enumerate() {
                    for (position, expected) in expected.iter().enumerate() {
                        let page = tables.table(slot)[position / PAGE];
                        prop_assert_eq!(pages[page as usize][position % PAGE], *expected);
                    }
                }
                let held: usize = tables.slots.iter().map(Vec::len).sum();
                let counts = tables.reference_counts.iter().map(|&count| count as usize);
                prop_assert_eq!(held, counts.sum::<usize>());
            }
        }
    }
}
