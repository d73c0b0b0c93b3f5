//! The attention kernels: causal attention over one sequence of keys and values.
//!
//! Invariant: a query's output depends, bit for bit, on that query and its own keys and values
//! alone. Scores sum over D in one order, the softmax sums in a fixed order, the output sums over
//! the keys in an order that follows from their positions, and keys beyond the causal mask have an
//! exact zero weight. So the bits are the same in a batch, alone, from the KV cache, in one
//! prefill, in chunked prefill, or decoded token by token. (A value that is not finite reaches the
//! other queries of its block.)
//!
//! A block holds the scores of its queries for all keys at once. So each row has one maximum and
//! one sum, without the rescaling of an online softmax.
//!
//! In f32 products are chains of fused multiply-adds (`matmul`). In bf16 they are the products of
//! `matmul_bf16`, with sums in f32: the softmax computes in f32, and its weights are rounded before
//! they are multiplied by the values, as in FlashAttention (Dao et al., arXiv:2205.14135).

mod bf16_backward;
mod bf16_forward;
#[cfg(test)]
mod bf16_tests;
mod f32_backward;
mod f32_forward;

use std::ops::Range;

use candle_core::{Result, Shape, Tensor};

use super::kv_pages::{KvPages, PageValue, PagedSequence};
use super::math::exp;
use super::matmul::PANEL;
use super::simd::{LANES, Simd};

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
    pub(crate) fn append<T: PageValue>(
        &self,
        positions: Range<usize>,
        k: &[T],
        v: &[T],
        pages: &mut KvPages<T>,
        sequence: PagedSequence<'_>,
    ) {
        pages.clear_values(sequence, positions.clone());
        for position in positions {
            let at = self.kv_offset(position)..self.kv_offset(position) + self.heads.head_dim;
            pages.write(sequence, position, &k[at.clone()], &v[at]);
        }
    }
}

/// The largest row of a batch, for which buffers are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Largest {
    pub(crate) heads: Heads,
    /// The tokens of a row, and the keys that its last token sees.
    pub(crate) len: usize,
    pub(crate) keys: usize,
}

impl Largest {
    /// Returns the queries of a block of up to `size`.
    fn block(self, size: usize) -> usize {
        size.min(self.len * self.heads.group())
    }

    /// Returns the keys, padded to whole panels.
    fn padded(self) -> usize {
        self.keys.next_multiple_of(PANEL)
    }
}

/// A number that attention is computed from.
pub(crate) trait AttentionValue: PageValue {
    /// Buffers of one block, reused by all blocks.
    type Scratch;
    /// The same for the backward pass.
    type BackwardScratch;

    fn scratch(largest: Largest) -> Self::Scratch;
    fn backward_scratch(largest: Largest) -> Self::BackwardScratch;
    fn forward(pass: Forward<'_, Self>);
    fn backward(pass: Backward<'_, Self>);
    /// Wraps a result as a tensor of this dtype.
    fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor>;
}

/// The attention of one row and key-value head. Writes its part of `out` [T, H, D].
pub(crate) struct Forward<'a, T: AttentionValue> {
    pub(crate) row_head: RowHead,
    pub(crate) q: &'a [T],
    pub(crate) pages: &'a KvPages<T>,
    pub(crate) sequence: PagedSequence<'a>,
    pub(crate) scratch: &'a mut T::Scratch,
    pub(crate) out: &'a mut [f32],
}

/// The backward pass of one row and key-value head, with recomputed softmax weights. Writes its
/// part of `dq` and adds its parts to `dk` and `dv`.
///
/// The softmax weights P are computed again from q and k, as in FlashAttention's backward pass (Dao
/// et al., arXiv:2205.14135): dV = Pᵀ dO, dP = dO Vᵀ, dS = P (dP - rowsum(P dP)), dQ = dS K, dK =
/// dSᵀ Q. The gradient of a key or value is a sum over its queries in a fixed order: by block of
/// queries, then in the order of a product.
pub(crate) struct Backward<'a, T: AttentionValue> {
    pub(crate) row_head: RowHead,
    pub(crate) q: &'a [T],
    /// The output, from which f32 computes rowsum(P dP) as rowsum(dO O).
    pub(crate) out: &'a [T],
    pub(crate) dout: &'a [T],
    /// Pages with keys in the key layout and values in the value layout, and pages with the two
    /// exchanged: dO Vᵀ reads values as keys, dS K reads keys as values.
    pub(crate) keys_values: &'a KvPages<T>,
    pub(crate) values_keys: &'a KvPages<T>,
    pub(crate) sequence: PagedSequence<'a>,
    pub(crate) scratch: &'a mut T::BackwardScratch,
    pub(crate) dq: &'a mut [f32],
    pub(crate) dk: &'a mut [f32],
    pub(crate) dv: &'a mut [f32],
}

/// Consecutive queries of one row and key-value head.
#[derive(Clone, Copy)]
struct QueryBlock {
    row_head: RowHead,
    start: usize,
    count: usize,
    /// The keys that the last query sees; earlier queries see fewer.
    keys: usize,
}

impl QueryBlock {
    /// Returns the blocks of a row and head, of up to `size` queries.
    fn all(row_head: RowHead, size: usize) -> impl Iterator<Item = Self> {
        let queries = row_head.queries();
        (0..queries).step_by(size).map(move |start| {
            let count = size.min(queries - start);
            Self {
                row_head,
                start,
                count,
                keys: row_head.keys(start + count - 1),
            }
        })
    }

    /// Returns the width of a row of scores: the keys, padded to whole panels.
    fn padded(&self) -> usize {
        self.keys.next_multiple_of(PANEL)
    }

    /// Returns where query `i` of the block lies in a [T, H, D] tensor.
    fn query(&self, i: usize) -> Range<usize> {
        let at = self.row_head.offset(self.start + i);
        at..at + self.row_head.heads.head_dim
    }

    /// Copies the block's rows of x [T, heads, D] into `rows` [count, D].
    fn gather<T: Copy>(&self, x: &[T], rows: &mut [T]) {
        let head_dim = self.row_head.heads.head_dim;
        for (i, row) in rows.chunks_exact_mut(head_dim).take(self.count).enumerate() {
            row.copy_from_slice(&x[self.query(i)]);
        }
    }

    /// Writes the 32 columns `panel` of each query's result `[count][32]`, times the query's
    /// factor, to `out` [T, H, D].
    fn scatter(
        &self,
        panel: usize,
        output: &[f32],
        factor: impl Fn(usize) -> f32,
        out: &mut [f32],
    ) {
        let first = panel * PANEL;
        let width = PANEL.min(self.row_head.heads.head_dim - first);
        for (i, row) in output.chunks_exact(PANEL).take(self.count).enumerate() {
            let at = self.query(i).start + first;
            let factor = factor(i);
            for (out, x) in out[at..at + width].iter_mut().zip(row) {
                *out = x * factor;
            }
        }
    }

    /// Turns each row of scores into e^(scaled score - maximum), and zero beyond its keys. Writes
    /// 1 / sum of each row.
    ///
    /// Subtracting the maximum keeps the exponential from overflowing. The sum has 16 chains and a
    /// tree (see `math`). The caller multiplies the output by 1 / sum, which costs D products for
    /// each query in place of one for each key.
    #[inline(always)]
    fn softmax<S: Simd>(&self, scores: &mut [f32], inverses: &mut [f32]) {
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
    }
}

/// Normalises one row of softmax weights, and turns their gradient into that of the unscaled
/// scores: w (dw - dot) scale.
#[inline(always)]
fn score_gradient<S: Simd>(
    weights: &mut [f32],
    dweights: &mut [f32],
    inverse: f32,
    dot: f32,
    scale: f32,
) {
    let (inverse, dot, scale) = (S::splat(inverse), S::splat(dot), S::splat(scale));
    let (weights, _) = weights.as_chunks_mut::<LANES>();
    let (dweights, _) = dweights.as_chunks_mut::<LANES>();
    for (weight, dweight) in weights.iter_mut().zip(dweights) {
        let normalised = S::load(weight).mul(inverse);
        normalised.store(weight);
        let dscore = normalised.mul(S::load(dweight).sub(dot)).mul(scale);
        dscore.store(dweight);
    }
}
