//! The decoder's operations in bf16 on NVIDIA GPUs, by kernels of this crate (the `.cu` files). The
//! weight gradients and input gradients of linear layers are cuBLAS products.
//!
//! Invariant: in a forward pass the bits of a row depend on that row alone, as on the CPU. Each
//! kernel sums in an order that depends neither on the number of rows nor on where a row lies.

mod attention;
mod attention_backward;
mod attention_lists;
mod cached_attention;
mod draw;
mod launch;
mod logprobs;
mod matmul;
mod optimizer;
pub(crate) mod ptx;
mod restrict;
mod rows;

pub(super) use attention::attention;
pub(super) use attention_backward::attention_backward;
pub(crate) use cached_attention::CachedBatch;
pub(crate) use draw::draw;
pub(super) use logprobs::{token_logprobs, token_logprobs_backward};
pub(super) use matmul::{linears, linears_unrounded};
pub(super) use optimizer::{adamw, sum_of_squares};
pub(super) use restrict::restrict;
pub(super) use rows::{
    add_and_norm, add_rows, norm_and_rope, rms_norm, rms_norm_backward, rotate, swiglu,
    swiglu_backward,
};

use crate::config::DecoderConfig;
use launch::Launch;

/// The most columns of a row of logits (`logprobs.cu`).
const MOST_COLUMNS: usize = 1 << 19;

/// A launch of a kernel that works on rows of logits, with a block for each.
fn over_logits(kernel: &str, rows: usize) -> Launch<'_> {
    Launch {
        module: "logprobs",
        kernel,
        grid: (rows, 1),
        threads: 1024,
        shared_bytes: 0,
    }
}

/// Returns whether the kernels can run a decoder of this shape.
pub(super) fn supports(config: &DecoderConfig) -> bool {
    // A copy moves 8 values, and a warp of attention works on 16 queries.
    let widths = [config.hidden_size, config.intermediate_size];
    matches!(config.head_dim, 32 | 64 | 128)
        && widths.iter().all(|width| width.is_multiple_of(8))
        && config.heads / config.kv_heads <= 16
        && config.vocab_size.is_multiple_of(8)
        && config.vocab_size <= MOST_COLUMNS
}
