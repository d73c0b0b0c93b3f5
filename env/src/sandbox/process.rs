//! What the sandbox changes for the whole process: SQLite's allocator, its page cache, and one more
//! file system, which has the clock of gold SQL ([`data::FIXED_CLOCK`]).
//!
//! Invariant: SQLite accepts an allocator only before its first use, by any crate. So it is set
//! before `main` where the platform allows that, elsewhere when the first environment opens. Too
//! late is an error, never a weaker sandbox. Connections that are not charged and do not use that
//! file system are not affected.

use std::{ffi::c_int, mem::MaybeUninit, sync::OnceLock};

use rusqlite::ffi;

use super::{memory, page_cache};

/// SQLite's result code for the allocator.
static ALLOCATOR: OnceLock<c_int> = OnceLock::new();

#[cfg(any(target_os = "linux", target_os = "macos"))]
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn before_main() {
        ALLOCATOR.get_or_init(set_allocator);
    }
    before_main
};

/// Prepares the process for sandboxes, once.
///
/// # Errors
/// SQLite's code: `SQLITE_MISUSE` where it was in use before it could be given an allocator.
pub(super) fn prepare() -> rusqlite::Result<()> {
    let code = *ALLOCATOR.get_or_init(set_allocator);
    if code == ffi::SQLITE_OK {
        return data::register_fixed_clock();
    }
    let remedy = "SQLite was in use before the sandbox could set its allocator; open an \
                  environment before anything else in the process opens a database";
    Err(rusqlite::Error::SqliteFailure(
        ffi::Error::new(code),
        Some(remedy.to_owned()),
    ))
}

fn set_allocator() -> c_int {
    // SAFETY: `sqlite3_config` copies what it is given, takes these types after these options, and
    // refuses by itself once SQLite is in use. It is called once, before this crate uses SQLite.
    unsafe {
        let mut cache = MaybeUninit::<ffi::sqlite3_pcache_methods2>::zeroed();
        let code = ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETPCACHE2, cache.as_mut_ptr());
        if code != ffi::SQLITE_OK {
            return code;
        }
        let cache = page_cache::wrap(cache.assume_init());
        let memory = memory::METHODS;
        [
            ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0 as c_int),
            ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw const memory),
            ffi::sqlite3_config(ffi::SQLITE_CONFIG_PCACHE2, &raw const cache),
        ]
        .into_iter()
        .find(|code| *code != ffi::SQLITE_OK)
        .unwrap_or(ffi::SQLITE_OK)
    }
}
