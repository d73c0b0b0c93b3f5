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
use super::bf16_values::append_rounded;
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

/// A product's factors: A [m, k] and B [k, n].
pub(crate) type Factors<'a> = (View<'a, bf16>, &'a Bf16Matrix);

/// Computes C = A B into the row-major C [m, n], or adds the finished sums to it.
///
/// # Errors
/// If the shapes do not fit.
pub(crate) fn multiply_bf16(
    (a, b): Factors<'_>,
    c: &mut [f32],
    write_mode: WriteMode,
) -> Result<()> {
    check((a, b), (a.rows, b.n))?;
    if c.len() != a.rows * b.n {
        candle_core::bail!("a product in bf16 has another shape than its memory: this is a bug");
    }
    let mut rows = Bf16Rows::default();
    for first in (0..a.rows).step_by(ROWS) {
        let part = a.part(first, ROWS.min(a.rows - first), 0, a.cols);
        rows.pack(part);
        let c = &mut c[first * b.n..][..part.rows * b.n];
        multiply_rows(&rows, b, c, write_mode);
    }
    Ok(())
}

/// Returns A B for A [m, k] and several B, each rounded to bf16. The rows of A are packed once for
/// all, and each part of a product is rounded while it is in the cache.
///
/// # Errors
/// If the shapes do not fit.
pub(crate) fn rounded_products(
    a: View<'_, bf16>,
    several: &[&Bf16Matrix],
) -> Result<Vec<Vec<bf16>>> {
    for b in several {
        check((a, b), (a.rows, b.n))?;
    }
    let new = |b: &&Bf16Matrix| Vec::with_capacity(a.rows * b.n);
    let mut products: Vec<Vec<bf16>> = several.iter().map(new).collect();
    let (mut rows, mut sums) = (Bf16Rows::default(), Vec::new());
    for first in (0..a.rows).step_by(ROWS) {
        rows.pack(a.part(first, ROWS.min(a.rows - first), 0, a.cols));
        for (b, product) in several.iter().zip(&mut products) {
            sums.resize(rows.rows() * b.n, 0.0);
            multiply_rows(&rows, b, &mut sums, WriteMode::Overwrite);
            append_rounded(&sums, product);
        }
    }
    Ok(products)
}

/// Returns the sum of several products [m, n], rounded to bf16. Each product is finished before it
/// is added.
///
/// # Errors
/// If the shapes do not fit.
pub(crate) fn rounded_sum_of_products(
    products: &[Factors<'_>],
    (m, n): (usize, usize),
) -> Result<Vec<bf16>> {
    for &factors in products {
        check(factors, (m, n))?;
    }
    let mut sum = Vec::with_capacity(m * n);
    let (mut rows, mut sums) = (Bf16Rows::default(), vec![0.0; ROWS.min(m) * n]);
    for first in (0..m).step_by(ROWS) {
        let count = ROWS.min(m - first);
        let sums = &mut sums[..count * n];
        let mut write_mode = WriteMode::Overwrite;
        for (a, b) in products {
            rows.pack(a.part(first, count, 0, a.cols));
            multiply_rows(&rows, b, sums, write_mode);
            write_mode = WriteMode::Accumulate;
        }
        append_rounded(sums, &mut sum);
    }
    Ok(sum)
}

fn check((a, b): Factors<'_>, (m, n): (usize, usize)) -> Result<()> {
    if (a.cols, a.rows, b.n) != (b.k, m, n) {
        candle_core::bail!(
            "a product [{m}, {n}] in bf16 of [{}, {}] and [{}, {}]: this is a bug",
            a.rows,
            a.cols,
            b.k,
            b.n
        );
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
