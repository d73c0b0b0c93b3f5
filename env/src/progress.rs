//! How close returned rows come to the gold rows. Pure.
//!
//! The closeness is `0.25 × cardinality + 0.50 × overlap + 0.25 × range`, rounded to the nearest of
//! five levels, so that the reward does not reveal the gold answer. Where neither side has numbers,
//! it is `0.25 × cardinality + 0.75 × overlap`: a blind text would else get the range for nothing.
//! Cardinality is `SQLEnv`'s published formula. Overlap and range are not published and are defined
//! here.

use std::borrow::Cow;

use crate::rows::{Cell, ResultRows};

/// The level of rows that match the gold rows. Levels go from 0 to this.
pub(crate) const TOP_LEVEL: u32 = 4;

/// The parts of a result that count for closeness. It borrows the result's texts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResultSummary<'a> {
    row_count: usize,
    /// Distinct cell texts, sorted.
    cells: Vec<Cow<'a, str>>,
    /// Least and greatest number among the cells.
    range: Option<(f64, f64)>,
}

impl<'a> ResultSummary<'a> {
    /// Summarises rows. Both sides of a comparison must hold at most the same number of rows.
    pub(crate) fn new(rows: &'a ResultRows) -> Self {
        let all_cells = || rows.rows.iter().flatten();
        let mut cells: Vec<Cow<'a, str>> = all_cells()
            .map(|cell| match cell {
                Cell::Text(text) => Cow::Borrowed(text.as_str()),
                other => Cow::Owned(other.to_string()),
            })
            .collect();
        cells.sort_unstable();
        cells.dedup();
        let range =
            all_cells()
                .filter_map(number)
                .fold(None, |range: Option<(f64, f64)>, number| {
                    let (least, greatest) = range.unwrap_or((number, number));
                    Some((least.min(number), greatest.max(number)))
                });
        Self {
            row_count: rows.rows.len(),
            cells,
            range,
        }
    }

    /// Returns the same summary with texts of its own.
    pub(crate) fn into_owned(self) -> ResultSummary<'static> {
        let cells = self.cells.into_iter();
        ResultSummary {
            row_count: self.row_count,
            cells: cells.map(|cell| Cow::Owned(cell.into_owned())).collect(),
            range: self.range,
        }
    }

    /// Returns the closeness of `self` to `gold` as a level from 0 to [`TOP_LEVEL`].
    pub(crate) fn level(&self, gold: &ResultSummary<'_>) -> u32 {
        (self.closeness(gold) * f64::from(TOP_LEVEL)).round() as u32
    }

    /// Returns the closeness of `self` to `gold` in `[0, 1]`; 1 for equal summaries.
    pub(crate) fn closeness(&self, gold: &ResultSummary<'_>) -> f64 {
        let overlap = overlap(&self.cells, &gold.cells);
        let range = range_closeness(self.range, gold.range);
        0.25 * cardinality(self.row_count, gold.row_count)
            + 0.50 * overlap
            + 0.25 * range.unwrap_or(overlap)
    }
}

/// Returns `1 - |p - g| / max(p, g, 1)` for two row counts.
pub(crate) fn cardinality(predicted_rows: usize, gold_rows: usize) -> f64 {
    let larger = predicted_rows.max(gold_rows).max(1);
    1.0 - predicted_rows.abs_diff(gold_rows) as f64 / larger as f64
}

/// Returns the Jaccard index of two sorted sets; 1 for two empty sets.
fn overlap(left: &[Cow<'_, str>], right: &[Cow<'_, str>]) -> f64 {
    let shared = left
        .iter()
        .filter(|cell| right.binary_search(cell).is_ok())
        .count();
    match left.len() + right.len() - shared {
        0 => 1.0,
        union => shared as f64 / union as f64,
    }
}

/// Returns the mean closeness of the ends of two ranges: 0 where one side has no numbers; none
/// where neither side has any.
fn range_closeness(left: Option<(f64, f64)>, right: Option<(f64, f64)>) -> Option<f64> {
    match (left, right) {
        (None, None) => None,
        (Some(left), Some(right)) => {
            let ends = relative_closeness(left.0, right.0) + relative_closeness(left.1, right.1);
            Some(0.5 * ends)
        }
        _ => Some(0.0),
    }
}

/// Returns `1 - |a - b| / max(|a|, |b|)`, at least 0; 1 for equal numbers.
fn relative_closeness(a: f64, b: f64) -> f64 {
    if a == b {
        return 1.0;
    }
    (1.0 - (a - b).abs() / a.abs().max(b.abs())).max(0.0)
}

fn number(cell: &Cell) -> Option<f64> {
    match cell {
        Cell::Integer(number) => Some(*number as f64),
        Cell::Real(number) if number.is_finite() => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn profile(rows: Vec<Vec<Cell>>) -> ResultSummary<'static> {
        let rows = ResultRows {
            rows,
            complete: true,
        };
        ResultSummary::new(&rows).into_owned()
    }

    #[test]
    fn worked_levels() {
        let number = |number: i64| vec![Cell::Integer(number)];
        let text = |text: &str| vec![Cell::Text(text.to_owned())];
        for (gold, rows, level) in [
            (vec![number(39)], vec![number(39)], 4),
            // 0.25 + 0 + 0.25 × 38/39
            (vec![number(39)], vec![number(38)], 2),
            // 0.25 + 0 + 0
            (vec![number(39)], vec![text("x")], 1),
            // 0.125 + 0.25 + 0.1875: one of two cells, the same least number, half the greatest
            (vec![number(39)], vec![number(39), number(78)], 2),
            (vec![number(39)], vec![], 0),
            // Without numbers: 0.25 + 0.75 × 0, 0.125 + 0.75 × 1/2, 0.25 + 0.75 × 1
            (vec![text("y")], vec![text("x")], 1),
            (vec![text("y")], vec![text("y"), text("x")], 2),
            (vec![text("y")], vec![text("y")], 4),
        ] {
            let found = profile(rows.clone()).level(&profile(gold));
            assert_eq!(found, level, "{rows:?}");
        }
    }

    fn cell() -> impl Strategy<Value = Cell> {
        prop_oneof![
            Just(Cell::Null),
            any::<i64>().prop_map(Cell::Integer),
            any::<f64>()
                .prop_filter("SQLite has no NaN", |x| !x.is_nan())
                .prop_map(Cell::Real),
            "[ab]{0,2}".prop_map(Cell::Text),
        ]
    }

    proptest! {
        #[test]
        fn bounded_and_one_on_itself(
            left in proptest::collection::vec(proptest::collection::vec(cell(), 2), 0..6),
            right in proptest::collection::vec(proptest::collection::vec(cell(), 2), 0..6),
        ) {
            let (left, right) = (profile(left), profile(right));
            let closeness = left.closeness(&right);
            prop_assert!((0.0..=1.0).contains(&closeness), "{closeness}");
            prop_assert_eq!(left.level(&left), TOP_LEVEL);
        }
    }
}
