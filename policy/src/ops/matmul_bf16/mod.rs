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
mod lanes;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_pairs.rs")]
mod pairs;
#[cfg(test)]
mod tests;
mod trial;

use candle_core::Result;
use half::bf16;

use super::bf16_values::{factor, factor_bits};
use super::matmul::{self, WriteMode};
use super::simd::{InstructionSet, Kernel, LANES, Simd, chosen_set, dispatch};

/// Columns of a panel of B, as in the products of f32.
const PANEL: usize = matmul::PANEL;
/// Steps of k in a block of the sum.
const BLOCK: usize = 32;
/// Rows of A that meet all panels of B before the next ones. At a k of 1,536 they are 768 KiB in
/// bf16, which fit the second-level cache.
const ROWS: usize = 256;

/// A read-only strided matrix of bf16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16View<'a> {
    data: &'a [bf16],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Bf16View<'a> {
    /// Views `data` as a row-major matrix.
    ///
    /// # Panics
    /// If `data` does not have this shape.
    pub(crate) fn new(data: &'a [bf16], rows: usize, cols: usize) -> Self {
        assert_eq!(
            data.len(),
            rows * cols,
            "a view of another shape: this is a bug"
        );
        Self {
            data,
            rows,
            cols,
            row_stride: cols,
            col_stride: 1,
        }
    }

    /// Returns the transposed matrix without a copy.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Returns `rows` rows from the row `first` on.
    fn part(self, first: usize, rows: usize) -> Self {
        let start = (first * self.row_stride).min(self.data.len());
        Self {
            data: &self.data[start..],
            rows,
            ..self
        }
    }

    /// Returns the rows one after the other in f32, each padded with zeros to `padded` values.
    fn widened(self, padded: usize) -> Vec<f32> {
        let mut wide = vec![0.0; self.rows * padded];
        if !wide.is_empty() {
            dispatch(Widen {
                from: self,
                padded,
                wide: &mut wide,
            });
        }
        wide
    }
}

struct Widen<'a> {
    from: Bf16View<'a>,
    padded: usize,
    wide: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let from = self.from;
        // In pieces of 16 columns, so that a transposed matrix is read a cache line at a time.
        for first in (0..from.cols).step_by(LANES) {
            let count = LANES.min(from.cols - first);
            for (row, wide) in self.wide.chunks_exact_mut(self.padded).enumerate() {
                let values = &from.data[row * from.row_stride + first * from.col_stride..];
                let wide = &mut wide[first..first + count];
                if from.col_stride == 1 {
                    for (wide, &value) in wide.iter_mut().zip(values) {
                        *wide = factor(value);
                    }
                } else {
                    for (k, wide) in wide.iter_mut().enumerate() {
                        *wide = factor(values[k * from.col_stride]);
                    }
                }
            }
        }
    }
}

/// A right-hand matrix B [k, n]: panel after panel of 32 columns, each `[k / 2][32]` pairs. A pair
/// has the value of an even step in its low half and that of the next step in its high half, as
/// AMX reads them.
pub(crate) struct Bf16Matrix {
    pairs: amx::Aligned<u32>,
    /// k, and k padded to whole blocks.
    k: usize,
    padded: usize,
    n: usize,
}

impl Bf16Matrix {
    /// Packs `b` [k, n].
    pub(crate) fn new(b: Bf16View<'_>) -> Self {
        let padded = b.rows.next_multiple_of(BLOCK);
        let panels = b.cols.div_ceil(PANEL);
        let mut pairs = amx::Aligned::new(panels * padded / 2 * PANEL);
        if padded > 0 {
            dispatch(PackPairs {
                b,
                padded,
                pairs: pairs.values(),
            });
        }
        Self {
            pairs,
            k: b.rows,
            padded,
            n: b.cols,
        }
    }

    /// Returns the pairs of a panel, `[padded / 2][32]`.
    fn panel(&self, panel: usize) -> &[u32] {
        let len = self.padded / 2 * PANEL;
        &self.pairs.read()[panel * len..][..len]
    }

    /// Returns the columns of B.
    pub(crate) fn columns(&self) -> usize {
        self.n
    }

    /// Returns the rows of B, which are the steps of a product.
    pub(crate) fn rows(&self) -> usize {
        self.k
    }
}

struct PackPairs<'a> {
    b: Bf16View<'a>,
    padded: usize,
    pairs: &'a mut [u32],
}

impl Kernel for PackPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let b = self.b;
        let panels = self.pairs.chunks_exact_mut(self.padded / 2 * PANEL);
        for (panel, pairs) in panels.enumerate() {
            let first = panel * PANEL;
            let width = PANEL.min(b.cols - first);
            // In blocks, so that a transposed matrix is read a cache line at a time.
            for (block, pairs) in pairs.chunks_exact_mut(BLOCK / 2 * PANEL).enumerate() {
                let k0 = block * BLOCK;
                let steps = BLOCK.min(b.rows - k0);
                match b.col_stride {
                    1 => pack_rows(b, (k0, steps), first, (pairs, width)),
                    _ => pack_columns(b, (k0, steps), first, (pairs, width)),
                }
            }
        }
    }
}

fn pair(even: bf16, odd: bf16) -> u32 {
    u32::from(factor_bits(even)) | u32::from(factor_bits(odd)) << 16
}

/// Packs a block of a row-major B: two rows make a row of pairs.
#[inline(always)]
fn pack_rows(
    b: Bf16View<'_>,
    (k0, steps): (usize, usize),
    first: usize,
    (pairs, width): (&mut [u32], usize),
) {
    let zeros = [bf16::ZERO; PANEL];
    let row = |k: usize| match k < steps {
        true => &b.data[(k0 + k) * b.row_stride + first..][..width],
        false => &zeros[..width],
    };
    for (step, pairs) in pairs.chunks_exact_mut(PANEL).enumerate() {
        let both = row(2 * step).iter().zip(row(2 * step + 1));
        for (packed, (&even, &odd)) in pairs.iter_mut().zip(both) {
            *packed = pair(even, odd);
        }
    }
}

/// Packs a block of a transposed B, whose columns are contiguous.
#[inline(always)]
fn pack_columns(
    b: Bf16View<'_>,
    (k0, steps): (usize, usize),
    first: usize,
    (pairs, width): (&mut [u32], usize),
) {
    for column in 0..width {
        let start = (first + column) * b.col_stride + k0 * b.row_stride;
        let at = |k: usize| match k < steps {
            true => b.data[start + k * b.row_stride],
            false => bf16::ZERO,
        };
        for (step, pairs) in pairs.chunks_exact_mut(PANEL).enumerate() {
            pairs[column] = pair(at(2 * step), at(2 * step + 1));
        }
    }
}

/// Computes C = A B for A [m, k], into the row-major `c` [m, n], or adds the finished sums to it.
///
/// # Errors
/// If the shapes do not fit.
pub(crate) fn multiply_bf16(
    a: Bf16View<'_>,
    b: &Bf16Matrix,
    c: &mut [f32],
    write_mode: WriteMode,
) -> Result<()> {
    if a.cols != b.k || c.len() != a.rows * b.n {
        candle_core::bail!(
            "a product of {} x {} and {} x {} in bf16: this is a bug",
            a.rows,
            a.cols,
            b.k,
            b.n
        );
    }
    let set = chosen_set();
    let tiles = (set == InstructionSet::Amx).then(amx::permission).flatten();
    let has_pairs = matches!(set, InstructionSet::Amx | InstructionSet::Avx512Bf16);
    let pairs = has_pairs.then(pairs::Permission::of_process).flatten();
    for first in (0..a.rows).step_by(ROWS) {
        let part = a.part(first, ROWS.min(a.rows - first));
        let c = &mut c[first * b.n..][..part.rows * b.n];
        match (tiles, pairs) {
            (Some(permission), _) if part.rows >= amx::LEAST_ROWS => {
                amx::multiply(permission, part, b, c, write_mode);
            }
            (_, Some(permission)) => pairs::multiply(permission, part, b, c, write_mode),
            _ => lanes::multiply(part, b, c, write_mode),
        }
    }
    Ok(())
}

/// Writes the sums [rows, 32] of a panel of B to the columns of C [rows, n] that it stands for.
fn write(sums: &[f32], panel: usize, (c, n): (&mut [f32], usize), write_mode: WriteMode) {
    let first = panel * PANEL;
    let width = PANEL.min(n - first);
    for (c, sums) in c.chunks_exact_mut(n).zip(sums.chunks_exact(PANEL)) {
        let (c, sums) = (&mut c[first..first + width], &sums[..width]);
        match write_mode {
            WriteMode::Overwrite => c.copy_from_slice(sums),
            WriteMode::Accumulate => c.iter_mut().zip(sums).for_each(|(c, sum)| *c += sum),
        }
    }
}
