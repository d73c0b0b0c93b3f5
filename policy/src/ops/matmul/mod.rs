//! Matrix multiplication whose bits depend only on the two vectors of each output element.
//!
//! Invariant: every element of C is one chain of fused multiply-adds over k, from the first to the
//! last, starting at zero (or at C's value when accumulating). Where k is split the accumulator
//! travels through memory unrounded. So the bits do not change with the number of rows, the tile,
//! the packing or the instruction set.
//!
//! One thread. The blocking is that of Goto and van de Geijn, "Anatomy of high-performance matrix
//! multiplication" (2008): a strip of B stays in the first-level cache while the rows of A pass.

mod tile;

use super::simd::{Kernel, Simd, dispatch};
pub(crate) use tile::multiply_strip;
use tile::{Block, Left, strips_at_once};

/// Columns of a panel of B: two AVX-512 registers.
pub(crate) const PANEL: usize = 32;
/// Depth of a strip of B. 32 columns of that depth are 32 KiB, which fit the first-level cache.
const DEPTH: usize = 256;
/// Rows of a strided A that are copied at a time. At full depth they are 960 KiB, which fit the
/// second-level cache.
const ROWS: usize = 960;

/// A read-only strided matrix of f32 or bf16.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, T> {
    pub(super) data: &'a [T],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) row_stride: usize,
    pub(super) col_stride: usize,
}

impl<'a, T> View<'a, T> {
    /// Views `data` as a row-major matrix whose rows start `row_stride` apart.
    ///
    /// # Panics
    /// If `data` is too short for the shape.
    pub(crate) fn new(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(
            rows == 0 || cols == 0 || (rows - 1) * row_stride + cols <= data.len(),
            "a view of {rows} x {cols} exceeds its data: this is a bug"
        );
        Self {
            data,
            rows,
            cols,
            row_stride,
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

    /// Returns rows `i0..i0 + rows` of columns `k0..k0 + depth`.
    #[inline(always)]
    pub(crate) fn part(self, i0: usize, rows: usize, k0: usize, depth: usize) -> Self {
        // Without columns there are rows, but no data.
        let start = (i0 * self.row_stride + k0 * self.col_stride).min(self.data.len());
        Self {
            data: &self.data[start..],
            rows,
            cols: depth,
            ..self
        }
    }
}

impl View<'_, f32> {
    /// Copies rows `k0..k0 + depth`, columns `n0..n0 + PANEL` into `strip`, row by row, zeros
    /// beyond the last column.
    fn pack_strip(self, k0: usize, depth: usize, n0: usize, strip: &mut [f32]) {
        let width = PANEL.min(self.cols - n0);
        if width < PANEL {
            strip[..depth * PANEL].fill(0.0);
        }
        if self.col_stride == 1 {
            let (rows, _) = strip[..depth * PANEL].as_chunks_mut::<PANEL>();
            for (k, row) in rows.iter_mut().enumerate() {
                let from = &self.data[(k0 + k) * self.row_stride + n0..];
                match from.first_chunk() {
                    Some(whole) if width == PANEL => *row = *whole,
                    _ => row[..width].copy_from_slice(&from[..width]),
                }
            }
        } else {
            // In pieces of 16 rows, so that the written rows stay in the first-level cache.
            for (piece, rows) in strip[..depth * PANEL].chunks_mut(16 * PANEL).enumerate() {
                let first = (k0 + piece * 16) * self.row_stride + n0 * self.col_stride;
                for n in 0..width {
                    let column = &self.data[first + n * self.col_stride..];
                    for (k, row) in rows.chunks_exact_mut(PANEL).enumerate() {
                        row[n] = column[k * self.row_stride];
                    }
                }
            }
        }
    }
}

/// A matrix B laid out once for many multiplications: panel after panel, each `[k][32]`.
pub struct PackedMatrix {
    data: Vec<f32>,
    k: usize,
    n: usize,
}

impl PackedMatrix {
    /// Packs `b` [k, n].
    pub(crate) fn new(b: View<'_, f32>) -> Self {
        let panels = b.cols.div_ceil(PANEL);
        let mut data = vec![0.0; panels * b.rows * PANEL];
        for (panel, strip) in data.chunks_exact_mut((b.rows * PANEL).max(1)).enumerate() {
            b.pack_strip(0, b.rows, panel * PANEL, strip);
        }
        Self {
            data,
            k: b.rows,
            n: b.cols,
        }
    }

    /// Returns the columns of B.
    pub(crate) fn columns(&self) -> usize {
        self.n
    }

    /// Returns the rows of B.
    pub(crate) fn rows(&self) -> usize {
        self.k
    }
}

/// The right-hand matrix B of a multiplication.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// Packed during the multiplication, strip by strip.
    Plain(View<'a, f32>),
    /// Packed beforehand, as weights for sampling are.
    Packed(&'a PackedMatrix),
}

impl Right<'_> {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Plain(view) => (view.rows, view.cols),
            Self::Packed(packed) => (packed.k, packed.n),
        }
    }
}

/// Whether C is overwritten or added to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteMode {
    Overwrite,
    Accumulate,
}

/// Returns A B as a new row-major matrix.
///
/// # Panics
/// If the shapes do not fit.
pub(crate) fn product(a: View<'_, f32>, b: Right<'_>) -> Vec<f32> {
    let n = b.shape().1;
    let mut c = vec![0.0; a.rows * n];
    multiply(a, b, &mut c, n, WriteMode::Overwrite);
    c
}

/// Computes C = A B or C += A B. C is row-major [m, n], its rows `c_stride` apart.
///
/// # Panics
/// If the shapes do not fit.
pub(crate) fn multiply(
    a: View<'_, f32>,
    b: Right<'_>,
    c: &mut [f32],
    c_stride: usize,
    write_mode: WriteMode,
) {
    let (k, n) = b.shape();
    assert_eq!(a.cols, k, "inner dimensions differ: this is a bug");
    assert!(
        a.rows == 0 || n == 0 || (a.rows - 1) * c_stride + n <= c.len(),
        "the output is too short: this is a bug"
    );
    if write_mode == WriteMode::Overwrite && k == 0 {
        for row in c.chunks_mut(c_stride).take(a.rows) {
            row[..n].fill(0.0);
        }
    }
    dispatch(Multiply {
        a,
        b,
        c,
        c_stride,
        write_mode,
    });
}

struct Multiply<'a, 'c> {
    a: View<'a, f32>,
    b: Right<'a>,
    c: &'c mut [f32],
    c_stride: usize,
    write_mode: WriteMode,
}

impl Kernel for Multiply<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (k, n) = self.b.shape();
        let strided = self.a.col_stride != 1;
        let most_rows = if strided { ROWS } else { self.a.rows };
        let packed_rows = if strided { ROWS.min(self.a.rows) } else { 0 };
        let mut left = vec![0.0; DEPTH.min(k) * packed_rows];
        let mut strip = match self.b {
            Right::Plain(_) => vec![0.0; DEPTH.min(k) * PANEL],
            Right::Packed(_) => Vec::new(),
        };
        // The loop over k is outside the loop over n, so that all strips of B read the packed rows
        // of A before these are replaced.
        for i0 in (0..self.a.rows).step_by(most_rows.max(1)) {
            let rows = most_rows.min(self.a.rows - i0);
            for k0 in (0..k).step_by(DEPTH) {
                let depth = DEPTH.min(k - k0);
                let a = self.a.part(i0, rows, k0, depth);
                let a = if strided {
                    Left::pack::<S>(a, &mut left)
                } else {
                    Left::Plain(a)
                };
                // Later parts of k continue the chain from C's unrounded f32 value: the chain is
                // the same as unsplit.
                let accumulate = k0 > 0 || self.write_mode == WriteMode::Accumulate;
                let mut n0 = 0;
                while n0 < n {
                    let (strips, strip_count) = match self.b {
                        Right::Plain(view) => {
                            view.pack_strip(k0, depth, n0, &mut strip);
                            (&strip[..depth * PANEL], 1)
                        }
                        Right::Packed(packed) => {
                            // Packed panels of the same k lie at a fixed distance, so a tile can
                            // span several. The last panels may be fewer than that.
                            let wide = strips_at_once::<S>(rows);
                            let fits = n0 + wide * PANEL <= n;
                            let strips = &packed.data[n0 * k + k0 * PANEL..];
                            (strips, if fits { wide } else { 1 })
                        }
                    };
                    let width = (strip_count * PANEL).min(n - n0);
                    let block = Block {
                        a,
                        rows,
                        depth,
                        strips,
                        strip_count,
                        strip_stride: k * PANEL,
                        accumulate,
                    };
                    block.run::<S>(&mut self.c[i0 * self.c_stride + n0..], self.c_stride, width);
                    n0 += strip_count * PANEL;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::simd::{InstructionSet, with_instruction_set};

    fn values(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..count)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect()
    }

    /// The definition: one chain of fused multiply-adds.
    fn chain(a: View<'_, f32>, b: View<'_, f32>, i: usize, j: usize, start: f32) -> f32 {
        (0..a.cols).fold(start, |sum, k| {
            a.data[i * a.row_stride + k * a.col_stride]
                .mul_add(b.data[k * b.row_stride + j * b.col_stride], sum)
        })
    }

    #[test]
    fn every_path_returns_the_bits_of_the_chain() {
        let shapes = [
            (1, 7, 5),
            (3, 600, 33),
            (12, 64, 32),
            (13, 513, 70),
            (29, 1030, 96),
            (5, 1, 1),
            // Tiles over several strips, and the strip that is left.
            (1, 300, 170),
            (2, 257, 96),
            (3, 40, 64),
            (4, 33, 64),
            (5, 300, 96),
            (6, 20, 130),
        ];
        for (m, k, n) in shapes {
            let (a_data, b_data) = (values(m * k, 1), values(k * n, 2));
            let views = [
                (View::new(&a_data, m, k, k), View::new(&b_data, k, n, n)),
                (
                    View::new(&a_data, k, m, m).transposed(),
                    View::new(&b_data, n, k, k).transposed(),
                ),
            ];
            for (a, b) in views {
                let packed = PackedMatrix::new(b);
                for right in [Right::Plain(b), Right::Packed(&packed)] {
                    for write_mode in [WriteMode::Overwrite, WriteMode::Accumulate] {
                        for set in InstructionSet::available() {
                            let before = values(m * n, 3);
                            let mut c = before.clone();
                            with_instruction_set(set, || multiply(a, right, &mut c, n, write_mode));
                            for (at, &c) in c.iter().enumerate() {
                                let start = if write_mode == WriteMode::Accumulate {
                                    before[at]
                                } else {
                                    0.0
                                };
                                let expected = chain(a, b, at / n, at % n, start);
                                assert_eq!(
                                    c.to_bits(),
                                    expected.to_bits(),
                                    "{set:?} {m}x{k}x{n} at {at}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
