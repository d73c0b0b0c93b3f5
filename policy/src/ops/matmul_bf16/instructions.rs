//! The choice of the instructions that multiply bf16.

use std::sync::OnceLock;

use super::{pairs, trial};
use crate::ops::amx_permission::Permission as AmxPermission;
use crate::ops::simd::{InstructionSet, chosen_set};
#[cfg(test)]
pub(crate) use forced::with_each;

/// The instructions of a product. All return the same bits.
#[derive(Clone, Copy)]
pub(super) enum Instructions {
    Tiles(AmxPermission),
    Pairs(pairs::Permission),
    Lanes,
}

impl Instructions {
    /// Returns the fastest ones of this thread's instruction set. Tiles are faster than pairs also
    /// for a single row (docs/benchmarks.md).
    pub(super) fn fastest() -> Self {
        #[cfg(test)]
        if let Some(forced) = forced::get() {
            return forced;
        }
        let set = chosen_set();
        if set == InstructionSet::Amx
            && let Some(permission) = tiles()
        {
            return Self::Tiles(permission);
        }
        let has_pairs = matches!(set, InstructionSet::Amx | InstructionSet::Avx512Bf16);
        match has_pairs.then(pairs).flatten() {
            Some(permission) => Self::Pairs(permission),
            None => Self::Lanes,
        }
    }
}

/// Returns the permission to multiply tiles if a trial product has the bits of the lanes.
fn tiles() -> Option<AmxPermission> {
    static AGREE: OnceLock<bool> = OnceLock::new();
    let permission = AmxPermission::of_process()?;
    let agree = || trial::agrees_with_lanes("AMX", Instructions::Tiles(permission));
    AGREE.get_or_init(agree).then_some(permission)
}

/// Returns the permission to multiply pairs if a trial product has the bits of the lanes.
pub(super) fn pairs() -> Option<pairs::Permission> {
    static AGREE: OnceLock<bool> = OnceLock::new();
    let permission = pairs::Permission::of_cpu()?;
    let agree = || trial::agrees_with_lanes("AVX512-BF16", Instructions::Pairs(permission));
    AGREE.get_or_init(agree).then_some(permission)
}

/// The instructions that a test asks for.
#[cfg(test)]
mod forced {
    use std::{cell::Cell, io::Write as _};

    use super::Instructions;

    thread_local! {
        static FORCED: Cell<Option<Instructions>> = const { Cell::new(None) };
    }

    pub(super) fn get() -> Option<Instructions> {
        FORCED.get()
    }

    /// Calls `f` with this thread's products by the lanes, by pairs if the CPU has them, and by
    /// tiles, or by the loop in their place if the CPU has none. Returns the results with the names
    /// of the instructions.
    pub(crate) fn with_each<T>(mut f: impl FnMut() -> T) -> Vec<(&'static str, T)> {
        let pairs = super::pairs().map(Instructions::Pairs);
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        let tiles = Some(super::AmxPermission::of_test());
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        let tiles = None;
        let all = [
            ("lanes", Some(Instructions::Lanes)),
            ("pairs", pairs),
            ("tiles", tiles.map(Instructions::Tiles)),
        ];
        let mut results = Vec::new();
        for (name, instructions) in all {
            match instructions {
                Some(_) => {
                    FORCED.set(instructions);
                    results.push((name, f()));
                    FORCED.set(None);
                }
                None => {
                    let _ = writeln!(std::io::stderr(), "SKIPPED: this CPU has no {name}");
                }
            }
        }
        results
    }
}
