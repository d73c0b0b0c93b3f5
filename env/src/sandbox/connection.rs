//! A connection to a database file through which nothing can be written.
//!
//! Invariant: the connection is read-only and immutable (no locks, no journal, no file beside the
//! database), the time is constant, and extensions and writable schemas are off.

use std::{ffi::c_int, path::Path, ptr::null_mut};

use rusqlite::{Connection, config::DbConfig, ffi};

use super::process;

/// Opens the database file at `path`.
pub(super) fn open(path: &Path) -> rusqlite::Result<Connection> {
    process::prepare()?;
    let connection = data::open_immutable(path)?;
    without_lookaside(&connection)?;
    harden(&connection)?;
    Ok(connection)
}

/// Turns off SQLite's cache of small allocations. Its content depends on earlier statements, so
/// memory charges would depend on them, too.
pub(super) fn without_lookaside(connection: &Connection) -> rusqlite::Result<()> {
    // SAFETY: the handle is open; this option takes a pointer, which may be null, and two integers.
    let code = unsafe {
        ffi::sqlite3_db_config(
            connection.handle(),
            ffi::SQLITE_DBCONFIG_LOOKASIDE,
            null_mut::<u8>(),
            0 as c_int,
            0 as c_int,
        )
    };
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
    }
}

/// Applies SQLite's advice for untrusted SQL (sqlite.org/security.html).
fn harden(connection: &Connection) -> rusqlite::Result<()> {
    data::harden(connection)?;
    for option in [
        DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER,
        DbConfig::SQLITE_DBCONFIG_ENABLE_ATTACH_CREATE,
        DbConfig::SQLITE_DBCONFIG_ENABLE_ATTACH_WRITE,
    ] {
        connection.set_db_config(option, false)?;
    }
    connection.execute_batch(
        "PRAGMA query_only = ON; PRAGMA temp_store = MEMORY; PRAGMA cell_size_check = ON; \
         PRAGMA cache_size = -2048; PRAGMA mmap_size = 0;",
    )
}
