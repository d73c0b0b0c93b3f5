//! SQL functions whose work grows with their arguments, each charged to the meter.
//!
//! Invariant: they return what SQLite's own functions return, at a cost that the budget counts.
//! Functions of quadratic time and the most common ones are reimplemented (`text.rs`,
//! `pattern.rs`). The others, and unusual arguments of the first, go to SQLite's own function on a
//! second connection. Overriding LIKE and GLOB disables SQLite's index search for them: the rows
//! stay the same, perhaps in another order where the statement names none.

#[cfg(test)]
mod parity;

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{
    Connection, Error, ErrorCode, OpenFlags, Statement, ToSql,
    ffi::{Error as Code, SQLITE_NOMEM, SQLITE_TOOBIG},
    functions::{Context, FunctionFlags},
    types::{ToSqlOutput, ValueRef},
};

use super::{
    connection, limits,
    memory::uncharged,
    meter::Meter,
    pattern::{self, PatternSyntax},
    process,
    text::{self, Sides},
};
use crate::settings::SqlLimits;

/// Bytes charged for any call.
const CALL_BYTES: u64 = 256;
/// Calls of SQLite's own functions with at most so many arguments stay compiled.
const KEPT_ARGUMENTS: usize = 8;
/// Bytes charged for compiling a call.
const COMPILE_BYTES: u64 = 64 << 10;
/// Bytes charged for one conversion of a format, in addition to its text.
const CONVERSION_BYTES: u64 = 512;
/// Bytes charged for one modifier of a time.
const MODIFIER_BYTES: u64 = 4 << 10;
/// Bytes charged for one byte that our own loops examine: that takes longer than copying it.
pub(super) const EXAMINED_BYTES: u64 = 8;

/// SQLite's functions of linear time, with their number of arguments; -1 for any.
const LINEAR: &[(&str, i32)] = &[
    ("concat", -1),
    ("concat_ws", -1),
    ("date", -1),
    ("datetime", -1),
    ("format", -1),
    ("hex", 1),
    ("julianday", -1),
    ("printf", -1),
    ("quote", 1),
    ("strftime", -1),
    ("time", -1),
    ("timediff", 2),
    ("unixepoch", -1),
];

/// A reimplemented function. It returns `None` where SQLite's own function must be called.
type Native = fn(&Call<'_>) -> rusqlite::Result<Option<SqlOutput>>;

const NATIVE: &[(&str, i32, Native)] = &[
    ("glob", 2, glob),
    ("instr", 2, instr),
    ("length", 1, length),
    ("like", 2, like),
    ("like", 3, like),
    ("lower", 1, |call| map(call, u8::to_ascii_lowercase)),
    ("ltrim", 1, |call| trim(call, Sides::Left)),
    ("ltrim", 2, |call| trim(call, Sides::Left)),
    ("replace", 3, replace),
    ("rtrim", 1, |call| trim(call, Sides::Right)),
    ("rtrim", 2, |call| trim(call, Sides::Right)),
    ("substr", 2, substr),
    ("substr", 3, substr),
    ("substring", 2, substr),
    ("substring", 3, substr),
    ("trim", 1, |call| trim(call, Sides::Both)),
    ("trim", 2, |call| trim(call, Sides::Both)),
    ("upper", 1, |call| map(call, u8::to_ascii_uppercase)),
];

/// Installs the metered functions on `connection`.
pub(super) fn install(
    connection: &Connection,
    meter: &Arc<Meter>,
    limits: &SqlLimits,
) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    let builtin = Arc::new(Builtin::open(limits)?);
    let linear = LINEAR
        .iter()
        .map(|(name, count)| (*name, *count, (|_| Ok(None)) as Native));
    for (name, count, native) in linear.chain(NATIVE.iter().copied()) {
        let (builtin, meter) = (Arc::clone(&builtin), Arc::clone(meter));
        let max_bytes = limits.value_bytes as usize;
        connection.create_scalar_function(name, count, flags, move |context| {
            let call = Call {
                context,
                meter: &meter,
                max_bytes,
            };
            call.spend(CALL_BYTES)?;
            match native(&call)? {
                Some(output) => Ok(output),
                None => builtin.call(name, &call),
            }
        })?;
    }
    Ok(())
}

/// One call of a function.
struct Call<'a> {
    context: &'a Context<'a>,
    meter: &'a Meter,
    /// Longest text that may come out.
    max_bytes: usize,
}

impl Call<'_> {
    fn arguments(&self) -> impl Iterator<Item = ValueRef<'_>> {
        (0..self.context.len()).map(|index| self.context.get_raw(index))
    }

    /// The argument, where it is text, or bytes that SQLite takes for a text.
    fn text(&self, index: usize) -> Option<&[u8]> {
        match self.context.get_raw(index) {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The argument, where it is text that every function reads alike: UTF-8 without NUL.
    fn plain_text(&self, index: usize) -> Option<&str> {
        match self.context.get_raw(index) {
            ValueRef::Text(text) if !text.contains(&0) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    fn spend(&self, bytes: u64) -> rusqlite::Result<()> {
        self.meter.spend_bytes(bytes)
    }
}

/// What a function returns. Text need not be UTF-8.
#[derive(Clone, Debug, PartialEq)]
enum SqlOutput {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl ToSql for SqlOutput {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Text(text) => ValueRef::Text(text),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl From<ValueRef<'_>> for SqlOutput {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Integer(number),
            ValueRef::Real(number) => Self::Real(number),
            ValueRef::Text(text) => Self::Text(text.to_vec()),
            ValueRef::Blob(bytes) => Self::Blob(bytes.to_vec()),
        }
    }
}

fn byte_count(value: ValueRef<'_>) -> u64 {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len() as u64,
        _ => 8,
    }
}

/// SQLite's own functions, called on a connection without tables.
struct Builtin(Mutex<Connection>);

impl Builtin {
    fn open(limits: &SqlLimits) -> rusqlite::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_in_memory_with_flags_and_vfs(flags, process::FILE_SYSTEM)?;
        connection::without_lookaside(&connection)?;
        limits::set(&connection, limits)?;
        connection.set_limit(rusqlite::limits::Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 32)?;
        connection
            .set_prepared_statement_cache_capacity(LINEAR.len() * KEPT_ARGUMENTS + NATIVE.len());
        Ok(Self(Mutex::new(connection)))
    }

    /// Calls SQLite's function `name`. All times are UTC, so the modifiers to and from local time
    /// are dropped.
    fn call(&self, name: &str, call: &Call<'_>) -> rusqlite::Result<SqlOutput> {
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
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

fn instr(call: &Call<'_>) -> rusqlite::Result<Option<SqlOutput>> {
    let (haystack, needle, is_text) = match (call.context.get_raw(0), call.context.get_raw(1)) {
        (ValueRef::Text(haystack), ValueRef::Text(needle)) => (haystack, needle, true),
        (ValueRef::Blob(haystack), ValueRef::Blob(needle)) => (haystack, needle, false),
        _ => return Ok(None),
    };
    call.spend((haystack.len() + needle.len()) as u64 * EXAMINED_BYTES)?;
    Ok(Some(SqlOutput::Integer(text::instr(
        haystack, needle, is_text,
    ))))
}

fn replace(call: &Call<'_>) -> rusqlite::Result<Option<SqlOutput>> {
    let (Some(text), Some(pattern), Some(replacement)) = (call.text(0), call.text(1), call.text(2))
    else {
        return Ok(None);
    };
    call.spend((text.len() + pattern.len()) as u64 * EXAMINED_BYTES)?;
    let replaced = text::replace(text, pattern, replacement, call.max_bytes)
        .ok_or_else(|| Error::SqliteFailure(Code::new(SQLITE_TOOBIG), None))?;
    call.spend(replaced.len() as u64)?;
    Ok(Some(SqlOutput::Text(replaced)))
}

fn trim(call: &Call<'_>, sides: Sides) -> rusqlite::Result<Option<SqlOutput>> {
    let Some(text) = call.text(0) else {
        return Ok(None);
    };
    let set = match call.context.len() {
        1 => b" ",
        _ => match call.text(1) {
            Some(set) => set,
            None => return Ok(None),
        },
    };
    let (trimmed, work) = text::trim(text, set, sides);
    call.spend(work * EXAMINED_BYTES + trimmed.len() as u64)?;
    Ok(Some(SqlOutput::Text(trimmed.to_vec())))
}

fn length(call: &Call<'_>) -> rusqlite::Result<Option<SqlOutput>> {
    let Some(text) = call.plain_text(0) else {
        return Ok(None);
    };
    call.spend(text.len() as u64)?;
    Ok(Some(SqlOutput::Integer(text.chars().count() as i64)))
}

fn map(call: &Call<'_>, byte: fn(&u8) -> u8) -> rusqlite::Result<Option<SqlOutput>> {
    let Some(text) = call.text(0) else {
        return Ok(None);
    };
    call.spend(2 * text.len() as u64)?;
    Ok(Some(SqlOutput::Text(text.iter().map(byte).collect())))
}

fn substr(call: &Call<'_>) -> rusqlite::Result<Option<SqlOutput>> {
    let Some(text) = call.plain_text(0) else {
        return Ok(None);
    };
    let ValueRef::Integer(start) = call.context.get_raw(1) else {
        return Ok(None);
    };
    let length = match call.context.len() {
        2 => i64::MAX,
        _ => match call.context.get_raw(2) {
            ValueRef::Integer(length) => length,
            _ => return Ok(None),
        },
    };
    call.spend(2 * text.len() as u64)?;
    let part = text::substr(text, start, length);
    Ok(Some(SqlOutput::Text(part.as_bytes().to_vec())))
}

fn glob(call: &Call<'_>) -> rusqlite::Result<Option<SqlOutput>> {
    compare(call, PatternSyntax::Glob)
}

fn like(call: &Call<'_>) -> rusqlite::Result<Option<SqlOutput>> {
    let escape = match call.context.len() {
        2 => None,
        _ => {
            let Some(mut text) = call.text(2) else {
                return Ok(None);
            };
            let escape = pattern::read(&mut text);
            // SQLite's own function reports what is wrong with the escape.
            if escape.is_none() || pattern::read(&mut text).is_some() {
                return Ok(None);
            }
            escape
        }
    };
    compare(call, PatternSyntax::Like { escape })
}

fn compare(call: &Call<'_>, syntax: PatternSyntax) -> rusqlite::Result<Option<SqlOutput>> {
    let (Some(pattern), Some(text)) = (call.text(0), call.text(1)) else {
        return Ok(None);
    };
    if pattern.len() > limits::PATTERN_BYTES as usize {
        return Ok(None);
    }
    let affordable = call.meter.remaining_bytes() / EXAMINED_BYTES;
    let (matched, comparisons) = pattern::matches(pattern, text, syntax, affordable);
    call.spend(comparisons * EXAMINED_BYTES)?;
    Ok(matched.map(|matched| SqlOutput::Integer(i64::from(matched))))
}
