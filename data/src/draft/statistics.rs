//! What the values of a column look like. Pure.

use std::collections::BTreeSet;

use rusqlite::types::Value as SqlValue;

use crate::sql_text::literal;

/// Texts that stand for a missing value.
const MISSING: &[&str] = &[
    "", "-", "--", "?", "n/a", "na", "nan", "nil", "none", "null", "unknown", "tba", "tbd", "\\n",
];

/// The day that MySQL writes for a missing one, also with a time behind it.
const NO_DAY: &str = "0000-00-00";

/// Counts over the rows that were read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ColumnStatistics {
    pub(super) rows: usize,
    pub(super) nulls: usize,
    /// Texts that stand for a missing value.
    pub(super) blanks: usize,
    pub(super) integers: usize,
    pub(super) reals: usize,
    pub(super) texts: usize,
    pub(super) blobs: usize,
    /// Texts that are whole numbers, as SQLite would write them.
    pub(super) number_texts: usize,
    /// Texts `YYYY-MM-DD`, also with a time behind them.
    pub(super) dates: usize,
    /// Whole numbers that can be years, also as texts.
    pub(super) years: usize,
    /// Whole numbers that can be months `YYYYMM`, also as texts.
    pub(super) months: usize,
    /// Whole numbers that can be days `YYYYMMDD`, also as texts.
    pub(super) days: usize,
    /// Texts with a letter.
    pub(super) lettered: usize,
    pub(super) distinct: usize,
    /// Distinct texts without regard to case and blanks.
    pub(super) distinct_folded: usize,
    pub(super) longest: usize,
    /// The most words of a text.
    pub(super) most_words: usize,
    /// Whether some number is no whole one.
    pub(super) has_fractions: bool,
    pub(super) least: f64,
    pub(super) greatest: f64,
    /// The distinct values that are not missing, if there are at most two.
    pub(super) pair: Vec<String>,
}

impl ColumnStatistics {
    /// Counts the values of a column.
    pub(super) fn count<'a>(values: impl Iterator<Item = &'a SqlValue>) -> Self {
        let mut counts = Self {
            least: f64::INFINITY,
            greatest: f64::NEG_INFINITY,
            ..Self::default()
        };
        let (mut seen, mut folded) = (BTreeSet::new(), BTreeSet::new());
        for value in values {
            counts.rows += 1;
            let text = match value {
                SqlValue::Null => {
                    counts.nulls += 1;
                    continue;
                }
                SqlValue::Blob(_) => {
                    counts.blobs += 1;
                    continue;
                }
                SqlValue::Integer(number) => {
                    counts.integers += 1;
                    counts.number(*number as f64);
                    number.to_string()
                }
                SqlValue::Real(number) => {
                    counts.reals += 1;
                    counts.number(*number);
                    number.to_string()
                }
                SqlValue::Text(text) => {
                    counts.texts += 1;
                    counts.text(text);
                    text.clone()
                }
            };
            folded.insert(text.trim().to_lowercase());
            seen.insert(text);
        }
        counts.distinct = seen.len();
        counts.distinct_folded = folded.len();
        seen.retain(|text| !is_missing(text));
        if seen.len() <= 2 {
            counts.pair = seen.into_iter().collect();
        }
        counts
    }

    fn number(&mut self, number: f64) {
        self.has_fractions |= number.fract() != 0.0;
        self.least = self.least.min(number);
        self.greatest = self.greatest.max(number);
        if number.fract() == 0.0 {
            self.whole(number as i64);
        }
    }

    fn whole(&mut self, number: i64) {
        self.years += usize::from((1000..=2100).contains(&number));
        self.months += usize::from(is_month(number));
        self.days += usize::from((1..=31).contains(&(number % 100)) && is_month(number / 100));
    }

    fn text(&mut self, text: &str) {
        self.blanks += usize::from(is_missing(text));
        self.longest = self.longest.max(text.chars().count());
        self.most_words = self.most_words.max(text.split_whitespace().count());
        self.lettered += usize::from(text.chars().any(char::is_alphabetic));
        self.dates += usize::from(is_date(text));
        if let Some(number) = text.parse::<i64>().ok().filter(|it| it.to_string() == text) {
            self.number_texts += 1;
            self.number(number as f64);
        }
    }

    /// The number of values.
    pub(super) fn values(&self) -> usize {
        self.rows - self.nulls
    }

    /// Returns the SQL condition that a value of a column is no number, no whole number as a text,
    /// or no date, if the values that were counted are all of this sort. It is not true of NULL.
    pub(super) fn odd_condition(&self, column: &str) -> Option<String> {
        let values = self.values();
        if values == 0 {
            return None;
        }
        if self.integers + self.reals == values {
            return Some(format!(
                "typeof({column}) NOT IN ('integer', 'real', 'null')"
            ));
        }
        let is_odd = if self.number_texts == values {
            format!("CAST(CAST({column} AS INTEGER) AS TEXT) <> {column} COLLATE BINARY")
        } else if self.dates == values {
            let day = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]";
            format!(
                "{column} NOT GLOB '{day}' AND {column} NOT GLOB '{day}[ T]*' \
                 OR substr({column}, 6, 2) = '00' OR substr({column}, 9, 2) = '00'"
            )
        } else {
            return None;
        };
        Some(format!(
            "(typeof({column}) NOT IN ('text', 'null') OR {is_odd})"
        ))
    }

    /// Whether some row has a text that stands for a missing value.
    pub(super) fn has_blanks(&self) -> bool {
        self.blanks > 0
    }

    /// Whether some row has no value that means anything.
    pub(super) fn has_gaps(&self) -> bool {
        self.nulls + self.blanks > 0
    }
}

/// Whether a text stands for a missing value.
pub(super) fn is_missing(text: &str) -> bool {
    let text = text.trim().to_lowercase();
    MISSING.contains(&text.as_str()) || text.starts_with(NO_DAY)
}

/// Returns the SQL condition that a column has a text that stands for a missing value.
pub(super) fn missing_condition(column: &str) -> String {
    let texts: Vec<String> = MISSING.iter().map(|text| literal(text)).collect();
    let text = format!("lower(trim({column}, ' ' || char(9, 10, 13)))");
    let texts = texts.join(", ");
    format!("({text} IN ({texts}) OR {text} LIKE '{NO_DAY}%')")
}

/// Whether a number can be a month `YYYYMM`.
fn is_month(number: i64) -> bool {
    (1000..=9999).contains(&(number / 100)) && (1..=12).contains(&(number % 100))
}

/// Whether a text begins with a date `YYYY-MM-DD` and has at most a time behind it. `2020-00-00` is
/// no date, but a year.
fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_digits = |range: std::ops::Range<usize>| {
        bytes
            .get(range)
            .is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    is_digits(0..4)
        && is_digits(5..7)
        && is_digits(8..10)
        && bytes[4] == b'-'
        && bytes[7] == b'-'
        && bytes[5..7] != *b"00"
        && bytes[8..10] != *b"00"
        && (bytes.len() == 10 || matches!(bytes[10], b' ' | b'T'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_by_what_they_look_like() {
        let texts = [
            "2020-01-31",
            "2020-01-31 10:00",
            "1999",
            "N/A",
            "007",
            "Ann",
        ];
        let mut values: Vec<SqlValue> = texts.map(|it| SqlValue::Text(it.to_owned())).to_vec();
        values.extend([SqlValue::Null, SqlValue::Integer(5), SqlValue::Real(0.5)]);
        let counts = ColumnStatistics::count(values.iter());
        assert_eq!((counts.rows, counts.nulls, counts.blanks), (9, 1, 1));
        assert_eq!((counts.dates, counts.years, counts.number_texts), (2, 1, 1));
        assert_eq!((counts.texts, counts.lettered, counts.distinct), (6, 2, 8));
        assert_eq!((counts.least, counts.greatest), (0.5, 1999.0));
        assert!(counts.has_gaps());
    }

    #[test]
    fn a_day_has_a_month_and_a_day() {
        for (text, expected) in [
            ("2020-01-31", (1, 0)),
            ("2020-10-10T10:00", (1, 0)),
            ("0000-00-00", (0, 1)),
            ("0000-00-00 00:00:00", (0, 1)),
            ("2020-00-10", (0, 0)),
            ("2020-10-00", (0, 0)),
            ("2020-1-31", (0, 0)),
        ] {
            let counts = ColumnStatistics::count([&SqlValue::Text(text.to_owned())].into_iter());
            assert_eq!((counts.dates, counts.blanks), expected, "{text}");
        }
    }

    #[test]
    fn missing_texts_are_no_values_of_a_flag() {
        let values = ["Y", "N", "", "N/A", "Y"].map(|it| SqlValue::Text(it.to_owned()));
        let counts = ColumnStatistics::count(values.iter());
        assert_eq!(counts.pair, ["N", "Y"]);
        assert!(counts.has_gaps());
    }

    #[test]
    fn sql_finds_the_texts_that_stand_for_a_missing_value() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        let sql = format!("SELECT {} FROM (SELECT ?1 AS a)", missing_condition("a"));
        let texts = ["\t\r\n", " N/A ", "\\N", "Nan", "nana", "0", "a"];
        let days = [NO_DAY, "0000-00-00 00:00:00", "2020-00-00", "2020-01-31"];
        for text in texts.iter().chain(&days).chain(MISSING) {
            let found: bool = connection
                .query_row(&sql, [text], |row| row.get(0))
                .unwrap();
            assert_eq!(found, is_missing(text), "{text:?}");
        }
    }

    #[test]
    fn sql_finds_the_values_that_are_unlike_all_others() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        let texts = [
            "7",
            "007",
            "",
            "n/a",
            "2020-01-31",
            "2020-01-31T10:00",
            "2020-01-31 10:00",
            "2020-01-31x",
            "2020-00-31",
            "2020-01-00",
            "2020-1-31",
        ];
        let mut values: Vec<SqlValue> = texts.map(|it| SqlValue::Text(it.to_owned())).to_vec();
        let blob = SqlValue::Blob(b"2020-01-31".to_vec());
        values.extend([
            SqlValue::Null,
            SqlValue::Integer(7),
            SqlValue::Real(0.5),
            blob,
        ]);
        let text = |text: &str| SqlValue::Text(text.to_owned());
        let sorts = [SqlValue::Integer(1), text("1"), text("2020-10-10")];
        for (sort, like) in sorts.iter().enumerate() {
            let counted = ColumnStatistics::count([like].into_iter());
            let is_odd = counted.odd_condition("a").unwrap();
            let sql = format!("SELECT ifnull({is_odd}, 0) FROM (SELECT ?1 AS a)");
            for value in &values {
                let found: bool = connection
                    .query_row(&sql, [value], |row| row.get(0))
                    .unwrap();
                let counts = ColumnStatistics::count([value].into_iter());
                let numbers = counts.integers + counts.reals;
                let same = [numbers, counts.number_texts, counts.dates][sort];
                assert_eq!(found, same != counts.values(), "{value:?} beside {like:?}");
            }
        }
        for other in [text("Ann"), SqlValue::Null] {
            let counted = ColumnStatistics::count([&other].into_iter());
            assert_eq!(counted.odd_condition("a"), None, "{other:?}");
        }
    }

    #[test]
    fn numbers_are_counted_as_the_years_months_and_days_that_they_can_be() {
        for (number, expected) in [
            (2020, (1, 0, 0)),
            (202012, (0, 1, 0)),
            (202013, (0, 0, 0)),
            (20200229, (0, 0, 1)),
            (99991231, (0, 0, 1)),
            (20200200, (0, 0, 0)),
            (20201301, (0, 0, 0)),
            (-20200229, (0, 0, 0)),
        ] {
            let text = SqlValue::Text(number.to_string());
            for value in [
                SqlValue::Integer(number),
                SqlValue::Real(number as f64),
                text,
            ] {
                let counts = ColumnStatistics::count([&value].into_iter());
                let found = (counts.years, counts.months, counts.days);
                assert_eq!(found, expected, "{value:?}");
            }
        }
    }
}
