//! Reads the rows of a statement.

use rusqlite::types::ValueRef;

use crate::rows::{Cell, ResultRows};

/// Runs a statement and reads at most `limit` rows. Calls `admit` with the bytes of each row before
/// it is kept.
pub(crate) fn read_rows(
    statement: &mut rusqlite::Statement<'_>,
    limit: usize,
    admit: impl Fn(u64) -> rusqlite::Result<()>,
) -> rusqlite::Result<ResultRows> {
    let width = statement.column_count();
    let mut source = statement.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = source.next()? {
        if rows.len() == limit {
            return Ok(ResultRows {
                rows,
                complete: false,
            });
        }
        let mut bytes = 0;
        for column in 0..width {
            bytes += stored_bytes(row.get_ref(column)?);
        }
        admit(bytes)?;
        let cells = (0..width).map(|column| row.get_ref(column).map(Cell::from));
        rows.push(cells.collect::<Result<_, _>>()?);
    }
    Ok(ResultRows {
        rows,
        complete: true,
    })
}

/// Returns the bytes that a cell takes in our memory, those in the result summary of `progress.rs`
/// included.
fn stored_bytes(value: ValueRef<'_>) -> u64 {
    /// A number as text, or a reference to a text.
    const SUMMARY_BYTES: usize = 64;
    let text = match value {
        ValueRef::Text(bytes) if std::str::from_utf8(bytes).is_ok() => bytes.len(),
        // Each byte that is not UTF-8 becomes a character of three bytes.
        ValueRef::Text(bytes) => 3 * bytes.len(),
        // The bytes and their hexadecimal digits.
        ValueRef::Blob(bytes) => 3 * bytes.len(),
        _ => 0,
    };
    (size_of::<Cell>() + SUMMARY_BYTES + text) as u64
}

impl From<ValueRef<'_>> for Cell {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Integer(number),
            ValueRef::Real(number) => Self::Real(number),
            ValueRef::Text(bytes) => Self::Text(String::from_utf8_lossy(bytes).into_owned()),
            ValueRef::Blob(bytes) => Self::Blob(bytes.to_vec()),
        }
    }
}
