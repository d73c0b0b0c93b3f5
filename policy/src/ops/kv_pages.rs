//! The KV cache of one layer for the CPU kernels: keys and values in pages of 32 tokens, laid out
//! as the panels that the matrix kernel reads. Appending a token writes in place.
//!
//! Invariant: a page holds 32 keys of each head as `[D][32]`, and 32 values as panels of 32 of the
//! D columns, `[32][32]` each. Memory beyond a sequence's tokens is finite and has zero weight.
//! `PageTables` decides which sequence owns which page.

use super::matmul::PANEL;

/// Tokens of a page. It equals the panel width, so a page of keys is one panel of B in the product
/// q kᵀ.
pub(crate) const PAGE: usize = PANEL;

/// The keys and values of one layer.
pub(crate) struct KvPages {
    /// `[head][page][D][32]`.
    keys: Vec<f32>,
    /// `[head][panel][page][32][32]`, so that consecutive pages form one strip.
    values: Vec<f32>,
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

impl KvPages {
    /// Allocates `pages` pages.
    pub(crate) fn new(pages: usize, kv_heads: usize, head_dim: usize) -> Self {
        let tokens = pages * PAGE * kv_heads;
        Self {
            keys: vec![0.0; tokens * head_dim],
            values: vec![0.0; tokens * head_dim.next_multiple_of(PANEL)],
            pages,
            kv_heads,
            head_dim,
        }
    }

    /// Writes the key and the value `[D]` of one token.
    pub(crate) fn write(
        &mut self,
        sequence: PagedSequence<'_>,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let (page, column) = (sequence.table[position / PAGE] as usize, position % PAGE);
        let keys = self.key_page(sequence.kv_head, page) + column;
        for (d, &key) in key.iter().enumerate() {
            self.keys[keys + d * PAGE] = key;
        }
        for (panel, value) in value.chunks(PANEL).enumerate() {
            let at = self.value_page(sequence.kv_head, panel, page) + column * PANEL;
            self.values[at..at + value.len()].copy_from_slice(value);
        }
    }

    /// Copies one page over another.
    pub(crate) fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize, to as usize);
        for head in 0..self.kv_heads {
            let at = self.key_page(head, from);
            let to_keys = self.key_page(head, to);
            self.keys
                .copy_within(at..at + self.head_dim * PAGE, to_keys);
            for panel in 0..self.head_dim.div_ceil(PANEL) {
                let at = self.value_page(head, panel, from);
                let to_values = self.value_page(head, panel, to);
                self.values.copy_within(at..at + PAGE * PANEL, to_values);
            }
        }
    }

    /// Returns the keys of page number `block` of a sequence as `[D][32]`.
    #[inline(always)]
    pub(super) fn key_block(&self, sequence: PagedSequence<'_>, block: usize) -> &[f32] {
        let at = self.key_page(sequence.kv_head, sequence.table[block] as usize);
        &self.keys[at..][..self.head_dim * PAGE]
    }

    /// Returns 32 columns of the values of tokens `first..keys` of a sequence as `[tokens][32]`, as
    /// far as their pages are consecutive. `first` begins a page.
    #[inline(always)]
    pub(super) fn value_run(
        &self,
        sequence: PagedSequence<'_>,
        panel: usize,
        first: usize,
        keys: usize,
    ) -> &[f32] {
        let table = &sequence.table[first / PAGE..keys.div_ceil(PAGE)];
        let mut run = 1;
        while run < table.len() && table[run] == table[run - 1] + 1 {
            run += 1;
        }
        let at = self.value_page(sequence.kv_head, panel, table[0] as usize);
        &self.values[at..][..(keys - first).min(run * PAGE) * PANEL]
    }

    fn key_page(&self, head: usize, page: usize) -> usize {
        (head * self.pages + page) * self.head_dim * PAGE
    }

    fn value_page(&self, head: usize, panel: usize, page: usize) -> usize {
        let panels = self.head_dim.div_ceil(PANEL);
        ((head * panels + panel) * self.pages + page) * PAGE * PANEL
    }
}
