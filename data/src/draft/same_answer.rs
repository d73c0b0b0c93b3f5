//! Compares results much as the verifier of the crate `env` compares answers.

use std::collections::BTreeSet;

use rusqlite::types::Value as SqlValue;

/// The verifier's bound for a gold answer of zero.
const NEARLY_ZERO: f64 = 1e-9;

/// Whether an agent that answers `other` would be right if `gold` is the gold answer: real numbers
/// may differ by one per cent. Lists are compared as sets of texts, without regard to case. Other
/// rows must have the same order here, which the verifier does not ask.
pub(super) fn is_same_answer(gold: &[Vec<SqlValue>], other: &[Vec<SqlValue>]) -> bool {
    let is_list = gold.len() > 1 && gold.iter().all(|row| row.len() == 1);
    if is_list {
        let is_list_too = other.iter().all(|row| row.len() == 1);
        return is_list_too && texts(gold) == texts(other);
    }
    let is_same_row = |(gold, other): (&Vec<SqlValue>, &Vec<SqlValue>)| {
        gold.len() == other.len() && gold.iter().zip(other).all(is_same_cell)
    };
    gold.len() == other.len() && gold.iter().zip(other).all(is_same_row)
}

fn texts(list: &[Vec<SqlValue>]) -> BTreeSet<String> {
    let text = |cell: &SqlValue| match cell {
        SqlValue::Text(text) => text.trim().to_lowercase(),
        cell => format!("{cell:?}"),
    };
    list.iter().flatten().map(text).collect()
}

fn is_same_cell((gold, other): (&SqlValue, &SqlValue)) -> bool {
    let (gold, other) = match (gold, other) {
        (SqlValue::Real(gold), SqlValue::Real(other)) => (*gold, *other),
        (SqlValue::Real(gold), SqlValue::Integer(other)) => (*gold, *other as f64),
        (gold, other) => return gold == other,
    };
    let bound = match gold == 0.0 {
        true => NEARLY_ZERO,
        false => gold.abs() / 100.0,
    };
    (gold - other).abs() <= bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_numbers_are_compared_like_the_verifier_does() {
        let real = SqlValue::Real;
        let whole = SqlValue::Integer;
        let text = |text: &str| SqlValue::Text(text.to_owned());
        for (gold, other, expected) in [
            (vec![vec![real(100.0)]], vec![vec![real(101.0)]], true),
            (vec![vec![real(100.0)]], vec![vec![real(101.5)]], false),
            (vec![vec![real(100.0)]], vec![vec![whole(99)]], true),
            (vec![vec![real(-100.0)]], vec![vec![real(100.0)]], false),
            (vec![vec![real(0.0)]], vec![vec![real(0.001)]], false),
            (vec![vec![whole(1000)]], vec![vec![whole(1001)]], false),
            (vec![vec![text("a")]], vec![vec![text("b")]], false),
            (
                vec![vec![text("a"), real(100.0)]],
                vec![vec![text("a"), real(100.5)]],
                true,
            ),
            (
                vec![vec![text("a"), real(100.0)]],
                vec![vec![text("b"), real(100.5)]],
                false,
            ),
            (
                vec![vec![real(100.0)], vec![real(5.0)]],
                vec![vec![real(100.5)], vec![real(5.0)]],
                false,
            ),
            (
                vec![vec![text("a")], vec![text("b")]],
                vec![vec![text("B")], vec![text("a")], vec![text("b ")]],
                true,
            ),
            (
                vec![vec![text("a")], vec![text("b")]],
                vec![vec![text("a")], vec![text("c")]],
                false,
            ),
            (vec![vec![real(1.0)]], vec![], false),
            (
                vec![vec![real(1.0)]],
                vec![vec![real(1.0), whole(1)]],
                false,
            ),
        ] {
            assert_eq!(
                is_same_answer(&gold, &other),
                expected,
                "{gold:?} {other:?}"
            );
        }
    }
}
