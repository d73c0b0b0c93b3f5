//! What the sandbox changes for the whole process: SQLite's allocator, its page cache, and one more
//! file system.
//!
//! Invariant: SQLite accepts an allocator only before its first use, by any crate. So it is set
//! before `main` where the platform allows that, elsewhere when the first environment opens. Too
//! late is an error, never a weaker sandbox. Connections that are not charged and do not use that
//! file system are not affected.

use std::{
    ffi::{CStr, c_int},
    mem::MaybeUninit,
    ptr::null_mut,
    sync::OnceLock,
};

use rusqlite::ffi;

use super::{memory, page_cache};

/// File system that reads files as SQLite's own does and reports a constant time.
pub(super) const FILE_SYSTEM: &CStr = c"sqlenv";

/// 2024-01-01 00:00:00 UTC, as a Julian day in milliseconds.
const NOW_JULIAN_MILLISECONDS: i64 = 212_570_827_200_000;
const DAY_MILLISECONDS: f64 = 86_400_000.0;

/// SQLite's result codes for the allocator and for the file system.
static ALLOCATOR: OnceLock<c_int> = OnceLock::new();
static CLOCK: OnceLock<c_int> = OnceLock::new();

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
    let mut code = *ALLOCATOR.get_or_init(set_allocator);
    if code == ffi::SQLITE_OK {
        code = *CLOCK.get_or_init(register_clock);
    }
    if code == ffi::SQLITE_OK {
        return Ok(());
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

fn register_clock() -> c_int {
    // SAFETY: the default file system lives for ever and is only read; the copy is leaked, so it
    // does too.
    unsafe {
        let code = ffi::sqlite3_initialize();
        let own = ffi::sqlite3_vfs_find(std::ptr::null());
        if code != ffi::SQLITE_OK || own.is_null() {
            return ffi::SQLITE_ERROR;
        }
        let mut copy = Box::new(own.read());
        copy.zName = FILE_SYSTEM.as_ptr();
        copy.pNext = null_mut();
        copy.xCurrentTime = Some(current_time);
        copy.xCurrentTimeInt64 = Some(current_time_milliseconds);
        ffi::sqlite3_vfs_register(Box::leak(copy), 0)
    }
}

unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, days: *mut f64) -> c_int {
    // SAFETY: SQLite passes a place for the result.
    unsafe { days.write(NOW_JULIAN_MILLISECONDS as f64 / DAY_MILLISECONDS) };
    ffi::SQLITE_OK
}

unsafe extern "C" fn current_time_milliseconds(
    _: *mut ffi::sqlite3_vfs,
    milliseconds: *mut i64,
) -> c_int {
    // SAFETY: SQLite passes a place for the result.
    unsafe { milliseconds.write(NOW_JULIAN_MILLISECONDS) };
    ffi::SQLITE_OK
}
