//! The attention kernel: causal attention over one sequence of keys and values.
//!
//! Invariant: a query's output depends, bit for bit, on that query and its own keys and values
//! alone. Scores are chains of fused multiply-adds over D, the softmax sums in a fixed order, the
//! output is a chain over the keys, and keys beyond the causal mask have an exact zero weight. So
//! the bits are the same in a batch, alone, from the KV cache, in one prefill, in chunked prefill,
//! or decoded token by token.
//!
//! A block holds the scores of its queries for all keys at once. So each row has one maximum and
//! one sum, without the rescaling of an online softmax.

mod backward;

use std::ops::Range;

use super::kv_pages::{KvPages, PagedSequence};
use super::math::exp;
use super::matmul::{PANEL, View, multiply_strip};
use super::simd::{Kernel, LANES, Simd};
pub(crate) use backward::{Backward, BackwardScratch};

/// Queries of a block. A query is one token of one head. 48 is a multiple of the tile heights 12
/// (AVX-512), 6 (AVX2) and 4 (portable), so full blocks have no partial tiles.
const QUERY_BLOCK: usize = 48;

/// The numbers of heads and the head size D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Heads {
    /// Returns the number of query heads that share one key-value head (GQA).
    fn group(self) -> usize {
        self.heads / self.kv_heads
    }

    fn scale(self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }
}

/// The queries of one packed row that attend to one key-value head, and the location of their keys.
#[derive(Clone, Copy)]
pub(crate) struct RowHead {
    pub(crate) heads: Heads,
    pub(crate) kv_head: usize,
    /// The row's first token in the packed batch, and the number of its tokens.
    pub(crate) first: usize,
    pub(crate) len: usize,
    /// The number of keys before the first token's own.
    pub(crate) past: usize,
    /// The packed token of the first past key. Unused if the keys come from a cache.
    pub(crate) past_offset: usize,
}

impl RowHead {
    fn queries(&self) -> usize {
        self.len * self.heads.group()
    }

    /// Returns the offset in a [T, H, D] tensor of query `i`. Queries are ordered by token, then by
    /// head within the group, so that the queries of a block share their keys and the last one sees
    /// the most of them.
    fn offset(&self, i: usize) -> usize {
        let group = self.heads.group();
        let head = self.kv_head * group + i % group;
        ((self.first + i / group) * self.heads.heads + head) * self.heads.head_dim
    }

    /// Returns the number of keys that query `i` sees. This is the causal mask: those up to its own
    /// position.
    fn keys(&self, i: usize) -> usize {
        self.past + i / self.heads.group() + 1
    }

    /// Returns the number of keys of the row.
    pub(crate) fn all_keys(&self) -> usize {
        self.past + self.len
    }

    /// Returns the offset of the key at `position` in a [T, K, D] tensor.
    fn kv_offset(&self, position: usize) -> usize {
        let token = if position < self.past {
            self.past_offset + position
        } else {
            self.first + position - self.past
        };
        (token * self.heads.kv_heads + self.kv_head) * self.heads.head_dim
    }

    /// Writes the keys and values [T, K, D] of `positions` into the sequence's pages.
    pub(crate) fn append(
        &self,
        positions: Range<usize>,
        k: &[f32],
        v: &[f32],
        pages: &mut KvPages,
        sequence: PagedSequence<'_>,
    ) {
        for position in positions {
            let at = self.kv_offset(position)..self.kv_offset(position) + self.heads.head_dim;
            pages.write(sequence, position, &k[at.clone()], &v[at]);
        }
    }
}

/// Buffers of one block, reused by all blocks.
pub(crate) struct Scratch {
    queries: Vec<f32>,
    weights: Vec<f32>,
    output: Vec<f32>,
}

impl Scratch {
    pub(crate) fn new(heads: Heads, max_keys: usize) -> Self {
        Self {
            queries: vec![0.0; QUERY_BLOCK * heads.head_dim],
            weights: vec![0.0; QUERY_BLOCK * max_keys.next_multiple_of(PANEL)],
            output: vec![0.0; QUERY_BLOCK * PANEL],
        }
    }
}

/// The attention of one row and key-value head. Writes its part of `out` [T, H, D].
pub(crate) struct Forward<'a> {
    pub(crate) row_head: RowHead,
    pub(crate) q: &'a [f32],
    pub(crate) pages: &'a KvPages,
    pub(crate) sequence: PagedSequence<'a>,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (row_head, pages, scratch) = (self.row_head, self.pages, self.scratch);
        let head_dim = row_head.heads.head_dim;
        let sequence = self.sequence;
        for start in (0..row_head.queries()).step_by(QUERY_BLOCK) {
            let block = QueryBlock::new(row_head, start);
            block.gather(self.q, &mut scratch.queries);
            block.scores::<S>(&scratch.queries, pages, sequence, &mut scratch.weights);
            let inverses = block.softmax::<S>(&mut scratch.weights);
            let weights = block.weights(&scratch.weights);
            // The values come in panels of 32 columns, the width of a tile, so that the sums of a
            // block stay in registers over all keys.
            for panel in 0..head_dim.div_ceil(PANEL) {
                block.weighted_values::<S>(weights, pages, sequence, panel, &mut scratch.output);
                let width = PANEL.min(head_dim - panel * PANEL);
                for (i, inverse) in inverses.iter().enumerate().take(block.count) {
                    let at = row_head.offset(start + i) + panel * PANEL;
                    let row = &scratch.output[i * PANEL..][..width];
                    for (out, x) in self.out[at..at + width].iter_mut().zip(row) {
                        *out = x * inverse;
                    }
                }
            }
        }
    }
}

/// Up to [`QUERY_BLOCK`] consecutive queries of one row and key-value head.
#[derive(Clone, Copy)]
struct QueryBlock {
    row_head: RowHead,
    start: usize,
    count: usize,
    /// The keys that the last query sees; earlier queries see fewer.
    keys: usize,
}

impl QueryBlock {
    fn new(row_head: RowHead, start: usize) -> Self {
        let count = QUERY_BLOCK.min(row_head.queries() - start);
        Self {
            row_head,
            start,
            count,
            keys: row_head.keys(start + count - 1),
        }
    }

    /// Returns the width of a row of scores: the keys, padded to whole panels.
    fn padded(&self) -> usize {
        self.keys.next_multiple_of(PANEL)
    }

    fn weights<'a>(&self, weights: &'a [f32]) -> View<'a> {
        View::new(weights, self.count, self.keys, self.padded())
    }

    /// Copies the block's rows of x [T, heads, D] into `rows` [count, D].
    fn gather(&self, x: &[f32], rows: &mut [f32]) {
        let head_dim = self.row_head.heads.head_dim;
        for (i, row) in rows.chunks_exact_mut(head_dim).take(self.count).enumerate() {
            let at = self.row_head.offset(self.start + i);
            row.copy_from_slice(&x[at..at + head_dim]);
        }
    }

    /// Copies `rows` [count, D] into panels of 32 columns, `[panel][count][32]`, the layout of B in
    /// a product.
    fn gather_panels(&self, rows: &[f32], panels: &mut [f32]) {
        let head_dim = self.row_head.heads.head_dim;
        for (i, row) in rows.chunks_exact(head_dim).take(self.count).enumerate() {
            for (panel, part) in row.chunks(PANEL).enumerate() {
                let at = (panel * self.count + i) * PANEL;
                panels[at..at + part.len()].copy_from_slice(part);
            }
        }
    }

    /// Computes the scores rows [count, D] times the keys → [count, padded].
    #[inline(always)]
    fn scores<S: Simd>(
        &self,
        rows: &[f32],
        pages: &KvPages,
        sequence: PagedSequence<'_>,
        scores: &mut [f32],
    ) {
        let head_dim = self.row_head.heads.head_dim;
        let rows = View::new(rows, self.count, head_dim, head_dim);
        let blocks = self.keys.div_ceil(PANEL);
        for block in 0..blocks {
            let keys = pages.key_block(sequence, block);
            multiply_strip::<S>(
                rows,
                keys,
                &mut scores[block * PANEL..],
                self.padded(),
                false,
            );
        }
    }

    /// Computes weights [count, keys] times 32 columns of the values → `[count][32]`. Each element
    /// is one chain over the keys in order of position: later runs of pages add to the earlier
    /// ones.
    #[inline(always)]
    fn weighted_values<S: Simd>(
        &self,
        weights: View<'_>,
        pages: &KvPages,
        sequence: PagedSequence<'_>,
        panel: usize,
        output: &mut [f32],
    ) {
        let mut first = 0;
        while first < self.keys {
            let values = pages.value_run(sequence, panel, first, self.keys);
            let weights = weights.part(0, self.count, first, values.len() / PANEL);
            multiply_strip::<S>(weights, values, output, PANEL, first > 0);
            first += values.len() / PANEL;
        }
    }

    /// Turns each row of scores into e^(scaled score - maximum), and zero beyond its keys. Returns
    /// 1 / sum of each row.
    ///
    /// Subtracting the maximum keeps the exponential from overflowing. The sum has 16 chains and a
    /// tree (see `math`). The caller multiplies the output by 1 / sum, which costs D products for
    /// each query in place of one for each key.
    #[inline(always)]
    fn softmax<S: Simd>(&self, scores: &mut [f32]) -> [f32; QUERY_BLOCK] {
        let mut inverses = [0.0; QUERY_BLOCK];
        let scale = S::splat(self.row_head.heads.scale());
        let rows = scores.chunks_exact_mut(self.padded()).take(self.count);
        for (i, row) in rows.enumerate() {
            // The causal mask: minus infinity becomes an exact zero under exp. It also clears what
            // pads the last panel.
            row[self.row_head.keys(self.start + i)..].fill(f32::NEG_INFINITY);
            let (row, _) = row.as_chunks_mut::<LANES>();
            let mut max = S::splat(f32::NEG_INFINITY);
            for scores in &*row {
                max = max.max(S::load(scores));
            }
            let max = S::splat(max.max_lane()).mul(scale);
            let mut sum = S::splat(0.0);
            for scores in row {
                let weight = exp(S::load(scores).mul(scale).sub(max));
                weight.store(scores);
                sum = sum.add(weight);
            }
            inverses[i] = 1.0 / sum.sum_lanes();
        }
        inverses
    }
}
