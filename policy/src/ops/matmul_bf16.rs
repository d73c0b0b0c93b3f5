//! Matrix multiplication of bf16 with sums in f32, whose bits depend only on the two vectors of
//! each output element.
//!
//! Invariant: k is cut into blocks of 32, the last one padded with zeros. An element of C is the
//! sum of its blocks, from the first to the last, starting at zero. A block is E + O, where E and O
//! are chains of fused multiply-adds over its even and its odd steps, each starting at zero. In
//! this order Intel's AMX sums (TDPBF16PS in Intel's manual, felixcloutier.com/x86/tdpbf16ps). So a
//! kernel of tiles gives the bits of this one, and so do all instruction sets.
//!
//! AMX takes subnormal numbers as zero. Here values below 2^-55 count as zero, in any kernel. Then
//! every product and every sum is a multiple of 2^-124, and no sum is subnormal.
//!
//! AVX512-BF16 sums in another order (VDPBF16PS), so CPUs that have it and no AMX widen bf16 to f32
//! and use the multiply-adds of f32. Its gain is memory: a weight has two bytes.
//!
//! One thread.

use candle_core::Result;
use half::bf16;

use super::bf16_values::{factor, factor_bits};
use super::matmul::{self, WriteMode};
use super::simd::{Kernel, LANES, Simd, dispatch};

/// Columns of a panel of B, as in the products of f32.
const PANEL: usize = matmul::PANEL;
/// Steps of k in a block of the sum.
const BLOCK: usize = 32;
/// The steps of k whose pairs in a panel of B stay in the first-level cache: 32 KiB.
const DEPTH: usize = 512;

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

    /// Returns a value as a product takes it, or zero beyond the last row.
    #[inline(always)]
    fn at(self, row: usize, col: usize) -> bf16 {
        match row < self.rows {
            true => self.data[row * self.row_stride + col * self.col_stride],
            false => bf16::ZERO,
        }
    }

    /// Writes the rows one after the other in f32, each `padded` values apart.
    fn widen(self, padded: usize, wide: &mut [f32]) {
        // In pieces of 16 columns, so that a transposed matrix is read a cache line at a time.
        for first in (0..self.cols).step_by(LANES) {
            let count = LANES.min(self.cols - first);
            for (row, wide) in wide.chunks_exact_mut(padded).enumerate() {
                let from = &self.data[row * self.row_stride + first * self.col_stride..];
                let wide = &mut wide[first..first + count];
                if self.col_stride == 1 {
                    for (wide, &value) in wide.iter_mut().zip(from) {
                        *wide = factor(value);
                    }
                } else {
                    for (k, wide) in wide.iter_mut().enumerate() {
                        *wide = factor(from[k * self.col_stride]);
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
    pairs: Vec<u32>,
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
        let mut pairs = vec![0; panels * padded / 2 * PANEL];
        for panel in 0..panels {
            let pairs = &mut pairs[panel * padded / 2 * PANEL..][..padded / 2 * PANEL];
            let first = panel * PANEL;
            let width = PANEL.min(b.cols - first);
            // In pieces of a block, so that a transposed matrix is read a cache line at a time.
            for (block, pairs) in pairs.chunks_exact_mut(BLOCK / 2 * PANEL).enumerate() {
                for column in 0..width {
                    for (step, row) in pairs.chunks_exact_mut(PANEL).enumerate() {
                        let k = block * BLOCK + 2 * step;
                        let half = |k| u32::from(factor_bits(b.at(k, first + column)));
                        row[column] = half(k) | half(k + 1) << 16;
                    }
                }
            }
        }
        Self {
            pairs,
            k: b.rows,
            padded,
            n: b.cols,
        }
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
    let mut wide = vec![0.0; a.rows * b.padded];
    if b.padded > 0 {
        a.widen(b.padded, &mut wide);
    }
    dispatch(Multiply {
        a: &wide,
        rows: a.rows,
        b,
        c,
        write_mode,
    });
    Ok(())
}

struct Multiply<'a> {
    /// A widened, its rows padded to whole blocks.
    a: &'a [f32],
    rows: usize,
    b: &'a Bf16Matrix,
    c: &'a mut [f32],
    write_mode: WriteMode,
}

impl Kernel for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Bf16Matrix {
            pairs, padded, n, ..
        } = self.b;
        let (padded, n) = (*padded, *n);
        let mut sums = vec![0.0; self.rows * PANEL];
        for panel in 0..n.div_ceil(PANEL) {
            let pairs = &pairs[panel * padded / 2 * PANEL..][..padded / 2 * PANEL];
            sums.fill(0.0);
            // All rows read a piece of the panel before the next piece replaces it in the cache.
            for (piece, pairs) in pairs.chunks(DEPTH / 2 * PANEL).enumerate() {
                let mut i0 = 0;
                while i0 < self.rows {
                    let rows = S::PAIR_ROWS.min(self.rows - i0);
                    let tile = Tile {
                        a: &self.a[i0 * padded + piece * DEPTH..],
                        a_stride: padded,
                        pairs,
                        sums: &mut sums[i0 * PANEL..],
                    };
                    tile.run::<S>(rows);
                    i0 += rows;
                }
            }
            let first = panel * PANEL;
            let width = PANEL.min(n - first);
            for (row, sums) in sums.chunks_exact(PANEL).enumerate() {
                let c = &mut self.c[row * n + first..][..width];
                match self.write_mode {
                    WriteMode::Overwrite => c.copy_from_slice(&sums[..width]),
                    WriteMode::Accumulate => c.iter_mut().zip(sums).for_each(|(c, sum)| *c += sum),
                }
            }
        }
    }
}

/// Some rows of A against a piece of a panel of B.
struct Tile<'a> {
    a: &'a [f32],
    a_stride: usize,
    pairs: &'a [u32],
    /// The sums so far, [rows, 32].
    sums: &'a mut [f32],
}

impl Tile<'_> {
    /// Runs the tile with a constant number of rows, so that the chains stay in registers.
    #[inline(always)]
    fn run<S: Simd>(self, rows: usize) {
        match (rows, S::PAIR_VECTORS) {
            (6, 2) => self.rows::<S, 6, 2>(),
            (5, 2) => self.rows::<S, 5, 2>(),
            (4, 2) => self.rows::<S, 4, 2>(),
            (3, 2) => self.rows::<S, 3, 2>(),
            (2, 2) => self.rows::<S, 2, 2>(),
            (1, 2) => self.rows::<S, 1, 2>(),
            (2, 1) => self.rows::<S, 2, 1>(),
            (1, 1) => self.rows::<S, 1, 1>(),
            _ => unreachable!("a tile of bf16 has 1 to 6 rows: this is a bug"),
        }
    }

    #[inline(always)]
    fn rows<S: Simd, const ROWS: usize, const VECTORS: usize>(self) {
        const PAIRS: usize = BLOCK / 2;
        let blocks = self.pairs.len() / (PAIRS * PANEL);
        assert!((ROWS - 1) * self.a_stride + blocks * BLOCK <= self.a.len());
        assert!(ROWS * PANEL <= self.sums.len());
        for column in (0..PANEL).step_by(VECTORS * LANES) {
            for block in 0..blocks {
                let mut even = [[S::splat(0.0); VECTORS]; ROWS];
                let mut odd = even;
                for pair in 0..PAIRS {
                    let row = (block * PAIRS + pair) * PANEL + column;
                    let k = block * BLOCK + 2 * pair;
                    // SAFETY: `row` and 16 VECTORS values after it lie in a row of `pairs`, which
                    // holds `blocks` blocks; the first assertion bounds the offsets into `a`.
                    unsafe {
                        let pairs = self.pairs.as_ptr().add(row);
                        let b: [(S, S); VECTORS] =
                            std::array::from_fn(|v| S::load_pairs(&*pairs.add(v * LANES).cast()));
                        for i in 0..ROWS {
                            let a = self.a.as_ptr().add(i * self.a_stride + k);
                            let (a_even, a_odd) = (S::splat(*a), S::splat(*a.add(1)));
                            for v in 0..VECTORS {
                                even[i][v] = a_even.fma(b[v].0, even[i][v]);
                                odd[i][v] = a_odd.fma(b[v].1, odd[i][v]);
                            }
                        }
                    }
                }
                for i in 0..ROWS {
                    for v in 0..VECTORS {
                        let at = i * PANEL + column + v * LANES;
                        let sums = &mut self.sums[at..at + LANES];
                        let before = S::load_some(sums, 0.0);
                        before.add(even[i][v].add(odd[i][v])).store_some(sums);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::simd::{InstructionSet, with_instruction_set};

    /// Values of many sizes: ordinary ones, those around the smallest, and subnormal ones.
    fn values(count: usize, seed: u64) -> Vec<bf16> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let value = |_| {
            let mantissa = (next() >> 40) as f32 / (1 << 24) as f32 - 0.5;
            let exponent = match next() % 8 {
                0 => -(50 + (next() % 10) as i32),
                1 => -(120 + (next() % 12) as i32),
                2 => 20,
                _ => 0,
            };
            bf16::from_f32(mantissa * 2f32.powi(exponent.max(-126)))
        };
        (0..count).map(value).collect()
    }

    /// The definition, as Intel's manual gives it for AMX, with subnormal results as zero.
    fn by_definition(a: Bf16View<'_>, b: Bf16View<'_>, i: usize, j: usize) -> f32 {
        let normal = |x: f32| if x.is_subnormal() { 0.0 } else { x };
        let mut sum = 0.0;
        for block in 0..a.cols.div_ceil(BLOCK) {
            let mut chains = [0.0_f32; 2];
            for k in block * BLOCK..a.cols.min((block + 1) * BLOCK) {
                let (a, b) = (factor(a.at(i, k)), factor(b.at(k, j)));
                let chain = &mut chains[k % 2];
                *chain = normal(a.mul_add(b, *chain));
            }
            sum = normal(sum + normal(chains[0] + chains[1]));
        }
        sum
    }

    const SHAPES: [(usize, usize, usize); 9] = [
        (1, 32, 32),
        (1, 7, 5),
        (2, 600, 33),
        (6, 64, 32),
        (7, 513, 70),
        (13, 1030, 96),
        (5, 1, 1),
        (64, 576, 40),
        (3, 0, 4),
    ];

    #[test]
    fn every_instruction_set_returns_the_bits_of_the_definition() {
        for (m, k, n) in SHAPES {
            let (a_data, b_data) = (values(m * k, 1), values(k * n, 2));
            let a = Bf16View::new(&a_data, m, k);
            for transposed in [false, true] {
                let b = match transposed {
                    false => Bf16View::new(&b_data, k, n),
                    true => Bf16View::new(&b_data, n, k).transposed(),
                };
                let packed = Bf16Matrix::new(b);
                for set in InstructionSet::available() {
                    let mut c = vec![f32::NAN; m * n];
                    let run = || multiply_bf16(a, &packed, &mut c, WriteMode::Overwrite);
                    with_instruction_set(set, run).unwrap().unwrap();
                    for (at, &found) in c.iter().enumerate() {
                        let expected = by_definition(a, b, at / n, at % n);
                        assert_eq!(
                            found.to_bits(),
                            expected.to_bits(),
                            "{set:?} {m}x{k}x{n} at {at}: {found} {expected}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn infinite_values_and_nan_stay_visible() {
        let one = bf16::ONE;
        let a = [bf16::INFINITY, one, bf16::NAN, one];
        let b = [one, one];
        let mut c = [0.0; 2];
        let packed = Bf16Matrix::new(Bf16View::new(&b, 2, 1));
        let a = Bf16View::new(&a, 2, 2);
        multiply_bf16(a, &packed, &mut c, WriteMode::Overwrite).unwrap();
        assert_eq!(c[0], f32::INFINITY);
        assert!(c[1].is_nan());
    }
}
