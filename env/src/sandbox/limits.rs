//! SQLite's own limits on sizes.
//!
//! Invariant: a statement over one of them fails while it is compiled, or when the value is made,
//! at the same place on every machine.

use rusqlite::{Connection, limits::Limit};

use crate::settings::SqlLimits;

/// Sets the limits: those of statements, and no bound variables, attached databases or threads.
pub(super) fn set(connection: &Connection, limits: &SqlLimits) -> rusqlite::Result<()> {
    let bytes = |limit: u32| i32::try_from(limit).unwrap_or(i32::MAX);
    let own = [
        (Limit::SQLITE_LIMIT_LENGTH, bytes(limits.value_bytes)),
        (
            Limit::SQLITE_LIMIT_SQL_LENGTH,
            bytes(limits.statement_bytes),
        ),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 0),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ];
    for (limit, value) in own.into_iter().chain(data::STATEMENT_LIMITS) {
        connection.set_limit(limit, value)?;
    }
    Ok(())
}
