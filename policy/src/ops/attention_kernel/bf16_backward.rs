//! The backward pass of the attention kernel in bf16.
//!
//! The gradients of keys and values are summed transposed, dKᵀ = Qᵀ dS and dVᵀ = dOᵀ P: so P and
//! dS are right-hand matrices as they lie, and only the few columns of Q and dO are transposed.

use half::bf16;

use super::bf16_forward::{QUERY_BLOCK, Scratch};
use super::{AttentionValue, Backward, Largest, QueryBlock, score_gradient};
use crate::ops::aligned::Aligned;
use crate::ops::kv_pages::PAGE;
use crate::ops::math::sum;
use crate::ops::matmul::{PANEL, View};
use crate::ops::matmul_bf16::{Bf16Matrix, Bf16Rows, SUM_ROWS, Sums};
use crate::ops::simd::{Kernel, Simd, dispatch};

/// Buffers of the backward pass of one row and key-value head.
pub(crate) struct BackwardScratch {
    scratch: Scratch,
    /// The gradients of the output's rows and of the softmax weights.
    doutput: Vec<bf16>,
    dweights: Aligned<f32>,
    /// The right-hand matrix of the product at hand.
    panels: Bf16Matrix,
    /// The gradients of keys and values, transposed: `[page][D][32 keys]`.
    dkeys: Aligned<f32>,
    dvalues: Aligned<f32>,
}

impl BackwardScratch {
    pub(super) fn new(largest: Largest) -> Self {
        let (head_dim, padded) = (largest.heads.head_dim, largest.padded());
        let queries = largest.block(QUERY_BLOCK);
        let transposed = || Aligned::new(padded * head_dim.next_multiple_of(SUM_ROWS));
        Self {
            scratch: bf16::scratch(largest),
            doutput: vec![bf16::ZERO; queries * head_dim],
            dweights: Aligned::new(queries.next_multiple_of(SUM_ROWS) * padded),
            panels: Bf16Matrix::default(),
            dkeys: transposed(),
            dvalues: transposed(),
        }
    }
}

/// Runs the backward pass of one row and key-value head.
pub(super) fn backward(pass: Backward<'_, bf16>) {
    let (row_head, sequence, b) = (pass.row_head, pass.sequence, pass.scratch);
    let head_dim = row_head.heads.head_dim;
    let sums = row_head.all_keys().next_multiple_of(PANEL) * head_dim.next_multiple_of(SUM_ROWS);
    // Blocks of queries add to these in order, so a key's gradient has one order of sums.
    b.dkeys.values()[..sums].fill(0.0);
    b.dvalues.values()[..sums].fill(0.0);
    for block in QueryBlock::all(row_head, QUERY_BLOCK) {
        block.gather(pass.q, &mut b.scratch.queries);
        block.gather(pass.dout, &mut b.doutput);
        let (s, dweights) = (&mut b.scratch, b.dweights.values());
        s.rows.pack(block.rows(&s.queries));
        block.products_with_keys(&s.rows, pass.keys_values, sequence, s.weights.values());
        s.rows.pack(block.rows(&b.doutput));
        block.products_with_keys(&s.rows, pass.values_keys, sequence, dweights);
        dispatch(ScoreGradients {
            block,
            inverses: &mut s.inverses,
            weights: s.weights.values(),
            dweights,
        });
        b.panels.pack(block.round(s.weights.read(), &mut s.rounded));
        add_transposed(
            block.rows(&b.doutput),
            &b.panels,
            &mut s.rows,
            &mut b.dvalues,
        );
        let dscores = block.round(dweights, &mut s.rounded);
        b.panels.pack(dscores);
        add_transposed(block.rows(&s.queries), &b.panels, &mut s.rows, &mut b.dkeys);
        s.rows.pack(dscores);
        let (output, multiplier) = (s.output.values(), s.rows.multiplier());
        for panel in 0..head_dim.div_ceil(PANEL) {
            block.products_with_values(&multiplier, pass.values_keys, sequence, panel, output);
            block.scatter(panel, output, |_| 1.0, pass.dq);
        }
    }
    // Added rather than written, because rows that continue this one share its keys.
    for position in 0..row_head.all_keys() {
        let at = row_head.kv_offset(position)..row_head.kv_offset(position) + head_dim;
        add_column(b.dkeys.read(), position, &mut pass.dk[at.clone()]);
        add_column(b.dvalues.read(), position, &mut pass.dv[at]);
    }
}

/// Adds rows [count, D]ᵀ times right-hand panels [count, keys] to transposed sums.
fn add_transposed(
    rows: View<'_, bf16>,
    panels: &Bf16Matrix,
    packed: &mut Bf16Rows,
    sums: &mut Aligned<f32>,
) {
    packed.pack(rows.transposed());
    let panel_step = packed.rows().next_multiple_of(SUM_ROWS) * PANEL;
    let mut sums = Sums {
        values: sums.values(),
        stride: PANEL,
    };
    let multiplier = packed.multiplier();
    multiplier.add_panels(panels.panels(), &mut sums, panel_step);
}

/// Adds the column of a position in transposed sums to `sum` `[D]`.
fn add_column(transposed: &[f32], position: usize, sum: &mut [f32]) {
    let panel_step = sum.len().next_multiple_of(SUM_ROWS) * PANEL;
    let column = &transposed[position / PAGE * panel_step + position % PAGE..];
    let column = column.iter().step_by(PANEL);
    sum.iter_mut().zip(column).for_each(|(sum, x)| *sum += x);
}

/// Turns scores and the gradients of softmax weights into the weights and the gradients of scores.
struct ScoreGradients<'a> {
    block: QueryBlock,
    inverses: &'a mut [f32],
    /// Both are [count, padded].
    weights: &'a mut [f32],
    dweights: &'a mut [f32],
}

impl Kernel for ScoreGradients<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (block, scale) = (self.block, self.block.row_head.heads.scale());
        block.softmax::<S>(self.weights, self.inverses);
        let rows = self.weights.chunks_exact_mut(block.padded());
        let drows = self.dweights.chunks_exact_mut(block.padded());
        for (i, (weights, dweights)) in rows.zip(drows).take(block.count).enumerate() {
            let inverse = self.inverses[i];
            // What old keys in the last page gave, which may not be a number.
            dweights[block.row_head.keys(block.start + i)..].fill(0.0);
            // rowsum(P dP) equals rowsum(dO O), but O is rounded, and the error would reach every
            // score.
            let dot = inverse * sum::<S>(weights, dweights, |x, y| x.mul(y));
            score_gradient::<S>(weights, dweights, inverse, dot, scale);
        }
    }
}
