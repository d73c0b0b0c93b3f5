//! Whether this process may use the tiles of AMX: the CPU has them, and Linux allows them.

use std::sync::OnceLock;

/// Permission of this process to use tiles, which the kernel gives to all of its threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permission(());

impl Permission {
    /// Returns the permission if the CPU has tiles and the kernel allows them.
    pub(super) fn of_process() -> Option<Self> {
        static GRANTED: OnceLock<bool> = OnceLock::new();
        GRANTED
            .get_or_init(|| linux::has_tiles() && linux::is_allowed())
            .then_some(Self(()))
    }

    /// Returns a permission for tests, also where the process may not use tiles: there a loop takes
    /// the place of the instructions.
    #[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
    pub(super) fn of_test() -> Self {
        Self(())
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod linux {
    use std::arch::x86_64::{__cpuid_count, _xgetbv};

    /// Bits of CPUID, leaf 7, EDX: AMX-BF16 and AMX-TILE (Intel's manual, volume 2A).
    const AMX_BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    /// Bit of CPUID, leaf 1, ECX: the operating system uses XSAVE.
    const OSXSAVE: u32 = 1 << 27;
    /// Bits of XCR0: the operating system saves the configuration and the data of tiles.
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;
    /// Linux' `ARCH_REQ_XCOMP_PERM`, and the number of the state that it asks for: the data of
    /// tiles.
    const REQUEST_PERMISSION: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;

    #[allow(unused_unsafe, reason = "CPUID is safe to call from Rust 1.94 on")]
    pub(super) fn has_tiles() -> bool {
        // SAFETY: every x86-64 CPU has the instruction, with the leaves 0 and 1.
        let cpuid = |leaf: u32| unsafe { __cpuid_count(leaf, 0) };
        let has_leaf_7 = cpuid(0).eax >= 7;
        let saves_state = cpuid(1).ecx & OSXSAVE != 0;
        has_leaf_7
            && saves_state
            && cpuid(7).edx & AMX_BF16_AND_TILE == AMX_BF16_AND_TILE
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

    /// Asks the kernel (Linux 5.16 or newer), which refuses where the signal stack of a thread is
    /// too small.
    pub(super) fn is_allowed() -> bool {
        // SAFETY: the call takes two numbers and changes no memory of this process.
        unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod linux {
    pub(super) fn has_tiles() -> bool {
        false
    }

    pub(super) fn is_allowed() -> bool {
        false
    }
}
