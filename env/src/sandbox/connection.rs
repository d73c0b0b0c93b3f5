//! A connection to a database file through which nothing can be written.
//!
//! Invariant: the connection is read-only and immutable (no locks, no journal, no file beside the
//! database), the time is constant, and extensions and writable schemas are off.

use std::{ffi::c_int, path::Path, ptr::null_mut, sync::Arc};

use rusqlite::{Connection, config::DbConfig, ffi};

use super::{meter::Meter, process};

/// Opens the database file at `path`, and reads its schema. The meter has `work_units`.
pub(super) fn open(path: &Path, work_units: u64) -> rusqlite::Result<(Connection, Arc<Meter>)> {
    process::prepare()?;
    let mut connection = data::open_immutable(path)?;
    without_lookaside(&connection)?;
    // Before the first statement: it reads the schema, whose pages may form a tree without an end.
    let meter = Meter::install(&mut connection, work_units)?;
    harden(&connection)?;
    Ok((connection, meter))
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
