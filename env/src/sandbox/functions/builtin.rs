//! Calls of SQLite's own functions, with their cost.

use parking_lot::Mutex;
use rusqlite::{
    Connection, Error, ErrorCode, OpenFlags, Statement,
    ffi::{Error as Code, SQLITE_NOMEM, SQLITE_TOOBIG},
    limits::Limit,
    types::{ToSqlOutput, ValueRef},
};

use super::{Call, LINEAR, NATIVE, SqlOutput};
use crate::{
    sandbox::{connection, limits, memory::uncharged},
    settings::SqlLimits,
};

/// Calls of SQLite's own functions with at most so many arguments stay compiled.
const KEPT_ARGUMENTS: usize = 8;
/// Bytes charged for compiling a call.
const COMPILE_BYTES: u64 = 64 << 10;
/// Bytes charged for one conversion of a format, in addition to its text.
const CONVERSION_BYTES: u64 = 512;
/// Bytes charged for one modifier of a time.
const MODIFIER_BYTES: u64 = 4 << 10;

/// SQLite's own functions, called on a connection without tables.
pub(super) struct Builtin(Mutex<Connection>);

impl Builtin {
    /// Opens the connection. A call may have as many arguments, and as long a pattern, as on
    /// `caller`.
    pub(super) fn open(caller: &Connection, limits: &SqlLimits) -> rusqlite::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_in_memory_with_flags_and_vfs(flags, data::FIXED_CLOCK)?;
        connection::without_lookaside(&connection)?;
        limits::set(&connection, limits)?;
        let arguments = caller.limit(Limit::SQLITE_LIMIT_FUNCTION_ARG)?;
        let pattern_bytes = caller.limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH)?;
        for (limit, value) in [
            (Limit::SQLITE_LIMIT_FUNCTION_ARG, arguments),
            (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, arguments),
            (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, pattern_bytes),
        ] {
            connection.set_limit(limit, value)?;
        }
        connection
            .set_prepared_statement_cache_capacity(LINEAR.len() * KEPT_ARGUMENTS + NATIVE.len());
        Ok(Self(Mutex::new(connection)))
    }

    /// Calls SQLite's function `name`. All times are UTC, so the modifiers to and from local time
    /// are dropped.
    pub(super) fn call(&self, name: &str, call: &Call<'_>) -> rusqlite::Result<SqlOutput> {
        let arguments: Vec<ValueRef<'_>> = call
            .arguments()
            .enumerate()
            .filter(|(index, value)| {
                !first_modifier(name).is_some_and(|first| *index >= first && is_zone(*value))
            })
            .map(|(_, value)| value)
            .collect();
        call.spend(cost(name, &arguments))?;
        let output = self.run(name, &arguments).map_err(without_text)?;
        if let SqlOutput::Text(bytes) | SqlOutput::Blob(bytes) = &output {
            call.spend(bytes.len() as u64)?;
        }
        Ok(output)
    }

    fn run(&self, name: &str, arguments: &[ValueRef<'_>]) -> rusqlite::Result<SqlOutput> {
        let connection = self.0.lock();
        let marks = vec!["?"; arguments.len()].join(",");
        let sql = format!("SELECT {name}({marks})");
        if arguments.len() > KEPT_ARGUMENTS {
            return first_value(&mut connection.prepare(&sql)?, arguments);
        }
        // The cached statement serves later calls of other statements too, so nobody is charged for
        // it.
        let mut statement = uncharged(|| connection.prepare_cached(&sql))?;
        first_value(&mut statement, arguments)
    }
}

fn first_value(
    statement: &mut Statement<'_>,
    arguments: &[ValueRef<'_>],
) -> rusqlite::Result<SqlOutput> {
    for (index, value) in arguments.iter().enumerate() {
        statement.raw_bind_parameter(index + 1, ToSqlOutput::Borrowed(*value))?;
    }
    let mut rows = statement.raw_query();
    let row = rows.next()?.ok_or(Error::QueryReturnedNoRows)?;
    row.get_ref(0).map(SqlOutput::from)
}

/// Reduces a size or memory error to its code. With a text, SQLite would report an error of the
/// function.
fn without_text(error: Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::OutOfMemory) => Error::SqliteFailure(Code::new(SQLITE_NOMEM), None),
        Some(ErrorCode::TooBig) => Error::SqliteFailure(Code::new(SQLITE_TOOBIG), None),
        _ => error,
    }
}

/// Returns the bytes that SQLite's own function `name` works on.
fn cost(name: &str, arguments: &[ValueRef<'_>]) -> u64 {
    let bytes = arguments.iter().copied().map(byte_count);
    let is_linear = LINEAR.iter().any(|(linear, _)| *linear == name);
    let work: u64 = if is_linear || arguments.len() == 1 || name.starts_with("substr") {
        bytes.sum()
    } else {
        // With mixed types each byte may be compared with each.
        bytes.fold(1, |work: u64, bytes| work.saturating_mul(bytes.max(1)))
    };
    let conversions = match (name, arguments.first()) {
        (
            "format" | "printf" | "strftime",
            Some(ValueRef::Text(format) | ValueRef::Blob(format)),
        ) => format.iter().filter(|byte| **byte == b'%').count() as u64,
        _ => 0,
    };
    let modifiers =
        first_modifier(name).map_or(0, |first| arguments.len().saturating_sub(first)) as u64;
    let compiling = if arguments.len() > KEPT_ARGUMENTS {
        COMPILE_BYTES
    } else {
        0
    };
    work.saturating_add(conversions * CONVERSION_BYTES + modifiers * MODIFIER_BYTES + compiling)
}

/// Returns the index of the first modifier among the arguments of a date or time function.
fn first_modifier(function: &str) -> Option<usize> {
    match function {
        "date" | "datetime" | "julianday" | "time" | "unixepoch" => Some(1),
        "strftime" => Some(2),
        _ => None,
    }
}

/// Returns whether the argument is a modifier to or from local time. SQLite reads it from any type,
/// up to the first NUL.
fn is_zone(value: ValueRef<'_>) -> bool {
    let (ValueRef::Text(bytes) | ValueRef::Blob(bytes)) = value else {
        return false;
    };
    let word = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    word.eq_ignore_ascii_case(b"localtime") || word.eq_ignore_ascii_case(b"utc")
}

fn byte_count(value: ValueRef<'_>) -> u64 {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len() as u64,
        _ => 8,
    }
}
