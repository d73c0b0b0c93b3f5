//! Rows of a query result, and the text that an agent reads.
//!
//! Invariant: the text depends on the rows and the limits alone. Reals have the shortest form that
//! reads back. Column names are not shown, as in all published results of `SQLEnv`.

use std::fmt::{self, Write as _};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use smart_default::SmartDefault;

use crate::truncate::truncated;

/// Limits of one observation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct ResultLimits {
    /// Rows of a QUERY.
    #[default(20)]
    pub rows: usize,
    /// Bytes of one cell.
    #[default(500)]
    pub cell_bytes: usize,
    /// Bytes of one row.
    #[default(4_000)]
    pub row_bytes: usize,
    /// Bytes of all rows. The first row is always shown.
    #[default(16_000)]
    pub result_bytes: usize,
}

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// SQL NULL.
    Null,
    /// 64-bit integer.
    Integer(i64),
    /// Floating-point number. SQLite has no NaN.
    Real(f64),
    /// Text. Bytes that are not UTF-8 are replaced.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

/// The first rows of a result.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResultRows {
    /// The rows, all of one width.
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Whether the result has no further rows.
    pub(crate) complete: bool,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Real(number) if number.is_infinite() => {
                f.write_str(if *number > 0.0 { "Inf" } else { "-Inf" })
            }
            Self::Real(number) => f.write_str(&data::real_text(*number)),
            Self::Text(text) => f.write_str(text),
            Self::Blob(bytes) => write!(f, "x'{}'", hex::encode(bytes)),
        }
    }
}

impl From<&Cell> for Value {
    fn from(cell: &Cell) -> Self {
        match cell {
            Cell::Null => Self::Null,
            Cell::Integer(number) => Self::from(*number),
            Cell::Real(number) if number.is_finite() => Self::from(*number),
            other => Self::from(other.to_string()),
        }
    }
}

impl ResultRows {
    /// Writes one line `N. a | b` per row, numbered from 1 and cut to the limits. Where rows are
    /// missing, a last line says so.
    pub(crate) fn render(&self, limits: &ResultLimits) -> String {
        if self.rows.is_empty() {
            return "(no rows)".to_owned();
        }
        let mut text = String::new();
        let mut shown = 0;
        for row in self.rows.iter().take(limits.rows) {
            let line = render_row(shown + 1, row, limits);
            if shown > 0 && text.len() + 1 + line.len() > limits.result_bytes {
                break;
            }
            if shown > 0 {
                text.push('\n');
            }
            text.push_str(&line);
            shown += 1;
        }
        if shown < self.rows.len() || !self.complete {
            let noun = if shown == 1 { "row" } else { "rows" };
            let _ = write!(text, "\n... (first {shown} {noun} shown, there are more)");
        }
        text
    }
}

fn render_row(number: usize, row: &[Cell], limits: &ResultLimits) -> String {
    let mut line = format!("{number}. ");
    for (index, cell) in row.iter().enumerate() {
        if line.len() > limits.row_bytes {
            break;
        }
        if index > 0 {
            line.push_str(" | ");
        }
        match cell {
            Cell::Text(text) => line.push_str(&truncated(text, limits.cell_bytes)),
            // Only the bytes that can be shown are encoded: a blob may be large.
            Cell::Blob(bytes) => {
                let shown = &bytes[..bytes.len().min(limits.cell_bytes)];
                let text = format!("x'{}'", hex::encode(shown));
                line.push_str(&truncated(&text, limits.cell_bytes));
            }
            other => line.push_str(&truncated(&other.to_string(), limits.cell_bytes)),
        }
    }
    truncated(&line, limits.row_bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_print_as_sqlite_prints_them() {
        for (cell, text) in [
            (Cell::Null, "NULL"),
            (Cell::Integer(-7), "-7"),
            (Cell::Real(22.0), "22.0"),
            (Cell::Real(100.0 / 3.0), "33.333333333333336"),
            (Cell::Real(f64::NEG_INFINITY), "-Inf"),
            (Cell::Text("a | b".to_owned()), "a | b"),
            (Cell::Blob(vec![0, 255]), "x'00ff'"),
        ] {
            assert_eq!(cell.to_string(), text);
        }
    }

    #[test]
    fn long_results_are_cut_and_say_so() {
        let limits = ResultLimits {
            rows: 2,
            cell_bytes: 4,
            row_bytes: 14,
            result_bytes: 100,
        };
        let row = |text: &str| vec![Cell::Text(text.to_owned()), Cell::Null];
        let rows = ResultRows {
            rows: vec![row("abcdef"), row("ééé"), row("c")],
            complete: true,
        };
        assert_eq!(
            rows.render(&limits),
            "1. abcd… | N…\n2. éé… | N…\n... (first 2 rows shown, there are more)"
        );
        let narrow = ResultLimits {
            result_bytes: 10,
            ..limits
        };
        assert_eq!(
            rows.render(&narrow),
            "1. abcd… | N…\n... (first 1 row shown, there are more)"
        );
        assert_eq!(ResultRows::default().render(&limits), "(no rows)");
    }
}
