//! The instructions of AMX. Rust has no stable intrinsics for them, and a tile register cannot be
//! an operand of `asm!`, so a whole loop over k is one block.

use std::{arch::asm, cell::Cell, marker::PhantomData};

use super::super::matrix::{BLOCK, PANEL};
use super::super::sums::Sums;
use super::{TILE, TILE_ROWS};
use crate::ops::amx_permission::Permission;

/// Bytes of a row of a panel of B.
const ROW_BYTES: usize = 4 * PANEL;

/// The operand of LDTILECFG: palette 1, and for each tile its rows and the bytes of a row.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles with 16 rows of 64 bytes.
static WHOLE_TILES: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The configured tiles of this thread.
pub(in super::super) struct Tiles {
    /// It cannot leave its thread.
    _thread: PhantomData<*const ()>,
}

thread_local! {
    /// Whether the tiles of this thread are configured.
    static IS_CONFIGURED: Cell<bool> = const { Cell::new(false) };
}

impl Tiles {
    /// Configures the tiles of this thread.
    ///
    /// # Panics
    /// If they are configured already: the end of one user would end the other's too.
    pub(in super::super) fn configure(_: Permission) -> Self {
        let was_configured = IS_CONFIGURED.replace(true);
        assert!(!was_configured, "the tiles are in use: this is a bug");
        let tiles = Self {
            _thread: PhantomData,
        };
        #[cfg(test)]
        if tiles_are_missing() {
            return tiles;
        }
        // SAFETY: the permission says that the CPU has the instruction; a test without it has
        // returned. The instruction reads the 64 bytes of the configuration, which is valid, and
        // zeroes this thread's tiles.
        unsafe {
            asm!(
                "ldtilecfg [{configuration}]",
                configuration = in(reg) &raw const WHOLE_TILES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        tiles
    }

    /// Adds the products of two tiles of rows, `[block of k][16][32]` each, and a piece of a
    /// panel, `[steps / 2][32 pairs]`, to 32 rows of the sums.
    pub(super) fn two_rows(&self, a: [&[u16]; 2], pairs: &[u32], sums: &mut Sums<'_>) {
        let blocks = blocks(pairs);
        assert!(a.iter().all(|a| blocks * TILE <= a.len()));
        sums.assert_rows(2 * TILE_ROWS);
        #[cfg(test)]
        if tiles_are_missing() {
            add_tile(a[0], pairs, sums);
            add_tile(a[1], pairs, &mut sums.rows_from(TILE_ROWS));
            return;
        }
        let stride = sums.stride;
        let sums = sums.values.as_mut_ptr();
        // SAFETY: the tiles are configured, since `self` exists. With the assertions every tile
        // that is read or written lies within its slice. `blocks` is at least 1.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {sums_bytes}]",
                "tileloadd tmm1, [{sums} + {sums_bytes} + 64]",
                "tileloadd tmm2, [{lower_sums} + {sums_bytes}]",
                "tileloadd tmm3, [{lower_sums} + {sums_bytes} + 64]",
                "2:",
                "tileloadd tmm4, [{upper} + {line}]",
                "tileloadd tmm6, [{pairs} + {row_bytes}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{pairs} + {row_bytes} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{lower} + {line}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {upper}, {tile_bytes}",
                "add {lower}, {tile_bytes}",
                "add {pairs}, {block_bytes}",
                "dec {blocks}",
                "jnz 2b",
                "tilestored [{sums} + {sums_bytes}], tmm0",
                "tilestored [{sums} + {sums_bytes} + 64], tmm1",
                "tilestored [{lower_sums} + {sums_bytes}], tmm2",
                "tilestored [{lower_sums} + {sums_bytes} + 64], tmm3",
                sums = in(reg) sums,
                lower_sums = in(reg) sums.add(TILE_ROWS * stride),
                sums_bytes = in(reg) 4 * stride,
                upper = inout(reg) a[0].as_ptr() => _,
                lower = inout(reg) a[1].as_ptr() => _,
                pairs = inout(reg) pairs.as_ptr() => _,
                blocks = inout(reg) blocks => _,
                row_bytes = in(reg) ROW_BYTES,
                line = in(reg) 2 * BLOCK,
                tile_bytes = const 2 * TILE,
                block_bytes = const BLOCK / 2 * ROW_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Does the same for one tile of rows and 16 rows of the sums.
    pub(super) fn one_row(&self, a: &[u16], pairs: &[u32], sums: &mut Sums<'_>) {
        let blocks = blocks(pairs);
        assert!(blocks * TILE <= a.len());
        sums.assert_rows(TILE_ROWS);
        #[cfg(test)]
        if tiles_are_missing() {
            add_tile(a, pairs, sums);
            return;
        }
        // SAFETY: as above.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {sums_bytes}]",
                "tileloadd tmm1, [{sums} + {sums_bytes} + 64]",
                "2:",
                "tileloadd tmm4, [{a} + {line}]",
                "tileloadd tmm6, [{pairs} + {row_bytes}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{pairs} + {row_bytes} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {a}, {tile_bytes}",
                "add {pairs}, {block_bytes}",
                "dec {blocks}",
                "jnz 2b",
                "tilestored [{sums} + {sums_bytes}], tmm0",
                "tilestored [{sums} + {sums_bytes} + 64], tmm1",
                sums = in(reg) sums.values.as_mut_ptr(),
                sums_bytes = in(reg) 4 * sums.stride,
                a = inout(reg) a.as_ptr() => _,
                pairs = inout(reg) pairs.as_ptr() => _,
                blocks = inout(reg) blocks => _,
                row_bytes = in(reg) ROW_BYTES,
                line = in(reg) 2 * BLOCK,
                tile_bytes = const 2 * TILE,
                block_bytes = const BLOCK / 2 * ROW_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        IS_CONFIGURED.set(false);
        #[cfg(test)]
        if tiles_are_missing() {
            return;
        }
        // SAFETY: the tiles are configured, and nobody uses them any more.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem, preserves_flags),
            );
        }
    }
}

/// Returns the blocks of k in a piece of a panel.
fn blocks(pairs: &[u32]) -> usize {
    let blocks = pairs.len() / (BLOCK / 2 * PANEL);
    assert!(blocks > 0, "a piece of a panel is empty: this is a bug");
    blocks
}

/// Returns whether this process has no tiles, so that a loop takes their place.
#[cfg(test)]
fn tiles_are_missing() -> bool {
    Permission::of_process().is_none()
}

/// Adds the products of a tile of rows and a piece of a panel to 16 rows of the sums, in the order
/// of TDPBF16PS. No value is subnormal (`matmul_bf16`), so none is taken as zero.
#[cfg(test)]
fn add_tile(a: &[u16], pairs: &[u32], sums: &mut Sums<'_>) {
    let (a, _) = a.as_chunks::<TILE>();
    let (pairs, _) = pairs.as_chunks::<{ BLOCK / 2 * PANEL }>();
    let low_half = |bits: u32| f32::from_bits(bits << 16);
    let high_half = |bits: u32| f32::from_bits(bits & 0xffff_0000);
    for (a, pairs) in a.iter().zip(pairs) {
        for row in 0..TILE_ROWS {
            for column in 0..PANEL {
                let (mut even, mut odd) = (0.0, 0.0);
                for step in 0..BLOCK / 2 {
                    let (a, pair) = (&a[row * BLOCK + 2 * step..], pairs[step * PANEL + column]);
                    even = low_half(a[0].into()).mul_add(low_half(pair), even);
                    odd = low_half(a[1].into()).mul_add(high_half(pair), odd);
                }
                sums.values[row * sums.stride + column] += even + odd;
            }
        }
    }
}
