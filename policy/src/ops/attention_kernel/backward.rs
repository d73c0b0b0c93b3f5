//! The backward pass of the attention kernel, with recomputed softmax weights.
//!
//! Invariant: the gradient of a key or value is a sum over its queries in a fixed order: by block
//! of queries, then by query.

use super::{Heads, QUERY_BLOCK, QueryBlock, RowHead, Scratch};
use crate::ops::kv_pages::{KvPages, PagedSequence};
use crate::ops::math::sum;
use crate::ops::matmul::{PANEL, multiply_strip};
use crate::ops::simd::{Kernel, LANES, Simd};

/// Buffers of the backward pass of one row and key-value head.
pub(crate) struct BackwardScratch {
    scratch: Scratch,
    /// The gradients of the output's rows and of the softmax weights.
    doutput: Vec<f32>,
    dweights: Vec<f32>,
    panels: Vec<f32>,
    /// The gradients of keys and values as panels: `[panel][keys][32]`.
    dkeys: Vec<f32>,
    dvalues: Vec<f32>,
}

impl BackwardScratch {
    pub(crate) fn new(heads: Heads, max_keys: usize) -> Self {
        let columns = heads.head_dim.next_multiple_of(PANEL);
        Self {
            scratch: Scratch::new(heads, max_keys),
            doutput: vec![0.0; QUERY_BLOCK * heads.head_dim],
            dweights: vec![0.0; QUERY_BLOCK * max_keys.next_multiple_of(PANEL)],
            panels: vec![0.0; QUERY_BLOCK * columns],
            dkeys: vec![0.0; max_keys * columns],
            dvalues: vec![0.0; max_keys * columns],
        }
    }
}

/// The backward pass of one row and key-value head. Writes its part of `dq` and adds its parts to
/// `dk` and `dv`.
///
/// The softmax weights P are computed again from q and k, as in FlashAttention's backward pass (Dao
/// et al., arXiv:2205.14135): dV = Pᵀ dO, dP = dO Vᵀ, dS = P (dP - rowsum(dO O)), dQ = dS K, dK =
/// dSᵀ Q.
pub(crate) struct Backward<'a> {
    pub(crate) row_head: RowHead,
    pub(crate) q: &'a [f32],
    pub(crate) out: &'a [f32],
    pub(crate) dout: &'a [f32],
    /// Pages with keys in the key layout and values in the value layout, and pages with the two
    /// exchanged: dO Vᵀ reads values as keys, dS K reads keys as values.
    pub(crate) keys_values: &'a KvPages,
    pub(crate) values_keys: &'a KvPages,
    pub(crate) sequence: PagedSequence<'a>,
    pub(crate) scratch: &'a mut BackwardScratch,
    pub(crate) dq: &'a mut [f32],
    pub(crate) dk: &'a mut [f32],
    pub(crate) dv: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (row_head, b) = (self.row_head, self.scratch);
        let (head_dim, keys) = (row_head.heads.head_dim, row_head.all_keys());
        let panels = head_dim.div_ceil(PANEL);
        let sequence = self.sequence;
        // Blocks of queries add to these in order, so a key's gradient has one order of sums.
        b.dkeys[..keys * panels * PANEL].fill(0.0);
        b.dvalues[..keys * panels * PANEL].fill(0.0);
        for start in (0..row_head.queries()).step_by(QUERY_BLOCK) {
            let block = QueryBlock::new(row_head, start);
            let weights = &mut b.scratch.weights;
            block.gather(self.q, &mut b.scratch.queries);
            block.scores::<S>(&b.scratch.queries, self.keys_values, sequence, weights);
            let inverses = block.softmax::<S>(weights);
            block.gather(self.dout, &mut b.doutput);
            block.scores::<S>(&b.doutput, self.values_keys, sequence, &mut b.dweights);
            // rowsum(P dP) is computed as dO·O: D products for each query instead of one for each
            // key.
            for (i, &inverse) in inverses.iter().enumerate().take(block.count) {
                let at = row_head.offset(start + i);
                let range = i * block.padded()..(i + 1) * block.padded();
                let (out, dout) = (&self.out[at..], &b.doutput[i * head_dim..]);
                score_gradient::<S>(
                    &mut weights[range.clone()],
                    &mut b.dweights[range],
                    inverse,
                    sum::<S>(&out[..head_dim], &dout[..head_dim], |x, y| x.mul(y)),
                    row_head.heads.scale(),
                );
            }
            block.gather_panels(&b.doutput, &mut b.panels);
            block.add_transposed::<S>(weights, &b.panels, keys, &mut b.dvalues);
            block.gather_panels(&b.scratch.queries, &mut b.panels);
            block.add_transposed::<S>(&b.dweights, &b.panels, keys, &mut b.dkeys);
            for panel in 0..panels {
                let dscores = block.weights(&b.dweights);
                block.weighted_values::<S>(
                    dscores,
                    self.values_keys,
                    sequence,
                    panel,
                    &mut b.scratch.output,
                );
                let width = PANEL.min(head_dim - panel * PANEL);
                for i in 0..block.count {
                    let at = row_head.offset(start + i) + panel * PANEL;
                    self.dq[at..at + width]
                        .copy_from_slice(&b.scratch.output[i * PANEL..][..width]);
                }
            }
        }
        // Added rather than written, because rows that continue this one share its keys.
        for position in 0..keys {
            let at = row_head.kv_offset(position)..row_head.kv_offset(position) + head_dim;
            add_from_panels(&b.dkeys, keys, position, &mut self.dk[at.clone()]);
            add_from_panels(&b.dvalues, keys, position, &mut self.dv[at]);
        }
    }
}

impl QueryBlock {
    /// Adds weights [count, keys]ᵀ times panels `[panel][count][32]` to sums `[panel][all
    /// keys][32]`.
    #[inline(always)]
    fn add_transposed<S: Simd>(
        &self,
        weights: &[f32],
        panels: &[f32],
        all_keys: usize,
        sums: &mut [f32],
    ) {
        let weights = self.weights(weights).transposed();
        for panel in 0..self.row_head.heads.head_dim.div_ceil(PANEL) {
            let rows = &panels[panel * self.count * PANEL..][..self.count * PANEL];
            multiply_strip::<S>(
                weights,
                rows,
                &mut sums[panel * all_keys * PANEL..],
                PANEL,
                true,
            );
        }
    }
}

/// Normalises one row of softmax weights, and turns their gradient into that of the unscaled
/// scores: w (dw - dout·out) scale.
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

/// Adds row `t` of panels `[panel][rows][32]` to `sum`.
fn add_from_panels(panels: &[f32], rows: usize, t: usize, sum: &mut [f32]) {
    for (panel, sum) in sum.chunks_mut(PANEL).enumerate() {
        let row = &panels[(panel * rows + t) * PANEL..];
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
}
