//! Matrix multiplication whose bits depend on nothing but the two vectors of each output element.
//!
//! Invariant: every element of C is one chain of fused multiply-adds over k, from the first to the last, starting at zero
//! (or at C's value when accumulating). Where k is split the accumulator travels through memory unrounded. So the bits do
//! not change with the number of rows, the tile, the packing or the instruction set.
//!
//! One thread. Work is divided by panels of 32 columns; a pool would divide that loop and change no bit.

use super::simd::{Kernel, LANES, Simd, dispatch};

/// Columns of a panel of B.
pub(crate) const PANEL: usize = 32;
/// Depth of a strip of B: 32 columns of it (64 KiB) stay in the second-level cache while the rows of A pass.
const DEPTH: usize = 512;

/// A strided matrix of f32, read only.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> View<'a> {
    /// A row-major matrix whose rows start `row_stride` apart.
    ///
    /// # Panics
    /// Where `data` is too short for the shape.
    pub(crate) fn new(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
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

    /// Rows and columns.
    pub(crate) fn shape(self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// The transposed matrix, without a copy.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Copies rows `k0..k0 + depth`, columns `n0..n0 + PANEL` into `strip`, row by row, zeros beyond the last column.
    fn pack_strip(self, k0: usize, depth: usize, n0: usize, strip: &mut [f32]) {
        let width = PANEL.min(self.cols - n0);
        if width < PANEL {
            strip[..depth * PANEL].fill(0.0);
        }
        if self.col_stride == 1 {
            for (k, row) in strip.chunks_exact_mut(PANEL).take(depth).enumerate() {
                let start = (k0 + k) * self.row_stride + n0;
                row[..width].copy_from_slice(&self.data[start..start + width]);
            }
        } else {
            // In pieces of 16 rows, so that what is written stays in the first-level cache.
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
pub(crate) struct Packed {
    data: Vec<f32>,
    k: usize,
    n: usize,
}

impl Packed {
    /// Lays out `b`, of shape [k, n].
    pub(crate) fn new(b: View<'_>) -> Self {
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

    /// Columns of B.
    pub(crate) fn columns(&self) -> usize {
        self.n
    }
}

/// The right-hand matrix of a multiplication.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// Packed on the way, strip by strip.
    Plain(View<'a>),
    /// Packed before.
    Packed(&'a Packed),
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
pub(crate) enum Store {
    Overwrite,
    Accumulate,
}

/// C = A B, or C += A B; C is row-major [m, n], its rows `c_stride` apart.
///
/// # Panics
/// Where the shapes do not fit.
pub(crate) fn multiply(a: View<'_>, b: Right<'_>, c: &mut [f32], c_stride: usize, into: Store) {
    let (k, n) = b.shape();
    assert_eq!(a.cols, k, "inner dimensions differ: this is a bug");
    assert!(
        a.rows == 0 || n == 0 || (a.rows - 1) * c_stride + n <= c.len(),
        "the output is too short: this is a bug"
    );
    if into == Store::Overwrite && k == 0 {
        for row in c.chunks_mut(c_stride).take(a.rows) {
            row[..n].fill(0.0);
        }
    }
    dispatch(Multiply {
        a,
        b,
        c,
        c_stride,
        into,
    });
}

struct Multiply<'a, 'c> {
    a: View<'a>,
    b: Right<'a>,
    c: &'c mut [f32],
    c_stride: usize,
    into: Store,
}

impl Kernel for Multiply<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (k, n) = self.b.shape();
        let mut scratch = match self.b {
            Right::Plain(_) => vec![0.0; DEPTH.min(k) * PANEL],
            Right::Packed(_) => Vec::new(),
        };
        for n0 in (0..n).step_by(PANEL) {
            let width = PANEL.min(n - n0);
            for k0 in (0..k).step_by(DEPTH) {
                let depth = DEPTH.min(k - k0);
                let strip = match self.b {
                    Right::Plain(view) => {
                        view.pack_strip(k0, depth, n0, &mut scratch);
                        &scratch[..depth * PANEL]
                    }
                    Right::Packed(packed) => &packed.data[n0 * k + k0 * PANEL..][..depth * PANEL],
                };
                let carry = k0 > 0 || self.into == Store::Accumulate;
                let block = Block {
                    a: self.a,
                    k0,
                    depth,
                    strip,
                    carry,
                };
                block.run::<S>(&mut self.c[n0..], self.c_stride, width);
            }
        }
    }
}

/// C [m, 32] = A times a strip `[k][32]` of B, or C += it with `carry`: [`multiply`] for a caller inside a kernel.
#[inline(always)]
pub(crate) fn multiply_strip<S: Simd>(
    a: View<'_>,
    strip: &[f32],
    c: &mut [f32],
    c_stride: usize,
    carry: bool,
) {
    let block = Block {
        a,
        k0: 0,
        depth: a.cols,
        strip,
        carry,
    };
    block.run::<S>(c, c_stride, PANEL);
}

/// All rows of A against one strip of B.
struct Block<'a> {
    a: View<'a>,
    k0: usize,
    depth: usize,
    strip: &'a [f32],
    carry: bool,
}

impl Block<'_> {
    #[inline(always)]
    fn run<S: Simd>(&self, c: &mut [f32], c_stride: usize, width: usize) {
        let mut edge = [0.0; 16 * PANEL];
        for i0 in (0..self.a.rows).step_by(S::TILE_ROWS) {
            let rows = S::TILE_ROWS.min(self.a.rows - i0);
            let c = &mut c[i0 * c_stride..];
            if width == PANEL {
                self.rows::<S>(i0, rows, c, c_stride);
                continue;
            }
            if self.carry {
                for i in 0..rows {
                    edge[i * PANEL..][..width].copy_from_slice(&c[i * c_stride..][..width]);
                }
            }
            self.rows::<S>(i0, rows, &mut edge, PANEL);
            for i in 0..rows {
                c[i * c_stride..][..width].copy_from_slice(&edge[i * PANEL..][..width]);
            }
        }
    }

    /// A tile of `rows` rows and 32 columns, with a constant number of rows.
    #[inline(always)]
    fn rows<S: Simd>(&self, i0: usize, rows: usize, c: &mut [f32], c_stride: usize) {
        macro_rules! tiles {
            ($($n:literal)*) => {
                match rows {
                    $($n if $n <= S::TILE_ROWS => self.tile::<S, $n>(i0, c, c_stride),)*
                    _ => unreachable!("a tile has 1 to 12 rows: this is a bug"),
                }
            };
        }
        tiles!(12 11 10 9 8 7 6 5 4 3 2 1);
    }

    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize>(&self, i0: usize, c: &mut [f32], c_stride: usize) {
        assert!((ROWS - 1) * c_stride + PANEL <= c.len());
        assert!(self.depth * PANEL <= self.strip.len());
        let start = i0 * self.a.row_stride + self.k0 * self.a.col_stride;
        let last = start + (ROWS - 1) * self.a.row_stride + (self.depth - 1) * self.a.col_stride;
        assert!(last < self.a.data.len());
        // SAFETY: the three assertions bound the last element that is read of A and B, and read or written of C.
        unsafe {
            let a = self.a.data.as_ptr().add(start);
            let strides = (self.a.row_stride, self.a.col_stride);
            let b = self.strip.as_ptr();
            let c = c.as_mut_ptr();
            if S::TILE_VECTORS == 2 {
                tile::<S, ROWS, 2>(a, strides, b, self.depth, c, c_stride, self.carry);
            } else {
                for half in [0, LANES] {
                    let (b, c) = (b.add(half), c.add(half));
                    tile::<S, ROWS, 1>(a, strides, b, self.depth, c, c_stride, self.carry);
                }
            }
        }
    }
}

/// ROWS x (16 VECTORS) elements of C, their accumulators in registers.
///
/// # Safety
/// `a` reaches `ROWS` rows and `depth` columns at its strides, `b` holds `depth` rows of 32, `c` holds `ROWS` rows of
/// 16 `VECTORS` values, `c_stride` apart.
#[inline(always)]
unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
    a: *const f32,
    (a_row, a_k): (usize, usize),
    b: *const f32,
    depth: usize,
    c: *mut f32,
    c_stride: usize,
    carry: bool,
) {
    let mut sums = [[S::splat(0.0); VECTORS]; ROWS];
    // SAFETY: all offsets stay inside what the caller vouches for.
    unsafe {
        if carry {
            for (i, row) in sums.iter_mut().enumerate() {
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = S::load(&*c.add(i * c_stride + v * LANES).cast());
                }
            }
        }
        for k in 0..depth {
            let b: [S; VECTORS] =
                std::array::from_fn(|v| S::load(&*b.add(k * PANEL + v * LANES).cast()));
            for (i, row) in sums.iter_mut().enumerate() {
                let a = S::splat(*a.add(i * a_row + k * a_k));
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = a.fma(b[v], *sum);
                }
            }
        }
        for (i, row) in sums.into_iter().enumerate() {
            for (v, sum) in row.into_iter().enumerate() {
                sum.store(&mut *c.add(i * c_stride + v * LANES).cast());
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
    fn chain(a: View<'_>, b: View<'_>, i: usize, j: usize, start: f32) -> f32 {
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
                let packed = Packed::new(b);
                for right in [Right::Plain(b), Right::Packed(&packed)] {
                    for into in [Store::Overwrite, Store::Accumulate] {
                        for set in InstructionSet::available() {
                            let before = values(m * n, 3);
                            let mut c = before.clone();
                            with_instruction_set(set, || multiply(a, right, &mut c, n, into));
                            for (at, &c) in c.iter().enumerate() {
                                let start = if into == Store::Accumulate {
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
