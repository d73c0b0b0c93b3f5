//! Reading a database's schema before anyone may query it.
//!
//! Invariant: ends on every file. A schema may hold views and generated columns that never would, so the reading has a
//! budget too, which grows with the file, and the memory of a statement. Leaves out what is read.

use std::path::Path;

use rusqlite::{Connection, ErrorCode};

use super::{connection, memory::Bill, meter::Meter};
use crate::settings::SqlLimits;

/// Work units for each byte of a file: more than reading all its rows takes.
const UNITS_PER_BYTE: u64 = 16;

/// Runs `read` on a connection to the file at `path`, which has `file_bytes`.
///
/// # Errors
/// Why it failed, in words.
pub(crate) fn inspect<T>(
    path: &Path,
    file_bytes: u64,
    limits: &SqlLimits,
    read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, String> {
    let work_units = file_bytes
        .saturating_mul(UNITS_PER_BYTE)
        .saturating_add(limits.work_units);
    let mut connection = connection::open(path).map_err(|error| unreadable(&error))?;
    let meter = Meter::install(&mut connection, work_units).map_err(|error| unreadable(&error))?;
    let _bill = Bill::open(limits.memory_bytes);
    read(&connection).map_err(|error| match error.sqlite_error_code() {
        _ if meter.is_spent() => format!(
            "has a table or view that takes more than {work_units} units of work to count; take it out"
        ),
        Some(ErrorCode::OutOfMemory) => format!(
            "has a table or view that takes more than {} bytes of memory to read; take it out or raise sql.memory_bytes",
            limits.memory_bytes
        ),
        _ => unreadable(&error),
    })
}

fn unreadable(error: &rusqlite::Error) -> String {
    format!("is not a readable SQLite database: {error}; build or copy it again")
}
