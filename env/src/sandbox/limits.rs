//! SQLite's own limits on sizes.
//!
//! Invariant: a statement over one of them fails while it is compiled, or when the value is made,
//! at the same place on every machine.

use rusqlite::{Connection, limits::Limit};

use crate::settings::SqlLimits;

/// Bytes of a LIKE or GLOB pattern.
const PATTERN_BYTES: i32 = 64;

/// Sets the limits: no bound variables, no attached databases, no threads. The other limits are
/// above what honest SQL needs.
pub(super) fn set(connection: &Connection, limits: &SqlLimits) -> rusqlite::Result<()> {
    let bytes = |limit: u32| i32::try_from(limit).unwrap_or(i32::MAX);
    for (limit, value) in [
        (Limit::SQLITE_LIMIT_LENGTH, bytes(limits.value_bytes)),
        (
            Limit::SQLITE_LIMIT_SQL_LENGTH,
            bytes(limits.statement_bytes),
        ),
        (Limit::SQLITE_LIMIT_COLUMN, 256),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 100),
        (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 16),
        (Limit::SQLITE_LIMIT_VDBE_OP, 25_000),
        (Limit::SQLITE_LIMIT_FUNCTION_ARG, 32),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_BYTES),
        (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 0),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        connection.set_limit(limit, value)?;
    }
    Ok(())
}
