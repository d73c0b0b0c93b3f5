//! The backward pass of the attention kernel in f32.

use super::f32_forward::{QUERY_BLOCK, Scratch};
use super::{AttentionValue, Backward, Largest, QueryBlock, score_gradient};
use crate::ops::math::sum;
use crate::ops::matmul::{PANEL, multiply_strip};
use crate::ops::simd::{Kernel, Simd};

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
    pub(super) fn new(largest: Largest) -> Self {
        let queries = largest.block(QUERY_BLOCK);
        let columns = largest.heads.head_dim.next_multiple_of(PANEL);
        Self {
            scratch: f32::scratch(largest),
            doutput: vec![0.0; queries * largest.heads.head_dim],
            dweights: vec![0.0; queries * largest.padded()],
            panels: vec![0.0; queries * columns],
            dkeys: vec![0.0; largest.keys * columns],
            dvalues: vec![0.0; largest.keys * columns],
        }
    }
}

impl Kernel for Backward<'_, f32> {
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
        for block in QueryBlock::all(row_head, QUERY_BLOCK) {
            let weights = &mut b.scratch.weights;
            block.gather(self.q, &mut b.scratch.queries);
            block.scores::<S>(&b.scratch.queries, self.keys_values, sequence, weights);
            block.softmax::<S>(weights, &mut b.scratch.inverses);
            block.gather(self.dout, &mut b.doutput);
            block.scores::<S>(&b.doutput, self.values_keys, sequence, &mut b.dweights);
            // rowsum(P dP) is computed as rowsum(dO O): D products for each query instead of one
            // for each key.
            for i in 0..block.count {
                let range = i * block.padded()..(i + 1) * block.padded();
                let (out, dout) = (&self.out[block.query(i)], &b.doutput[i * head_dim..]);
                score_gradient::<S>(
                    &mut weights[range.clone()],
                    &mut b.dweights[range],
                    b.scratch.inverses[i],
                    sum::<S>(out, &dout[..head_dim], |x, y| x.mul(y)),
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
                block.scatter(panel, &b.scratch.output, |_| 1.0, self.dq);
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

/// Adds row `t` of panels `[panel][rows][32]` to `sum`.
fn add_from_panels(panels: &[f32], rows: usize, t: usize, sum: &mut [f32]) {
    for (panel, sum) in sum.chunks_mut(PANEL).enumerate() {
        let row = &panels[(panel * rows + t) * PANEL..];
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
}
