//! The attention kernel in bf16.

use candle_core::{Result, Shape, Tensor};
use half::bf16;

use super::bf16_backward::{self, BackwardScratch};
use super::{AttentionValue, Backward, Forward, Largest, QueryBlock};
use crate::ops::aligned::Aligned;
use crate::ops::bf16_values::{round, rounded_tensor};
use crate::ops::kv_pages::{KvPages, PAGE, PagedSequence};
use crate::ops::matmul::{PANEL, View};
use crate::ops::matmul_bf16::{BLOCK, Bf16Rows, Multiplier, SUM_ROWS, Sums};
use crate::ops::simd::{Kernel, Simd, dispatch};

/// Queries of a block. A query is one token of one head. 64 are four tiles of AMX.
pub(super) const QUERY_BLOCK: usize = 64;

// A page is a block of the sums over the keys, so that these do not depend on runs of pages.
const _: () = assert!(PAGE == BLOCK);

/// Buffers of one block, reused by all blocks.
pub(crate) struct Scratch {
    pub(super) queries: Vec<bf16>,
    /// The left-hand matrix of the product at hand.
    pub(super) rows: Bf16Rows,
    pub(super) weights: Aligned<f32>,
    pub(super) rounded: Vec<bf16>,
    pub(super) inverses: Vec<f32>,
    pub(super) output: Aligned<f32>,
}

impl AttentionValue for bf16 {
    type Scratch = Scratch;
    type BackwardScratch = BackwardScratch;

    fn scratch(largest: Largest) -> Scratch {
        let queries = largest.block(QUERY_BLOCK);
        let sums = queries.next_multiple_of(SUM_ROWS);
        Scratch {
            queries: vec![Self::ZERO; queries * largest.heads.head_dim],
            rows: Bf16Rows::default(),
            weights: Aligned::new(sums * largest.padded()),
            rounded: vec![Self::ZERO; queries * largest.padded()],
            inverses: vec![0.0; queries],
            output: Aligned::new(sums * PANEL),
        }
    }

    fn backward_scratch(largest: Largest) -> BackwardScratch {
        BackwardScratch::new(largest)
    }

    fn forward(pass: Forward<'_, Self>) {
        forward(pass);
    }

    fn backward(pass: Backward<'_, Self>) {
        bf16_backward::backward(pass);
    }

    fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
        rounded_tensor(&values, shape)
    }
}

fn forward(pass: Forward<'_, bf16>) {
    let (pages, sequence, scratch) = (pass.pages, pass.sequence, pass.scratch);
    for block in QueryBlock::all(pass.row_head, QUERY_BLOCK) {
        block.gather(pass.q, &mut scratch.queries);
        scratch.rows.pack(block.rows(&scratch.queries));
        let weights = scratch.weights.values();
        block.products_with_keys(&scratch.rows, pages, sequence, weights);
        dispatch(Softmax {
            block,
            scores: weights,
            inverses: &mut scratch.inverses,
        });
        let rounded = block.round(weights, &mut scratch.rounded);
        scratch.rows.pack(rounded);
        let output = scratch.output.values();
        let multiplier = scratch.rows.multiplier();
        for panel in 0..pass.row_head.heads.head_dim.div_ceil(PANEL) {
            block.products_with_values(&multiplier, pages, sequence, panel, output);
            block.scatter(panel, output, |i| scratch.inverses[i], pass.out);
        }
    }
}

/// [`QueryBlock::softmax`] as a kernel.
struct Softmax<'a> {
    block: QueryBlock,
    scores: &'a mut [f32],
    inverses: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        self.block.softmax::<S>(self.scores, self.inverses);
    }
}

impl QueryBlock {
    /// Views gathered rows [count, D].
    pub(super) fn rows<'a>(&self, rows: &'a [bf16]) -> View<'a, bf16> {
        let head_dim = self.row_head.heads.head_dim;
        View::new(rows, self.count, head_dim, head_dim)
    }

    /// Rounds [count, padded] values.
    pub(super) fn round<'a>(&self, values: &[f32], rounded: &'a mut [bf16]) -> View<'a, bf16> {
        let len = self.count * self.padded();
        round(&values[..len], &mut rounded[..len]);
        View::new(rounded, self.count, self.padded(), self.padded())
    }

    /// Computes the packed rows [count, D] times the keys → [count, padded].
    pub(super) fn products_with_keys(
        &self,
        rows: &Bf16Rows,
        pages: &KvPages<bf16>,
        sequence: PagedSequence<'_>,
        products: &mut [f32],
    ) {
        let stride = self.padded();
        products[..rows.padded_rows() * stride].fill(0.0);
        let multiplier = rows.multiplier();
        let mut first = 0;
        while first < self.keys {
            let run = pages.key_run(sequence, first, self.keys);
            let values = &mut products[first..];
            multiplier.add_panels(run, &mut Sums { values, stride }, PANEL);
            first += run.len() / pages.key_words() * PAGE;
        }
    }

    /// Computes the packed rows [count, padded] times 32 columns of the values → `[count][32]`.
    pub(super) fn products_with_values(
        &self,
        multiplier: &Multiplier<'_>,
        pages: &KvPages<bf16>,
        sequence: PagedSequence<'_>,
        panel: usize,
        products: &mut [f32],
    ) {
        products.fill(0.0);
        let mut first = 0;
        while first < self.keys {
            let run = pages.value_run(sequence, panel, first, self.keys);
            let mut sums = Sums {
                values: &mut *products,
                stride: PANEL,
            };
            multiplier.add_strip(first / BLOCK, run, &mut sums);
            first += run.len() / (PAGE / 2 * PANEL) * PAGE;
        }
    }
}
