//! Reads a database's schema before it can be queried.
//!
//! Invariant: the reading ends on every file. A schema may hold views and generated columns whose
//! reading never ends, so it has the memory of a statement and a budget that grows with the file.
//! The functions and collations of the sandbox are charged to that budget. The sandbox's limits on
//! lengths apply to agents alone: a schema may hold whatever SQLite allows.

use std::{path::Path, sync::Arc};

use rusqlite::{Connection, ErrorCode};

use super::{collations, connection, functions, memory::StatementMemory, meter::Meter};
use crate::settings::SqlLimits;

/// Work units for each byte of a file, more than reading all its rows takes.
const UNITS_PER_BYTE: u64 = 16;

/// Returns the work units for reading a file once.
pub(super) fn reading_units(file_bytes: u64, limits: &SqlLimits) -> u64 {
    let units = file_bytes.saturating_mul(UNITS_PER_BYTE);
    units.saturating_add(limits.work_units)
}

/// Runs `read` on a connection to the file at `path`, which has `file_bytes`.
///
/// # Errors
/// The reading failed; the text says why and what to do.
pub(crate) fn inspect<T>(
    path: &Path,
    file_bytes: u64,
    limits: &SqlLimits,
    read: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
) -> Result<T, String> {
    let work_units = reading_units(file_bytes, limits);
    let (mut connection, meter) =
        open(path, work_units, limits).map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => format!(
                "has a schema that takes more than {work_units} units of work to read; build or \
                 copy it again"
            ),
            _ => unreadable(&error),
        })?;
    let _pages = meter.charge_pages();
    let _memory = StatementMemory::start(limits.memory_bytes);
    // A collation cannot end a statement, and `read` may go on after a function that did.
    let outcome = read(&mut connection).and_then(|value| meter.check().map(|()| value));
    outcome.map_err(|error| match error.sqlite_error_code() {
        _ if meter.is_budget_spent() => format!(
            "has a table or view that takes more than {work_units} units of work to count; take it \
             out, or let `sqlenv data import` make a copy without it"
        ),
        Some(ErrorCode::OutOfMemory | ErrorCode::TooBig) => format!(
            "has a table or view that takes more than {} bytes of memory to read; take it out or \
             raise sql.memory_bytes",
            limits.memory_bytes
        ),
        _ => unreadable(&error),
    })
}

/// Opens the file with the functions and collations of the sandbox.
fn open(
    path: &Path,
    work_units: u64,
    limits: &SqlLimits,
) -> rusqlite::Result<(Connection, Arc<Meter>)> {
    let (connection, meter) = connection::open(path, work_units)?;
    let limits = SqlLimits {
        // SQLite copies what a function returns, so the memory of the statement bounds it too. This
        // limit keeps a function from making a longer value first.
        value_bytes: u32::try_from(limits.memory_bytes).unwrap_or(u32::MAX),
        ..limits.clone()
    };
    functions::install(&connection, &meter, &limits)?;
    collations::install(&connection, &meter)?;
    Ok((connection, meter))
}

fn unreadable(error: &rusqlite::Error) -> String {
    format!("is not a readable SQLite database: {error}; build or copy it again")
}
