//! Products of bf16 by lanes: bf16 is widened to f32, and an instruction multiplies f32.

use super::matrix::{BLOCK, PANEL};
use super::sums::Sums;
use crate::ops::simd::{Kernel, LANES, Simd};

/// The most steps of k of a panel of B that are read at once. They are 32 KiB, which fit the
/// first-level cache.
pub(super) const DEPTH: usize = 512;

/// Adds the products of rows of A with a piece of a panel of B to the sums.
pub(super) struct Add<'a, 'b> {
    /// A widened, from the first step of the piece on, its rows `stride` apart.
    pub(super) a: &'a [f32],
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) pairs: &'a [u32],
    pub(super) sums: &'a mut Sums<'b>,
}

impl Kernel for Add<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for first in (0..self.rows).step_by(S::PAIR_ROWS) {
            let tile = Tile {
                a: &self.a[first * self.stride..],
                a_stride: self.stride,
                pairs: self.pairs,
                sums: self.sums.rows_from(first),
            };
            tile.run::<S>(S::PAIR_ROWS.min(self.rows - first));
        }
    }
}

/// Some rows of A against a piece of a panel of B.
struct Tile<'a> {
    a: &'a [f32],
    a_stride: usize,
    pairs: &'a [u32],
    /// The sums so far.
    sums: Sums<'a>,
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
        self.sums.assert_rows(ROWS);
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
                        let at = i * self.sums.stride + column + v * LANES;
                        let sums = &mut self.sums.values[at..at + LANES];
                        let before = S::load_some(sums, 0.0);
                        before.add(even[i][v].add(odd[i][v])).store_some(sums);
                    }
                }
            }
        }
    }
}
