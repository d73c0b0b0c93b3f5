//! The program's allocator, and how it treats freed memory.
//!
//! A learner's step frees its tensors, up to gigabytes, and the next takes as many again. mimalloc hands what lies free back
//! to the kernel, which clears every page anew when it is touched: a quarter of the time of a model of 30 M parameters. A
//! process that computes keeps its memory instead; a server of episodes, whose peaks are rare, does not call this.

use std::ffi::{c_int, c_long};

// The system's allocator gives fresh tensors back after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc.h: milliseconds until free memory is given back, -1 for never.
const PURGE_DELAY: c_int = 15;
/// Its default, by which the option is known again should a later version number them otherwise.
const DEFAULT_DELAY: c_long = 1_000;

#[expect(unsafe_code, reason = "the allocator's settings are C functions")]
// SAFETY: the signatures are mimalloc.h's, and both functions take any number.
unsafe extern "C" {
    safe fn mi_option_get(option: c_int) -> c_long;
    safe fn mi_option_set(option: c_int, value: c_long);
}

/// Lets this process keep what it frees, unless `MIMALLOC_PURGE_DELAY` says otherwise.
pub(crate) fn keep_freed_memory() {
    if mi_option_get(PURGE_DELAY) == DEFAULT_DELAY {
        mi_option_set(PURGE_DELAY, -1);
    }
}
