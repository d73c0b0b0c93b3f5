//! Matrices of bf16: views that are widened or transposed, and right-hand matrices in panels.

use half::bf16;

use crate::ops::aligned::Aligned;
use crate::ops::bf16_values::{factor, factor_bits};
use crate::ops::matmul::{self, View, WriteMode};
use crate::ops::simd::{Kernel, Simd, dispatch};

/// Columns of a panel of B, as in the products of f32.
pub(super) const PANEL: usize = matmul::PANEL;
/// Steps of k in a block of the sum.
pub(crate) const BLOCK: usize = 32;
/// Rows of a [`transposed_block`].
pub(super) const BLOCK_ROWS: usize = 16;

impl View<'_, bf16> {
    /// Writes the rows one after the other in f32, each padded with zeros to `padded` values: the
    /// columns, rounded up to whole blocks. Either the rows or the columns are contiguous.
    pub(super) fn widen(self, padded: usize, wide: &mut Vec<f32>) {
        wide.resize(self.rows * padded, 0.0);
        if !wide.is_empty() {
            dispatch(Widen {
                from: self,
                padded,
                wide,
            });
        }
    }
}

/// Returns the rows of a matrix of at most 16 x 32 whose columns are contiguous, padded with zeros.
#[inline(always)]
pub(super) fn transposed_block(a: View<'_, bf16>) -> [[u16; BLOCK]; BLOCK_ROWS] {
    debug_assert_eq!(a.row_stride, 1, "the columns are not contiguous");
    // Two steps are interleaved first, so that half as many values are moved.
    let mut pairs = [[[0; 2]; BLOCK_ROWS]; BLOCK / 2];
    for (step, pairs) in pairs.iter_mut().enumerate().take(a.cols.div_ceil(2)) {
        let (even, odd) = (column(a, 2 * step), column(a, 2 * step + 1));
        for row in 0..BLOCK_ROWS {
            pairs[row] = [even[row], odd[row]];
        }
    }
    let mut rows = [[0; BLOCK]; BLOCK_ROWS];
    for (row, values) in rows.iter_mut().enumerate() {
        let (values, _) = values.as_chunks_mut();
        for (step, values) in values.iter_mut().enumerate() {
            *values = pairs[step][row];
        }
    }
    rows
}

/// Returns a column of at most 16 values, zeros beyond the last row and column.
#[inline(always)]
fn column(a: View<'_, bf16>, column: usize) -> [u16; BLOCK_ROWS] {
    let mut bits = [0; BLOCK_ROWS];
    if column < a.cols {
        let values = &a.data[column * a.col_stride..];
        match values.first_chunk::<BLOCK_ROWS>() {
            Some(values) if a.rows == BLOCK_ROWS => bits = values.map(factor_bits),
            _ => {
                let bits = bits.iter_mut().zip(&values[..a.rows]);
                bits.for_each(|(bits, &value)| *bits = factor_bits(value));
            }
        }
    }
    bits
}

struct Widen<'a> {
    from: View<'a, bf16>,
    padded: usize,
    wide: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (from, padded) = (self.from, self.padded);
        if from.col_stride == 1 {
            for (row, wide) in self.wide.chunks_exact_mut(padded).enumerate() {
                let (wide, padding) = wide.split_at_mut(from.cols);
                for (wide, &value) in wide.iter_mut().zip(&from.data[row * from.row_stride..]) {
                    *wide = factor(value);
                }
                padding.fill(0.0);
            }
        } else {
            for (strip, wide) in self.wide.chunks_mut(BLOCK_ROWS * padded).enumerate() {
                for k in (0..from.cols).step_by(BLOCK) {
                    let (rows, steps) = (wide.len() / padded, BLOCK.min(from.cols - k));
                    let block = transposed_block(from.part(strip * BLOCK_ROWS, rows, k, steps));
                    for (wide, bits) in wide.chunks_exact_mut(padded).zip(&block) {
                        for (wide, &bits) in wide[k..k + BLOCK].iter_mut().zip(bits) {
                            *wide = f32::from_bits(u32::from(bits) << 16);
                        }
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
    pairs: Aligned<u32>,
    /// k, and k padded to whole blocks.
    pub(super) k: usize,
    pub(super) padded: usize,
    pub(super) n: usize,
}

impl Default for Bf16Matrix {
    fn default() -> Self {
        Self {
            pairs: Aligned::new(0),
            k: 0,
            padded: 0,
            n: 0,
        }
    }
}

impl Bf16Matrix {
    /// Packs `b` [k, n].
    pub(crate) fn new(b: View<'_, bf16>) -> Self {
        let mut packed = Self::default();
        packed.pack(b);
        packed
    }

    /// Packs `b` [k, n] in place of the former matrix, whose memory is used again.
    pub(crate) fn pack(&mut self, b: View<'_, bf16>) {
        (self.k, self.n) = (b.rows, b.cols);
        self.padded = b.rows.next_multiple_of(BLOCK);
        let panels = b.cols.div_ceil(PANEL);
        self.pairs.resize(panels * self.padded / 2 * PANEL);
        let pairs = self.pairs.values();
        if !b.cols.is_multiple_of(PANEL) {
            pairs.fill(0);
        }
        if !pairs.is_empty() {
            dispatch(PackPairs {
                b,
                padded: self.padded,
                pairs,
            });
        }
    }

    /// Returns all panels, one after the other.
    pub(crate) fn panels(&self) -> &[u32] {
        self.pairs.read()
    }

    /// Returns the pairs of a panel, `[padded / 2][32]`.
    pub(super) fn panel(&self, panel: usize) -> &[u32] {
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
    b: View<'a, bf16>,
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

/// Writes the value of a step into its half of a pair.
#[inline(always)]
pub(crate) fn write_pair(pair: &mut u32, step: usize, value: bf16) {
    let shift = step % 2 * 16;
    *pair = *pair & !(0xffff << shift) | u32::from(factor_bits(value)) << shift;
}

fn pair(even: bf16, odd: bf16) -> u32 {
    u32::from(factor_bits(even)) | u32::from(factor_bits(odd)) << 16
}

/// Packs a block of a row-major B: two rows make a row of pairs.
#[inline(always)]
fn pack_rows(
    b: View<'_, bf16>,
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
    b: View<'_, bf16>,
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

/// Writes the sums [rows, 32] of a panel of B to the columns of C [rows, n] that it stands for.
pub(super) fn write(
    sums: &[f32],
    panel: usize,
    (c, n): (&mut [f32], usize),
    write_mode: WriteMode,
) {
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
