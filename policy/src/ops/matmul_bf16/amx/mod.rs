//! Products of bf16 by Intel's AMX tiles.
//!
//! A tile is 16 rows of 64 bytes. TDPBF16PS multiplies a tile of A (16 rows, 32 steps of k) by a
//! tile of B (16 columns, pair by pair) and adds to a tile of 16 x 16 sums. Here two tiles of A
//! meet the two halves of a panel of B, so that four products follow four loads.
//!
//! The state of tiles belongs to the thread. It exists while [`Tiles`] lives, so that no other code
//! meets it, and so that the kernel need not save it when it switches threads.
//!
//! On a machine without AMX a loop takes the place of the instructions in tests.

#[cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux")),
    path = "no_tiles.rs"
)]
mod tiles;

use half::bf16;

use super::matrix::{BLOCK, BLOCK_ROWS, transposed_block};
use super::sums::Sums;
use crate::ops::aligned::Aligned;
use crate::ops::bf16_values::factor_bits;
use crate::ops::matmul::View;
use crate::ops::simd::{Kernel, Simd, dispatch};
pub(super) use tiles::Tiles;

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = BLOCK_ROWS;
/// Values of a tile of A.
const TILE: usize = TILE_ROWS * BLOCK;
/// The most steps of k of a panel of B that are read at once. They are 40 KiB, which fit the
/// first-level cache of CPUs with AMX.
pub(super) const DEPTH: usize = 640;

/// Adds the products of all rows with a piece of a panel of B to the sums. The rows are tiles of
/// `blocks` blocks of k, and the piece begins at the block `first`.
pub(super) fn add(
    tiles: &Tiles,
    (packed, blocks): (&[u16], usize),
    first: usize,
    pairs: &[u32],
    sums: &mut Sums<'_>,
) {
    let row_tiles = packed.len() / (blocks * TILE);
    let tile = |row: usize| &packed[(row * blocks + first) * TILE..];
    for row in (0..row_tiles).step_by(2) {
        let sums = &mut sums.rows_from(row * TILE_ROWS);
        if row + 1 < row_tiles {
            tiles.two_rows([tile(row), tile(row + 1)], pairs, sums);
        } else {
            tiles.one_row(tile(row), pairs, sums);
        }
    }
}

/// Packs A as tiles [row tile][block of k][16 rows][32 steps], padded with zeros.
pub(super) fn pack(a: View<'_, bf16>, padded: usize, packed: &mut Aligned<u16>) {
    let (row_tiles, blocks) = (a.rows.div_ceil(TILE_ROWS), padded / BLOCK);
    packed.resize(row_tiles * blocks * TILE);
    if a.cols < padded || !a.rows.is_multiple_of(TILE_ROWS) {
        packed.values().fill(0);
    }
    dispatch(PackTiles {
        a,
        blocks,
        packed: packed.values(),
    });
}

struct PackTiles<'a> {
    a: View<'a, bf16>,
    blocks: usize,
    packed: &'a mut [u16],
}

impl Kernel for PackTiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (tiles, _) = self.packed.as_chunks_mut::<TILE>();
        for (at, tile) in tiles.iter_mut().enumerate() {
            let (row, k) = (at / self.blocks * TILE_ROWS, at % self.blocks * BLOCK);
            let rows = TILE_ROWS.min(self.a.rows - row);
            let steps = BLOCK.min(self.a.cols - k);
            let a = self.a.part(row, rows, k, steps);
            match a.col_stride {
                1 => pack_rows(a, tile),
                _ => tile.copy_from_slice(transposed_block(a).as_flattened()),
            }
        }
    }
}

#[inline(always)]
fn pack_rows(a: View<'_, bf16>, tile: &mut [u16; TILE]) {
    let (lines, _) = tile.as_chunks_mut::<BLOCK>();
    for (row, line) in lines.iter_mut().take(a.rows).enumerate() {
        let values = &a.data[row * a.row_stride..][..a.cols];
        if let Some(values) = values.first_chunk::<BLOCK>() {
            *line = values.map(factor_bits);
        } else {
            for (packed, &value) in line.iter_mut().zip(values) {
                *packed = factor_bits(value);
            }
        }
    }
}
