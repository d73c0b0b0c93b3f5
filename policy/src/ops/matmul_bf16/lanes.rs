//! Products of bf16 by lanes: bf16 is widened to f32, and an instruction multiplies f32.

use super::matrix::{BLOCK, Bf16Matrix, Bf16View, PANEL, write};
use crate::ops::matmul::WriteMode;
use crate::ops::simd::{Kernel, LANES, Simd, dispatch};

/// The steps of k whose pairs in a panel of B stay in the first-level cache: 32 KiB.
const DEPTH: usize = 512;

/// Computes C = A B into `c`, or adds the finished sums to it.
pub(super) fn multiply(a: Bf16View<'_>, b: &Bf16Matrix, c: &mut [f32], write_mode: WriteMode) {
    dispatch(Multiply {
        a: &a.widened(b.padded),
        rows: a.rows,
        b,
        c,
        write_mode,
    });
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
        let (padded, n) = (self.b.padded, self.b.n);
        let mut sums = vec![0.0; self.rows * PANEL];
        for panel in 0..n.div_ceil(PANEL) {
            let pairs = self.b.panel(panel);
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
            write(&sums, panel, (&mut *self.c, n), self.write_mode);
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
