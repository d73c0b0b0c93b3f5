//! The tile kernels: strips of B against all rows of A, with the accumulators in registers.
//!
//! A fused multiply-add has a latency of four cycles, and two start in each cycle. A tile needs at
//! least eight independent chains to fill both units. Chains cannot come from splitting k, since
//! the order of sums is fixed. So where A has few rows, a tile spans several strips of B.
//!
//! 12 x 32 (AVX-512) is 24 accumulators, two registers of B and one of A, of 32 registers. 6 x 16
//! (AVX2) is 12 accumulators, two of B and one of A, of 16.

use super::{PANEL, View};
use crate::ops::simd::{LANES, Simd};

/// The rows of A that are multiplied with a strip.
#[derive(Clone, Copy)]
pub(super) enum Left<'a> {
    /// Read in place.
    Plain(View<'a, f32>),
    /// Packed tile after tile, each `[depth][rows of the tile]`.
    Packed { data: &'a [f32], depth: usize },
}

impl<'a> Left<'a> {
    /// Packs `a` into `buffer`, so that a tile reads one stream instead of one cache line for each
    /// step (measured: without it dW ran at half the speed).
    #[inline(always)]
    pub(super) fn pack<S: Simd>(a: View<'_, f32>, buffer: &'a mut [f32]) -> Self {
        let depth = a.cols;
        // In pieces of 16 columns, so that the lines read stay in the first-level cache for the
        // next tile.
        for k0 in (0..depth).step_by(16) {
            for i0 in (0..a.rows).step_by(S::TILE_ROWS) {
                let rows = S::TILE_ROWS.min(a.rows - i0);
                let tile = &mut buffer[i0 * depth..][..rows * depth];
                for (k, values) in tile.chunks_exact_mut(rows).enumerate().skip(k0).take(16) {
                    let column = &a.data[i0 * a.row_stride + k * a.col_stride..];
                    // A whole tile has a length that the compiler knows, which makes this one
                    // vector copy.
                    if a.row_stride == 1 && rows == S::TILE_ROWS {
                        values[..S::TILE_ROWS].copy_from_slice(&column[..S::TILE_ROWS]);
                    } else {
                        for (i, value) in values.iter_mut().enumerate() {
                            *value = column[i * a.row_stride];
                        }
                    }
                }
            }
        }
        Left::Packed {
            data: buffer,
            depth,
        }
    }

    /// Returns the values of the tile that begins at row `i0`, and its strides by row and by step.
    ///
    /// # Panics
    /// If the tile exceeds the data.
    #[inline(always)]
    fn tile(self, i0: usize, rows: usize, depth: usize) -> (&'a [f32], (usize, usize)) {
        let (values, strides) = match self {
            Self::Plain(a) => (&a.data[i0 * a.row_stride..], (a.row_stride, a.col_stride)),
            Self::Packed { data, depth } => (&data[i0 * depth..], (1, rows)),
        };
        assert!((rows - 1) * strides.0 + (depth - 1) * strides.1 < values.len());
        (values, strides)
    }
}

/// Computes C [m, 32] = A times a strip `[k][32]` of B, or adds to C with `accumulate`. This is
/// [`super::multiply`] for a caller inside a kernel.
#[inline(always)]
pub(crate) fn multiply_strip<S: Simd>(
    a: View<'_, f32>,
    strip: &[f32],
    c: &mut [f32],
    c_stride: usize,
    accumulate: bool,
) {
    let block = Block {
        a: Left::Plain(a),
        rows: a.rows,
        depth: a.cols,
        strips: strip,
        strip_count: 1,
        strip_stride: 0,
        accumulate,
    };
    block.run::<S>(c, c_stride, PANEL);
}

/// Returns the number of strips that a tile spans if one tile holds all rows of A and B is packed:
/// as many as there are registers for (measured: one row runs 2.5 to 3 times as fast with four
/// strips).
pub(super) fn strips_at_once<S: Simd>(rows: usize) -> usize {
    match rows {
        1 => 4,
        2 => 2,
        3..=6 if S::TILE_VECTORS == 2 => 2,
        _ => 1,
    }
}

/// All rows of A against one strip of B, or against several if there are few rows.
pub(super) struct Block<'a> {
    pub(super) a: Left<'a>,
    pub(super) rows: usize,
    pub(super) depth: usize,
    /// The first strip; the next ones begin `strip_stride` apart.
    pub(super) strips: &'a [f32],
    /// 1, or [`strips_at_once`] for `rows`.
    pub(super) strip_count: usize,
    pub(super) strip_stride: usize,
    /// Whether C is added to.
    pub(super) accumulate: bool,
}

impl Block<'_> {
    /// Writes `width` columns of C. Partial panels go through a buffer, so that tiles never write
    /// beyond C.
    #[inline(always)]
    pub(super) fn run<S: Simd>(&self, c: &mut [f32], c_stride: usize, width: usize) {
        let mut edge = [0.0; 16 * PANEL];
        for i0 in (0..self.rows).step_by(S::TILE_ROWS) {
            let rows = S::TILE_ROWS.min(self.rows - i0);
            let c = &mut c[i0 * c_stride..];
            if width == self.strip_count * PANEL {
                self.rows::<S>(i0, rows, c, c_stride);
                continue;
            }
            if self.accumulate {
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

    /// Runs a tile of `rows` rows with a constant number of rows and strips, so that the loops
    /// unroll and the accumulators stay in registers.
    #[inline(always)]
    fn rows<S: Simd>(&self, i0: usize, rows: usize, c: &mut [f32], c_stride: usize) {
        macro_rules! tiles {
            ($($n:literal x $strips:literal)*) => {
                match (rows, self.strip_count) {
                    $(($n, $strips) if $n <= S::TILE_ROWS => {
                        self.tile::<S, $n, $strips>(i0, c, c_stride);
                    })*
                    _ => unreachable!("a tile has 1 to 12 rows: this is a bug"),
                }
            };
        }
        tiles!(12 x 1 11 x 1 10 x 1 9 x 1 8 x 1 7 x 1 6 x 1 5 x 1 4 x 1 3 x 1 2 x 1 1 x 1
               6 x 2 5 x 2 4 x 2 3 x 2 2 x 2 1 x 4);
    }

    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const STRIPS: usize>(
        &self,
        i0: usize,
        c: &mut [f32],
        c_stride: usize,
    ) {
        assert!((ROWS - 1) * c_stride + STRIPS * PANEL <= c.len());
        assert!((STRIPS - 1) * self.strip_stride + self.depth * PANEL <= self.strips.len());
        let (a, strides) = self.a.tile(i0, ROWS, self.depth);
        // SAFETY: the assertions here and in `Left::tile` bound the last element that is read of A
        // and B, and read or written of C.
        unsafe {
            let a = a.as_ptr();
            let b = self.strips.as_ptr();
            let c = c.as_mut_ptr();
            if STRIPS > 1 {
                let b = (b, self.strip_stride);
                wide_tile::<S, ROWS, STRIPS>(
                    a,
                    strides,
                    b,
                    self.depth,
                    c,
                    c_stride,
                    self.accumulate,
                );
            } else if S::TILE_VECTORS == 2 {
                tile::<S, ROWS, 2>(a, strides, b, self.depth, c, c_stride, self.accumulate);
            } else {
                // With fewer registers a tile is 16 columns wide, so a strip takes two tiles.
                for half in [0, LANES] {
                    let (b, c) = (b.add(half), c.add(half));
                    tile::<S, ROWS, 1>(a, strides, b, self.depth, c, c_stride, self.accumulate);
                }
            }
        }
    }
}

/// Computes ROWS x (16 VECTORS) elements of C with the accumulators in registers.
///
/// # Safety
/// `a` reaches `ROWS` rows and `depth` columns at its strides, `b` holds `depth` rows of 32, `c`
/// holds `ROWS` rows of 16 `VECTORS` values, `c_stride` apart.
#[inline(always)]
unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
    a: *const f32,
    (a_row, a_k): (usize, usize),
    b: *const f32,
    depth: usize,
    c: *mut f32,
    c_stride: usize,
    accumulate: bool,
) {
    let mut sums = [[S::splat(0.0); VECTORS]; ROWS];
    // SAFETY: all offsets stay inside the bounds that the caller guarantees.
    unsafe {
        if accumulate {
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

/// Computes ROWS x (32 STRIPS) elements of C. ([`tile`] written for several strips compiles to half
/// of its speed, so there are two functions.)
///
/// # Safety
/// As [`tile`], for `STRIPS` strips that begin `b_strip` apart and as many panels of 32 in a row of
/// C.
#[inline(always)]
unsafe fn wide_tile<S: Simd, const ROWS: usize, const STRIPS: usize>(
    a: *const f32,
    (a_row, a_k): (usize, usize),
    (b, b_strip): (*const f32, usize),
    depth: usize,
    c: *mut f32,
    c_stride: usize,
    accumulate: bool,
) {
    let mut sums = [[[S::splat(0.0); 2]; STRIPS]; ROWS];
    // SAFETY: all offsets stay inside the bounds that the caller guarantees.
    unsafe {
        if accumulate {
            for (i, row) in sums.iter_mut().enumerate() {
                for (s, [low, high]) in row.iter_mut().enumerate() {
                    let c = c.add(i * c_stride + s * PANEL);
                    *low = S::load(&*c.cast());
                    *high = S::load(&*c.add(LANES).cast());
                }
            }
        }
        for k in 0..depth {
            for s in 0..STRIPS {
                let b = b.add(s * b_strip + k * PANEL);
                let (b_low, b_high) = (S::load(&*b.cast()), S::load(&*b.add(LANES).cast()));
                for (i, row) in sums.iter_mut().enumerate() {
                    let a = S::splat(*a.add(i * a_row + k * a_k));
                    let [low, high] = &mut row[s];
                    *low = a.fma(b_low, *low);
                    *high = a.fma(b_high, *high);
                }
            }
        }
        for (i, row) in sums.into_iter().enumerate() {
            for (s, [low, high]) in row.into_iter().enumerate() {
                let c = c.add(i * c_stride + s * PANEL);
                low.store(&mut *c.cast());
                high.store(&mut *c.add(LANES).cast());
            }
        }
    }
}
