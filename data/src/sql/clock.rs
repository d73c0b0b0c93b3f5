//! A clock that stands still, for gold SQL and for the agents' queries.
//!
//! Invariant: what a query knows of the present is one moment, 2024-01-01 00:00:00 UTC, on every
//! machine and in every run. Connections that do not use [`FIXED_CLOCK`] are not affected.

use std::ffi::{CStr, c_int};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use rusqlite::ffi;

/// The file system (VFS) of SQLite that reads files as its own one does and reports a constant
/// time. [`register_fixed_clock`] comes before its first use.
pub const FIXED_CLOCK: &CStr = c"sqlenv";

/// 2024-01-01 00:00:00 UTC, as a Julian day in milliseconds.
const NOW_JULIAN_MILLISECONDS: i64 = 212_570_827_200_000;
const DAY_MILLISECONDS: f64 = 86_400_000.0;

/// SQLite's result code for the registration.
static REGISTERED: OnceLock<c_int> = OnceLock::new();

/// Adds [`FIXED_CLOCK`] to SQLite, once in a process.
///
/// # Errors
/// SQLite cannot be initialized.
pub fn register_fixed_clock() -> rusqlite::Result<()> {
    match *REGISTERED.get_or_init(register) {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(
            ffi::Error::new(code),
            Some("the clock of gold SQL cannot be registered with SQLite".to_owned()),
        )),
    }
}

fn register() -> c_int {
    // SAFETY: the default file system lives for ever and is only read; the copy is leaked, so it
    // does too.
    unsafe {
        let code = ffi::sqlite3_initialize();
        let own = ffi::sqlite3_vfs_find(null());
        if code != ffi::SQLITE_OK || own.is_null() {
            return ffi::SQLITE_ERROR;
        }
        let mut copy = Box::new(own.read());
        copy.zName = FIXED_CLOCK.as_ptr();
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
