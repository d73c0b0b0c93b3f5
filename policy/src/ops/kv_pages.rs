//! The KV cache of one layer for the CPU kernels: keys and values in pages of 32 tokens, laid out
//! as the panels that the matrix kernels read. Appending a token writes in place.
//!
//! Invariant: a page holds 32 keys of each head as `[D][32]`, and 32 values as panels of 32 of the
//! D columns, `[32][32]` each, the last of them padded. In bf16 two rows of a panel are one row of
//! pairs, and D is padded with zeros to whole blocks of a product. Products of bf16 read whole
//! pages. They give what lies beyond a sequence's tokens zero weight, and values there are zeros,
//! because zero times NaN is NaN. `PageTables` decides which sequence owns which page.

use std::ops::Range;

use candle_core::WithDType;
use half::bf16;

use super::aligned::Aligned;
use super::matmul::PANEL;
use super::matmul_bf16::{BLOCK, write_pair};
use crate::packed_rows::PackedRow;

/// Tokens of a page. It equals the panel width, so a page of keys is one panel of B in the product
/// q kᵀ.
pub(crate) const PAGE: usize = PANEL;

/// Returns the slot mapping of rows whose block table `table` gives by slot: for each token, its
/// number among the tokens of all pages.
pub(super) fn slot_mapping<'a>(rows: &[PackedRow], table: impl Fn(usize) -> &'a [u32]) -> Vec<u32> {
    let mut mapping = Vec::new();
    for row in rows {
        let pages = table(row.slot);
        let slot = |at: usize| pages[at / PAGE] * PAGE as u32 + (at % PAGE) as u32;
        mapping.extend((row.past..row.past + row.len).map(slot));
    }
    mapping
}

/// A number that pages hold.
pub(crate) trait PageValue: WithDType {
    /// What holds the values of [`Self::STEPS`] rows of a panel in one column.
    type Word: Copy + Default;
    const STEPS: usize;
    /// The rows of a page of keys are a multiple of this.
    const BLOCK: usize;
    /// Writes the value of one row of a panel.
    fn write(self, word: &mut Self::Word, row: usize);
}

impl PageValue for f32 {
    type Word = Self;
    const STEPS: usize = 1;
    const BLOCK: usize = 1;

    #[inline(always)]
    fn write(self, word: &mut Self, _: usize) {
        *word = self;
    }
}

impl PageValue for bf16 {
    type Word = u32;
    const STEPS: usize = 2;
    const BLOCK: usize = BLOCK;

    #[inline(always)]
    fn write(self, word: &mut u32, row: usize) {
        write_pair(word, row, self);
    }
}

/// The keys and values of one layer.
pub(crate) struct KvPages<T: PageValue> {
    /// `[head][page][D / STEPS][32]`, so that consecutive pages are consecutive panels.
    keys: Aligned<T::Word>,
    /// `[head][panel][page][32 / STEPS][32]`, so that consecutive pages form one strip.
    values: Aligned<T::Word>,
    pages: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// One head of one sequence: the block table of its tokens, in order.
#[derive(Clone, Copy)]
pub(crate) struct PagedSequence<'a> {
    pub(crate) table: &'a [u32],
    pub(crate) kv_head: usize,
}

impl PagedSequence<'_> {
    /// Returns the first page of the sequence's tokens `first..keys`, and how many pages follow
    /// each other in memory from there. `first` begins a page.
    #[inline(always)]
    fn run(&self, first: usize, keys: usize) -> (usize, usize) {
        let table = &self.table[first / PAGE..keys.div_ceil(PAGE)];
        let mut run = 1;
        while run < table.len() && table[run] == table[run - 1] + 1 {
            run += 1;
        }
        (table[0] as usize, run)
    }
}

impl<T: PageValue> KvPages<T> {
    /// The words of a panel of a page of values.
    const VALUE_WORDS: usize = PAGE / T::STEPS * PANEL;

    /// Allocates `pages` pages.
    pub(crate) fn new(pages: usize, kv_heads: usize, head_dim: usize) -> Self {
        let (rows, panels) = (
            head_dim.next_multiple_of(T::BLOCK),
            head_dim.div_ceil(PANEL),
        );
        Self {
            keys: Aligned::new(kv_heads * pages * rows / T::STEPS * PAGE),
            values: Aligned::new(kv_heads * pages * panels * Self::VALUE_WORDS),
            pages,
            kv_heads,
            head_dim,
        }
    }

    /// Returns the bytes that the key and the value of one token take in one head.
    pub(crate) fn token_bytes(head_dim: usize) -> usize {
        let (key, value) = (
            head_dim.next_multiple_of(T::BLOCK),
            head_dim.next_multiple_of(PANEL),
        );
        (key + value) * size_of::<T>()
    }

    /// Clears the values of the pages that hold `positions` of a sequence, from the first of them
    /// to the end of the last page.
    pub(crate) fn clear_values(&mut self, sequence: PagedSequence<'_>, positions: Range<usize>) {
        if T::STEPS == 1 || positions.is_empty() {
            // Products of f32 end at the last key.
            return;
        }
        let first_page = positions.start / PAGE;
        for page in first_page..positions.end.div_ceil(PAGE) {
            // The other half of the first position's word belongs to the token before it, and the
            // half of its own is written next.
            let rows = match page == first_page {
                true => (positions.start % PAGE).div_ceil(T::STEPS),
                false => 0,
            };
            for panel in 0..self.head_dim.div_ceil(PANEL) {
                let start = self.value_page(sequence.kv_head, panel, sequence.table[page] as usize);
                let values = &mut self.values.values()[start..][..Self::VALUE_WORDS];
                values[rows * PANEL..].fill(T::Word::default());
            }
        }
    }

    /// Writes the key and the value `[D]` of one token.
    pub(crate) fn write(
        &mut self,
        sequence: PagedSequence<'_>,
        position: usize,
        key: &[T],
        value: &[T],
    ) {
        let (page, column) = (sequence.table[position / PAGE] as usize, position % PAGE);
        let start = self.key_page(sequence.kv_head, page) + column;
        let keys = &mut self.keys.values()[start..];
        for (d, &key) in key.iter().enumerate() {
            key.write(&mut keys[d / T::STEPS * PAGE], d);
        }
        for (panel, value) in value.chunks(PANEL).enumerate() {
            let start = self.value_page(sequence.kv_head, panel, page);
            let row = &mut self.values.values()[start + column / T::STEPS * PANEL..];
            for (word, &value) in row.iter_mut().zip(value) {
                value.write(word, column);
            }
        }
    }

    /// Copies one page over another.
    pub(crate) fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize, to as usize);
        for head in 0..self.kv_heads {
            let (at, to_keys) = (self.key_page(head, from), self.key_page(head, to));
            let words = self.key_words();
            self.keys.values().copy_within(at..at + words, to_keys);
            for panel in 0..self.head_dim.div_ceil(PANEL) {
                let at = self.value_page(head, panel, from);
                let to_values = self.value_page(head, panel, to);
                let page = at..at + Self::VALUE_WORDS;
                self.values.values().copy_within(page, to_values);
            }
        }
    }

    /// Returns the keys of the tokens `first..keys` of a sequence as panels `[D / STEPS][32]`, one
    /// for each page, as far as the pages are consecutive. `first` begins a page.
    #[inline(always)]
    pub(super) fn key_run(
        &self,
        sequence: PagedSequence<'_>,
        first: usize,
        keys: usize,
    ) -> &[T::Word] {
        let (page, run) = sequence.run(first, keys);
        let at = self.key_page(sequence.kv_head, page);
        &self.keys.read()[at..][..run * self.key_words()]
    }

    /// Returns 32 columns of the values of the tokens `first..keys` of a sequence as a strip
    /// `[tokens / STEPS][32]`, as far as their pages are consecutive, to the end of the last page.
    /// `first` begins a page.
    #[inline(always)]
    pub(super) fn value_run(
        &self,
        sequence: PagedSequence<'_>,
        panel: usize,
        first: usize,
        keys: usize,
    ) -> &[T::Word] {
        let (page, run) = sequence.run(first, keys);
        let at = self.value_page(sequence.kv_head, panel, page);
        &self.values.read()[at..][..run * Self::VALUE_WORDS]
    }

    /// Returns the words of a head's keys in one page.
    #[inline(always)]
    pub(super) fn key_words(&self) -> usize {
        self.head_dim.next_multiple_of(T::BLOCK) / T::STEPS * PAGE
    }

    fn key_page(&self, head: usize, page: usize) -> usize {
        (head * self.pages + page) * self.key_words()
    }

    fn value_page(&self, head: usize, panel: usize, page: usize) -> usize {
        let panels = self.head_dim.div_ceil(PANEL);
        ((head * panels + panel) * self.pages + page) * Self::VALUE_WORDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_bytes<T: PageValue>() {
        let (pages, kv_heads) = (3, 2);
        for head_dim in [10, 24, 32, 48, 64] {
            let cache = KvPages::<T>::new(pages, kv_heads, head_dim);
            let words = cache.keys.read().len() + cache.values.read().len();
            let expected = pages * PAGE * kv_heads * KvPages::<T>::token_bytes(head_dim);
            assert_eq!(words * size_of::<T::Word>(), expected, "{head_dim}");
        }
    }

    #[test]
    fn tokens_are_mapped_through_the_table_of_their_slot() {
        let tables: [&[u32]; 2] = [&[7], &[5, 2]];
        let row = |slot, past, len| PackedRow { len, past, slot };
        let rows = [row(1, PAGE - 2, 3), row(0, 0, 2)];
        let page = PAGE as u32;
        let expected = [6 * page - 2, 6 * page - 1, 2 * page, 7 * page, 7 * page + 1];
        assert_eq!(slot_mapping(&rows, |slot| tables[slot]), expected);
    }

    #[test]
    fn a_tokens_bytes_are_those_of_the_pages() {
        check_bytes::<f32>();
        check_bytes::<bf16>();
    }
}
