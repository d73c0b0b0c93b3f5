//! The attention kernel in f32.

use candle_core::{Result, Shape, Tensor};

use super::f32_backward::BackwardScratch;
use super::{AttentionValue, Backward, Forward, Largest, QueryBlock};
use crate::ops::kv_pages::{KvPages, PAGE, PagedSequence};
use crate::ops::matmul::{PANEL, View, multiply_strip};
use crate::ops::simd::{Kernel, Simd, dispatch};

/// Queries of a block. A query is one token of one head. 48 is a multiple of the tile heights 12
/// (AVX-512), 6 (AVX2) and 4 (portable), so full blocks have no partial tiles.
pub(super) const QUERY_BLOCK: usize = 48;

/// Buffers of one block, reused by all blocks.
pub(crate) struct Scratch {
    pub(super) queries: Vec<f32>,
    pub(super) weights: Vec<f32>,
    pub(super) inverses: Vec<f32>,
    pub(super) output: Vec<f32>,
}

impl AttentionValue for f32 {
    type Scratch = Scratch;
    type BackwardScratch = BackwardScratch;

    fn scratch(largest: Largest) -> Scratch {
        let queries = largest.block(QUERY_BLOCK);
        Scratch {
            queries: vec![0.0; queries * largest.heads.head_dim],
            weights: vec![0.0; queries * largest.padded()],
            inverses: vec![0.0; queries],
            output: vec![0.0; queries * PANEL],
        }
    }

    fn backward_scratch(largest: Largest) -> BackwardScratch {
        BackwardScratch::new(largest)
    }

    fn forward(pass: Forward<'_, Self>) {
        dispatch(pass);
    }

    fn backward(pass: Backward<'_, Self>) {
        dispatch(pass);
    }

    fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
        crate::ops::tensor(values, shape)
    }
}

impl Kernel for Forward<'_, f32> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (pages, sequence, scratch) = (self.pages, self.sequence, self.scratch);
        for block in QueryBlock::all(self.row_head, QUERY_BLOCK) {
            block.gather(self.q, &mut scratch.queries);
            block.scores::<S>(&scratch.queries, pages, sequence, &mut scratch.weights);
            block.softmax::<S>(&mut scratch.weights, &mut scratch.inverses);
            let weights = block.weights(&scratch.weights);
            // The values come in panels of 32 columns, the width of a tile, so that the sums of a
            // block stay in registers over all keys.
            for panel in 0..self.row_head.heads.head_dim.div_ceil(PANEL) {
                block.weighted_values::<S>(weights, pages, sequence, panel, &mut scratch.output);
                let inverse = |i: usize| scratch.inverses[i];
                block.scatter(panel, &scratch.output, inverse, self.out);
            }
        }
    }
}

impl QueryBlock {
    pub(super) fn weights<'a>(&self, weights: &'a [f32]) -> View<'a, f32> {
        View::new(weights, self.count, self.keys, self.padded())
    }

    /// Computes the scores rows [count, D] times the keys → [count, padded].
    #[inline(always)]
    pub(super) fn scores<S: Simd>(
        &self,
        rows: &[f32],
        pages: &KvPages<f32>,
        sequence: PagedSequence<'_>,
        scores: &mut [f32],
    ) {
        let head_dim = self.row_head.heads.head_dim;
        let rows = View::new(rows, self.count, head_dim, head_dim);
        let mut first = 0;
        while first < self.keys {
            let run = pages.key_run(sequence, first, self.keys);
            for keys in run.chunks_exact(pages.key_words()) {
                multiply_strip::<S>(rows, keys, &mut scores[first..], self.padded(), false);
                first += PAGE;
            }
        }
    }

    /// Computes weights [count, keys] times 32 columns of the values → `[count][32]`. Each element
    /// is one chain over the keys in order of position: later runs of pages add to the earlier
    /// ones.
    #[inline(always)]
    pub(super) fn weighted_values<S: Simd>(
        &self,
        weights: View<'_, f32>,
        pages: &KvPages<f32>,
        sequence: PagedSequence<'_>,
        panel: usize,
        output: &mut [f32],
    ) {
        let mut first = 0;
        while first < self.keys {
            let run = pages.value_run(sequence, panel, first, self.keys);
            let keys = (run.len() / PANEL).min(self.keys - first);
            let weights = weights.part(0, self.count, first, keys);
            multiply_strip::<S>(weights, &run[..keys * PANEL], output, PANEL, first > 0);
            first += keys;
        }
    }
}
