//! SQL functions whose work grows with their arguments, each charged to the meter.
//!
//! Invariant: they return what SQLite's own functions return, at a cost that the budget counts.
//! Functions of quadratic time and the most common ones are reimplemented (`text.rs`,
//! `pattern.rs`). The others, and unusual arguments of the first, go to SQLite's own function on a
//! second connection. Overriding LIKE and GLOB disables SQLite's index search for them: the rows
//! stay the same, perhaps in another order where the statement names none.

mod builtin;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use rusqlite::{
    Connection, Error, ToSql,
    ffi::{Error as Code, SQLITE_NOMEM, SQLITE_TOOBIG},
    functions::{Context, FunctionFlags},
    limits::Limit,
    types::{ToSqlOutput, ValueRef},
};

use self::builtin::Builtin;
use super::{
    memory,
    meter::Meter,
    pattern::{self, PatternSyntax},
    text::{self, Sides},
};
use crate::settings::SqlLimits;

/// Bytes charged for any call.
const CALL_BYTES: u64 = 256;
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

/// A reimplemented function. It returns `None` if SQLite's own function must be called.
type Native = fn(&Call<'_>) -> rusqlite::Result<Option<SqlOutput>>;

const NATIVE: &[(&str, i32, Native)] = &[
    ("glob", 2, |call| compare(call, PatternSyntax::Glob)),
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

/// Installs the metered functions on `connection`. Patterns and argument lists may be as long as it
/// allows at this time.
pub(super) fn install(
    connection: &Connection,
    meter: &Arc<Meter>,
    limits: &SqlLimits,
) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    let builtin = Arc::new(Builtin::open(connection, limits)?);
    let pattern_bytes = connection.limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH)? as usize;
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
                pattern_bytes,
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
    /// Longest text that may be returned.
    max_bytes: usize,
    /// Longest pattern of LIKE and GLOB.
    pattern_bytes: usize,
}

impl Call<'_> {
    fn arguments(&self) -> impl Iterator<Item = ValueRef<'_>> {
        (0..self.context.len()).map(|index| self.context.get_raw(index))
    }

    /// Returns the argument if it is text, or a blob, which SQLite reads as text.
    fn text(&self, index: usize) -> Option<&[u8]> {
        match self.context.get_raw(index) {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the argument if it is UTF-8 without NUL, which all functions read alike.
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
    let replaced = text::replace(text, pattern, replacement, |bytes| {
        let failure = |code| Err(Error::SqliteFailure(Code::new(code), None));
        if bytes > call.max_bytes as u64 {
            return failure(SQLITE_TOOBIG);
        }
        call.spend(bytes)?;
        // SQLite charges its copy of the result, but the result itself is outside of its heap.
        match memory::may_hold(bytes) {
            true => Ok(()),
            false => failure(SQLITE_NOMEM),
        }
    })?;
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
    let affordable = call.meter.remaining_bytes() / EXAMINED_BYTES;
    let (trimmed, work) = text::trim(text, set, sides, affordable);
    // This ends the statement if trimming takes too much work.
    call.spend(work * EXAMINED_BYTES)?;
    let Some(trimmed) = trimmed else {
        return Ok(None);
    };
    call.spend(trimmed.len() as u64)?;
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

fn like(call: &Call<'_>) -> rusqlite::Result<Option<SqlOutput>> {
    let mut escape = None;
    if call.context.len() > 2 {
        let mut text = call.text(2).unwrap_or_default();
        escape = pattern::read(&mut text);
        // SQLite's own function reports what is wrong with the escape.
        if escape.is_none() || pattern::read(&mut text).is_some() {
            return Ok(None);
        }
    }
    compare(call, PatternSyntax::Like { escape })
}

fn compare(call: &Call<'_>, syntax: PatternSyntax) -> rusqlite::Result<Option<SqlOutput>> {
    let (Some(pattern), Some(text)) = (call.text(0), call.text(1)) else {
        return Ok(None);
    };
    if pattern.len() > call.pattern_bytes {
        return Ok(None);
    }
    let affordable = call.meter.remaining_bytes() / EXAMINED_BYTES;
    let (matched, comparisons) = pattern::matches(pattern, text, syntax, affordable);
    call.spend(comparisons * EXAMINED_BYTES)?;
    Ok(matched.map(|matched| SqlOutput::Integer(i64::from(matched))))
}
