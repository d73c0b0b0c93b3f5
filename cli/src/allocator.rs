//! The allocator of the program, and how it treats freed memory.
//!
//! A learner step frees its tensors, up to gigabytes, and the next step allocates as many again. By
//! default mimalloc returns free memory to the kernel, which clears every page when it is used
//! again. This takes a quarter of the time of a model with 30 M parameters. A process that computes
//! therefore keeps its memory. `env-node`, whose memory peaks are rare, does not.
//!
//! mimalloc asks the kernel for huge pages. In a server they would give a peer 2 MiB for the first
//! byte of a buffer: tonic reserves the whole length that a message announces.

use std::ffi::{c_int, c_long};

// The system's allocator returns the memory of large tensors to the kernel after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc.h: milliseconds until free memory is returned, or -1 for
/// never.
const PURGE_DELAY: c_int = 15;
/// The default of this option. It identifies the option in case a later version changes the
/// numbers.
const DEFAULT_DELAY: c_long = 1_000;

#[expect(unsafe_code, reason = "mimalloc's options are C functions")]
// SAFETY: the signatures are those of mimalloc.h, and both functions accept any number.
unsafe extern "C" {
    safe fn mi_option_get(option: c_int) -> c_long;
    safe fn mi_option_set(option: c_int, value: c_long);
}

/// Makes this process use memory in small pages, so that what is reserved costs nothing until it is
/// written.
pub(crate) fn use_small_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages stay on");
    }
}

/// Makes this process keep freed memory, unless `MIMALLOC_PURGE_DELAY` is set.
pub(crate) fn keep_freed_memory() {
    if mi_option_get(PURGE_DELAY) == DEFAULT_DELAY {
        mi_option_set(PURGE_DELAY, -1);
    }
}
