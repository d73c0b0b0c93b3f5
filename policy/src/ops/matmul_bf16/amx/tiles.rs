//! The instructions of AMX. Rust has no stable intrinsics for them, and a tile register cannot be
//! an operand of `asm!`, so a whole loop over k is one block.

use std::{
    arch::{
        asm,
        x86_64::{__cpuid, __cpuid_count, _xgetbv},
    },
    marker::PhantomData,
    sync::OnceLock,
};

use super::{BLOCK, PANEL, TILE, TILE_ROWS};

/// Bits of CPUID, leaf 7, EDX: AMX-BF16 and AMX-TILE (Intel's manual, volume 2A).
const AMX_BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
/// Bit of CPUID, leaf 1, ECX: the operating system uses XSAVE.
const OSXSAVE: u32 = 1 << 27;
/// Bits of XCR0: the operating system saves the configuration and the data of tiles.
const TILE_STATE: u64 = 1 << 17 | 1 << 18;
/// Linux' `ARCH_REQ_XCOMP_PERM`, and the number of the state that it asks for: the data of tiles.
const REQUEST_PERMISSION: libc::c_long = 0x1023;
const TILE_DATA: libc::c_long = 18;
/// Bytes of a row of a panel of B, and of a row of sums.
const ROW_BYTES: usize = 4 * PANEL;

/// Permission of this process to use tiles, which the kernel gives to all of its threads.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Permission(());

impl Permission {
    /// Returns the permission if the CPU has tiles and the kernel allows them.
    pub(in super::super) fn of_process() -> Option<Self> {
        static GRANTED: OnceLock<bool> = OnceLock::new();
        GRANTED
            .get_or_init(|| has_tiles() && is_allowed())
            .then_some(Self(()))
    }

    /// Returns a permission under which the emulator executes the instructions.
    #[cfg(test)]
    pub(in super::super) fn emulated() -> Self {
        super::emulator::install();
        Self(())
    }
}

fn has_tiles() -> bool {
    // Both leaves exist on every CPU with AVX-512, without which AMX is not used.
    let has_leaf_7 = __cpuid(0).eax >= 7;
    let saves_state = __cpuid(1).ecx & OSXSAVE != 0;
    has_leaf_7
        && saves_state
        && __cpuid_count(7, 0).edx & AMX_BF16_AND_TILE == AMX_BF16_AND_TILE
        // SAFETY: OSXSAVE says that the instruction exists.
        && unsafe { saved_states() } & TILE_STATE == TILE_STATE
}

/// # Safety
/// The operating system uses XSAVE.
#[target_feature(enable = "xsave")]
unsafe fn saved_states() -> u64 {
    // SAFETY: as for this function.
    unsafe { _xgetbv(0) }
}

/// Asks the kernel (Linux 5.16 or newer), which refuses where the signal stack of a thread is too
/// small.
fn is_allowed() -> bool {
    // SAFETY: the call takes two numbers and changes no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

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
pub(super) struct Tiles {
    /// It cannot leave its thread.
    _thread: PhantomData<*const ()>,
}

impl Tiles {
    pub(super) fn configure(_: Permission) -> Self {
        // SAFETY: the permission says that the CPU has the instruction. It reads the 64 bytes of
        // the configuration, which is valid, and zeroes this thread's tiles.
        unsafe {
            asm!(
                "ldtilecfg [{configuration}]",
                configuration = in(reg) &raw const WHOLE_TILES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        Self {
            _thread: PhantomData,
        }
    }

    /// Adds the products of two tiles of rows, [block of k][16][32] each, and a piece of a panel
    /// [steps / 2][32 pairs] to the sums [32 rows][32].
    pub(super) fn two_rows(&self, a: [&[u16]; 2], pairs: &[u32], sums: &mut [f32]) {
        let blocks = blocks(pairs);
        assert!(a.iter().all(|a| blocks * TILE <= a.len()));
        assert!(2 * TILE_ROWS * PANEL <= sums.len());
        // SAFETY: the tiles are configured, since `self` exists. With the assertions every tile
        // that is read or written lies within its slice. `blocks` is at least 1.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {row_bytes}]",
                "tileloadd tmm1, [{sums} + {row_bytes} + 64]",
                "tileloadd tmm2, [{lower_sums} + {row_bytes}]",
                "tileloadd tmm3, [{lower_sums} + {row_bytes} + 64]",
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
                "tilestored [{sums} + {row_bytes}], tmm0",
                "tilestored [{sums} + {row_bytes} + 64], tmm1",
                "tilestored [{lower_sums} + {row_bytes}], tmm2",
                "tilestored [{lower_sums} + {row_bytes} + 64], tmm3",
                sums = in(reg) sums.as_mut_ptr(),
                lower_sums = in(reg) sums[TILE_ROWS * PANEL..].as_mut_ptr(),
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

    /// Does the same for one tile of rows and the sums [16 rows][32].
    pub(super) fn one_row(&self, a: &[u16], pairs: &[u32], sums: &mut [f32]) {
        let blocks = blocks(pairs);
        assert!(blocks * TILE <= a.len() && TILE_ROWS * PANEL <= sums.len());
        // SAFETY: as above.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {row_bytes}]",
                "tileloadd tmm1, [{sums} + {row_bytes} + 64]",
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
                "tilestored [{sums} + {row_bytes}], tmm0",
                "tilestored [{sums} + {row_bytes} + 64], tmm1",
                sums = in(reg) sums.as_mut_ptr(),
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
