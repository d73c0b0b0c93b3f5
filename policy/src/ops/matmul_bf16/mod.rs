//! Matrix multiplication of bf16 with sums in f32, whose bits depend only on the two vectors of
//! each output element.
//!
//! Invariant: k is cut into blocks of 32, the last one padded with zeros. An element of C is the
//! sum of its blocks, from the first to the last, starting at zero. A block is E + O, where E and O
//! are chains of fused multiply-adds over its even and its odd steps, each starting at zero. In
//! this order Intel's AMX sums (TDPBF16PS in Intel's manual, felixcloutier.com/x86/tdpbf16ps). So a
//! kernel of tiles gives the bits of this one, and so do all instruction sets. A process tries that
//! once before it uses tiles or pairs.
//!
//! AMX takes subnormal numbers as zero. Here values below 2^-55 count as zero, in any kernel. Then
//! every product and every sum is a multiple of 2^-124, and no sum is subnormal.
//!
//! CPUs with AMX multiply tiles (`amx`). Those with AVX512-BF16 multiply pairs (`pairs`): the
//! instruction continues one chain by two steps, and the kernel arranges the steps so that they are
//! those of the chain. Other CPUs widen bf16 to f32 and use the multiply-adds of f32 (`lanes`).
//!
//! One thread.

mod amx;
mod instructions;
mod lanes;
mod matrix;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_pairs.rs")]
mod pairs;
mod rows;
mod sums;
#[cfg(test)]
mod tests;
mod trial;

use candle_core::Result;
use half::bf16;

use super::aligned::Aligned;
use super::matmul::{View, WriteMode};
#[cfg(test)]
pub(crate) use instructions::with_each;
pub(crate) use matrix::{BLOCK, Bf16Matrix, write_pair};
use matrix::{PANEL, write};
pub(crate) use rows::{Bf16Rows, Multiplier, SUM_ROWS};
pub(crate) use sums::Sums;

/// Rows of A that meet all panels of B before the next ones. At a k of 1,536 they are 768 KiB in
/// bf16, which fit the second-level cache.
const ROWS: usize = 256;

/// Computes C = A B for A [m, k] and several B, into each one's row-major C [m, n], or adds the
/// finished sums to it. The rows of A are packed once for all.
///
/// # Errors
/// If the shapes do not fit.
pub(crate) fn multiply_bf16(
    a: View<'_, bf16>,
    products: &mut [(&Bf16Matrix, &mut [f32])],
    write_mode: WriteMode,
) -> Result<()> {
    for (b, c) in &*products {
        if a.cols != b.k || c.len() != a.rows * b.n {
            candle_core::bail!(
                "a product of {} x {} and {} x {} in bf16: this is a bug",
                a.rows,
                a.cols,
                b.k,
                b.n
            );
        }
    }
    let mut rows = Bf16Rows::default();
    for first in (0..a.rows).step_by(ROWS) {
        let part = a.part(first, ROWS.min(a.rows - first), 0, a.cols);
        rows.pack(part);
        for (b, c) in &mut *products {
            let c = &mut c[first * b.n..][..part.rows * b.n];
            multiply_rows(&rows, b, c, write_mode);
        }
    }
    Ok(())
}

/// Computes C = A B from the packed rows of A.
fn multiply_rows(rows: &Bf16Rows, b: &Bf16Matrix, c: &mut [f32], write_mode: WriteMode) {
    let multiplier = rows.multiplier();
    let mut sums = Aligned::new(rows.padded_rows() * PANEL);
    for panel in 0..b.n.div_ceil(PANEL) {
        sums.values().fill(0.0);
        let mut strip = Sums {
            values: sums.values(),
            stride: PANEL,
        };
        multiplier.add_strip(0, b.panel(panel), &mut strip);
        write(sums.read(), panel, (c, b.n), write_mode);
    }
}
