//! The types of columns: inferred from all cells of a column, or declared by another database.
//! Pure.

use rusqlite::types::Value as SqlValue;

use super::csv_text::CsvCell;

/// The largest whole number below which a real number holds every whole number.
const EXACT_IN_REAL: u64 = 1 << 53;
/// The characters of a cell that a note shows.
const SHOWN_CHARACTERS: usize = 40;

/// The type of a column in the SQLite file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Integer,
    Real,
    Text,
    /// Text of the form `2024-12-31`.
    Date,
    /// Text of the form `2024-12-31 23:59:59`.
    Datetime,
    /// 0 or 1.
    Boolean,
    /// Bytes, which the cell holds in hexadecimal digits.
    Blob,
}

impl ColumnType {
    /// Returns the name in `CREATE TABLE`. SQLite keeps the text of a date as it is, since no date
    /// reads as a number.
    pub(crate) fn declared(self) -> &'static str {
        match self {
            Self::Integer => "INTEGER",
            Self::Real => "REAL",
            Self::Text => "TEXT",
            Self::Date => "DATE",
            Self::Datetime => "DATETIME",
            Self::Boolean => "BOOLEAN",
            Self::Blob => "BLOB",
        }
    }

    /// Converts a cell of the column.
    ///
    /// # Errors
    /// The text is none of this type.
    pub(crate) fn value(self, cell: CsvCell) -> Result<SqlValue, String> {
        let is_text = matches!(self, Self::Text | Self::Blob);
        if cell.is_absent() || (cell.text.is_empty() && !is_text) {
            return Ok(SqlValue::Null);
        }
        let text = cell.text;
        let value = match self {
            Self::Text | Self::Date | Self::Datetime => Some(SqlValue::Text(text.clone())),
            Self::Integer => text.parse().ok().map(SqlValue::Integer),
            Self::Real => text.parse().ok().map(real),
            Self::Boolean => match text.as_str() {
                "t" | "true" | "1" => Some(SqlValue::Integer(1)),
                "f" | "false" | "0" => Some(SqlValue::Integer(0)),
                _ => None,
            },
            Self::Blob => hex::decode(&text).ok().map(SqlValue::Blob),
        };
        value.ok_or_else(|| format!("`{text}` is no {}", self.declared()))
    }
}

/// NaN and the infinities have no form in SQL and JSON, so they are unknown.
fn real(number: f64) -> SqlValue {
    match number.is_finite() {
        true => SqlValue::Real(number),
        false => SqlValue::Null,
    }
}

/// What the cells of a column have in common.
#[derive(Debug, Clone)]
pub(crate) struct ColumnGuess {
    has_text: bool,
    are_integers: bool,
    are_numbers: bool,
    /// As before, but for NaN and the infinities.
    are_numbers_or_unknown: bool,
    are_dates: bool,
    are_datetimes: bool,
    /// Cells that are not empty, and those of them that are numbers.
    cells: u64,
    numbers: u64,
    /// The first cell that is no number, and the first number that REAL does not hold.
    no_number: Option<SeenCell>,
    large_number: Option<SeenCell>,
}

/// A cell as a note shows it.
#[derive(Debug, Clone)]
struct SeenCell {
    text: String,
    line: u64,
}

impl Default for ColumnGuess {
    fn default() -> Self {
        Self {
            has_text: false,
            are_integers: true,
            are_numbers: true,
            are_numbers_or_unknown: true,
            are_dates: true,
            are_datetimes: true,
            cells: 0,
            numbers: 0,
            no_number: None,
            large_number: None,
        }
    }
}

impl ColumnGuess {
    /// Takes another cell into account, of a record that begins on this line.
    pub(crate) fn see(&mut self, cell: &CsvCell, line: u64) {
        let text = cell.text.as_str();
        if text.is_empty() {
            return;
        }
        let (is_integer, is_number) = (is_integer(text), is_number(text));
        self.has_text = true;
        self.are_integers &= is_integer;
        self.are_numbers &= is_number;
        self.are_numbers_or_unknown &= is_number || is_unknown_number(text);
        self.are_dates &= is_date(text);
        self.are_datetimes &= is_datetime(text);
        self.cells += 1;
        self.numbers += u64::from(is_any_number(text.trim()));
        let seen = || SeenCell {
            text: text.chars().take(SHOWN_CHARACTERS).collect(),
            line,
        };
        if !is_integer && !is_number {
            self.no_number.get_or_insert_with(seen);
        } else if !is_number {
            self.large_number.get_or_insert_with(seen);
        }
    }

    /// Returns why a column of this name is text although at least half of its cells are numbers,
    /// and what to do. Its values compare and sort as text does.
    pub(crate) fn note(&self, name: &str) -> Option<String> {
        let is_mostly_numbers = self.numbers > 0 && 2 * self.numbers >= self.cells;
        if self.column_type() != ColumnType::Text || !is_mostly_numbers {
            return None;
        }
        let (numbers, cells) = (self.numbers, self.cells);
        let remedy = match &self.no_number {
            Some(cell) if is_any_number(cell.text.trim()) => {
                "take away the blanks beside numbers to have numbers"
            }
            Some(_) => "correct the others, or leave them empty, to have numbers",
            None => "it has more digits than a REAL holds: shorten it to have numbers",
        };
        let cause = self.no_number.as_ref().or(self.large_number.as_ref())?;
        let SeenCell { text, line } = cause;
        Some(format!(
            "{name} is text because of {text:?} on line {line}; {numbers} of {cells} cells are \
             numbers; {remedy}"
        ))
    }

    /// Returns the first type that has every cell. Only REAL changes the text of cells: `1.10`
    /// becomes 1.1.
    pub(crate) fn column_type(&self) -> ColumnType {
        match () {
            () if !self.has_text => ColumnType::Text,
            () if self.are_integers => ColumnType::Integer,
            () if self.are_numbers => ColumnType::Real,
            () if self.are_dates => ColumnType::Date,
            () if self.are_datetimes => ColumnType::Datetime,
            () => ColumnType::Text,
        }
    }

    /// Returns the type of a column of numbers. It is text if a number is too large for SQLite. NaN
    /// and the infinities become NULL.
    pub(crate) fn number_type(&self) -> ColumnType {
        match () {
            () if self.has_text && self.are_integers => ColumnType::Integer,
            () if self.has_text && !self.are_numbers_or_unknown => ColumnType::Text,
            () => ColumnType::Real,
        }
    }
}

/// Whether the text is what databases write for a number that is none, or that is infinite.
fn is_unknown_number(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    ["nan", "infinity", "inf"]
        .iter()
        .any(|it| text.eq_ignore_ascii_case(it))
}

fn is_any_number(text: &str) -> bool {
    is_integer(text) || is_number(text)
}

/// Whether the text is a whole number as SQLite writes it. `007` and `+1` are not: as numbers they
/// would lose characters.
fn is_integer(text: &str) -> bool {
    is_whole(text) && text.parse::<i64>().is_ok()
}

fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_plain = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    is_plain && (digits == "0" || !digits.starts_with('0')) && text != "-0"
}

/// Whether the text is a decimal number, with or without an exponent.
fn is_number(text: &str) -> bool {
    if is_whole(text) {
        let exact = |number: i64| number.unsigned_abs() <= EXACT_IN_REAL;
        return text.parse().is_ok_and(exact);
    }
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let mantissa = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let whole = mantissa.split('.').next().unwrap_or_default();
    let is_padded = whole.len() > 1 && whole.starts_with('0');
    let is_plain = text
        .bytes()
        .all(|it| it.is_ascii_digit() || b".eE+-".contains(&it));
    let is_finite = || text.parse::<f64>().is_ok_and(f64::is_finite);
    is_plain && !is_padded && !text.starts_with('+') && text != "-0" && is_finite()
}

/// Whether the text is a day of ISO 8601 that exists: `2024-02-29`.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else {
        return false;
    };
    let number = |text: &str, digits: usize| -> Option<u32> {
        let is_plain = text.len() == digits && text.bytes().all(|it| it.is_ascii_digit());
        is_plain.then(|| text.parse().ok()).flatten()
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2))
    else {
        return false;
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// Whether the text is a day and a time: `2024-02-29 23:59`, with or without seconds and their
/// fraction, with a blank or `T` between them.
fn is_datetime(text: &str) -> bool {
    let Some((day, time)) = text.split_once([' ', 'T']) else {
        return false;
    };
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let parts: Vec<&str> = clock.split(':').collect();
    let has_fraction = time.contains('.');
    let is_part = |text: &str, most: u32| {
        text.len() == 2
            && text.bytes().all(|it| it.is_ascii_digit())
            && text.parse::<u32>().is_ok_and(|number| number <= most)
    };
    let is_clock = match parts.as_slice() {
        [hours, minutes] => !has_fraction && is_part(hours, 23) && is_part(minutes, 59),
        [hours, minutes, seconds] => {
            is_part(hours, 23) && is_part(minutes, 59) && is_part(seconds, 59)
        }
        _ => false,
    };
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|it| it.is_ascii_digit());
    is_date(day) && is_clock && is_fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str) -> CsvCell {
        CsvCell {
            text: text.to_owned(),
            is_quoted: false,
        }
    }

    fn guess(texts: &[&str]) -> ColumnType {
        let mut guess = ColumnGuess::default();
        texts.iter().for_each(|text| guess.see(&cell(text), 1));
        guess.column_type()
    }

    #[test]
    fn all_cells_decide_the_type() {
        use ColumnType::{Date, Datetime, Integer, Real, Text};
        let cases: [(&[&str], ColumnType); 24] = [
            (&["1", "-2", "", "0"], Integer),
            (&["1", "2.5"], Real),
            (&["1e3", "-.5", "2"], Real),
            (&["1", "2", "x"], Text),
            (&["007", "008"], Text),
            (&["+1"], Text),
            (&["-0"], Text),
            (&["00.5"], Text),
            (&["9223372036854775807"], Integer),
            (&["9223372036854775808"], Text),
            (&["9007199254740993", "0.5"], Text),
            (&["NaN"], Text),
            (&["inf"], Text),
            (&["1e999"], Text),
            (&["1 "], Text),
            (&["", ""], Text),
            (&["2024-02-29", "1999-12-31"], Date),
            (&["2023-02-29"], Text),
            (&["01/02/2024"], Text),
            (&["2024-1-2"], Text),
            (&["2024-01-02 03:04", "2024-01-02T03:04:05.25"], Datetime),
            (&["2024-01-02 24:00"], Text),
            (&["2024-01-02", "2024-01-02 03:04"], Text),
            (&["2024-01-02 03:04:05+00"], Text),
        ];
        for (texts, expected) in cases {
            assert_eq!(guess(texts), expected, "{texts:?}");
        }
    }

    #[test]
    fn a_column_of_text_that_is_mostly_numbers_is_noted() {
        let note = |texts: &[&str]| {
            let mut guess = ColumnGuess::default();
            let cells = texts.iter().zip(2..);
            cells.for_each(|(text, line)| guess.see(&cell(text), line));
            guess.note("sales.qty")
        };
        for (texts, cause) in [
            (&["1", "NA", "", "2"][..], "\"NA\" on line 3; 2 of 3 cells"),
            (&["1", "1,000.50"], "\"1,000.50\" on line 3; 1 of 2 cells"),
            (
                &["0.5", "9007199254740993"],
                "\"9007199254740993\" on line 3; 2 of 2",
            ),
            (&["1", "-\n"], "\"-\\n\" on line 3; 1 of 2"),
            (
                &[" 9", " 10"],
                "\" 9\" on line 2; 2 of 2 cells are numbers; take away the blanks",
            ),
        ] {
            let note = note(texts).unwrap();
            let start = format!("sales.qty is text because of {cause}");
            assert!(note.starts_with(&start), "{note}");
        }
        for texts in [
            &["1", "2", ""][..],
            &["1", "2.5"],
            &["1", "a", "b"],
            &["2024-01-02"],
            &["007"],
            &[""],
            &[],
        ] {
            assert_eq!(note(texts), None, "{texts:?}");
        }
    }

    #[test]
    fn a_column_of_numbers_stays_one_with_unknown_numbers() {
        use ColumnType::{Integer, Real, Text};
        let cases: [(&[&str], ColumnType); 4] = [
            (&["1.50", "20", "NaN"], Real),
            (&["-Infinity", "1"], Real),
            (&["1", "2"], Integer),
            (&["99999999999999999999", "NaN"], Text),
        ];
        for (texts, expected) in cases {
            let mut guess = ColumnGuess::default();
            texts.iter().for_each(|text| guess.see(&cell(text), 1));
            assert_eq!(guess.number_type(), expected, "{texts:?}");
        }
    }

    #[test]
    fn cells_become_values() {
        let quoted = CsvCell {
            text: String::new(),
            is_quoted: true,
        };
        assert_eq!(ColumnType::Text.value(cell("")), Ok(SqlValue::Null));
        assert_eq!(
            ColumnType::Text.value(quoted.clone()),
            Ok(SqlValue::Text(String::new()))
        );
        assert_eq!(ColumnType::Integer.value(quoted), Ok(SqlValue::Null));
        assert_eq!(ColumnType::Real.value(cell("NaN")), Ok(SqlValue::Null));
        assert_eq!(ColumnType::Real.value(cell("3")), Ok(SqlValue::Real(3.0)));
        assert_eq!(
            ColumnType::Boolean.value(cell("t")),
            Ok(SqlValue::Integer(1))
        );
        assert_eq!(
            ColumnType::Blob.value(cell("00ff")),
            Ok(SqlValue::Blob(vec![0, 255]))
        );
        for (wrong, text) in [
            (ColumnType::Boolean, "yes"),
            (ColumnType::Integer, "1.5"),
            (ColumnType::Blob, "0"),
        ] {
            assert!(wrong.value(cell(text)).unwrap_err().contains(text));
        }
    }
}
