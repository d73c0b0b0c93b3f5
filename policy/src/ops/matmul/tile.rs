//! A strip of B against all rows of A: tiles whose accumulators stay in registers.

use super::{PANEL, View};
use crate::ops::simd::{LANES, Simd};

/// The rows of A that meet a strip.
#[derive(Clone, Copy)]
pub(super) enum Left<'a> {
    /// As they lie.
    Plain(View<'a>),
    /// Tile after tile, each `[depth][rows of the tile]`.
    Packed { data: &'a [f32], depth: usize },
}

impl<'a> Left<'a> {
    /// Copies `a` into `buffer`, so that a tile reads one stream instead of a cache line for each step.
    #[inline(always)]
    pub(super) fn pack<S: Simd>(a: View<'_>, buffer: &'a mut [f32]) -> Self {
        let depth = a.cols;
        // In pieces of 16 columns, so that what is read stays in the first-level cache for the next tile.
        for k0 in (0..depth).step_by(16) {
            for i0 in (0..a.rows).step_by(S::TILE_ROWS) {
                let rows = S::TILE_ROWS.min(a.rows - i0);
                let tile = &mut buffer[i0 * depth..][..rows * depth];
                for (k, values) in tile.chunks_exact_mut(rows).enumerate().skip(k0).take(16) {
                    let column = &a.data[i0 * a.row_stride + k * a.col_stride..];
                    // A whole tile has a length that the compiler knows.
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

    /// The values of the tile that begins at row `i0`, and its strides by row and by step.
    ///
    /// # Panics
    /// Where the tile exceeds the data.
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

/// C [m, 32] = A times a strip `[k][32]` of B, or C += it with `carry`: [`super::multiply`] for a caller inside a kernel.
#[inline(always)]
pub(crate) fn multiply_strip<S: Simd>(
    a: View<'_>,
    strip: &[f32],
    c: &mut [f32],
    c_stride: usize,
    carry: bool,
) {
    let block = Block {
        a: Left::Plain(a),
        rows: a.rows,
        depth: a.cols,
        strip,
        carry,
        next: &[],
    };
    block.run::<S>(c, c_stride, PANEL);
}

/// All rows of A against one strip of B.
pub(super) struct Block<'a> {
    pub(super) a: Left<'a>,
    pub(super) rows: usize,
    pub(super) depth: usize,
    pub(super) strip: &'a [f32],
    /// Whether C is added to.
    pub(super) carry: bool,
    /// What is read after this strip, brought into the cache meanwhile.
    pub(super) next: &'a [f32],
}

impl Block<'_> {
    /// Writes `width` columns of C.
    #[inline(always)]
    pub(super) fn run<S: Simd>(&self, c: &mut [f32], c_stride: usize, width: usize) {
        let mut edge = [0.0; 16 * PANEL];
        let tiles = self.rows.div_ceil(S::TILE_ROWS).max(1);
        let mut next = self.next.chunks(self.next.len().div_ceil(tiles).max(1));
        for i0 in (0..self.rows).step_by(S::TILE_ROWS) {
            S::prefetch(next.next().unwrap_or_default());
            let rows = S::TILE_ROWS.min(self.rows - i0);
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
        let (a, strides) = self.a.tile(i0, ROWS, self.depth);
        // SAFETY: the assertions here and in `Left::tile` bound the last element that is read of A and B, and read or
        // written of C.
        unsafe {
            let a = a.as_ptr();
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
