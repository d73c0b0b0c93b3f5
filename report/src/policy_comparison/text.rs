//! A comparison of policies as text.

use std::{collections::BTreeMap, fmt::Write as _};

use actor::CorrectCount;

use super::{ComparisonRow, PolicyComparison, p_in_words};
use crate::{number, safe_line};

/// Levels or databases that fit beside each other. The page shows more.
const MOST_COLUMNS: usize = 8;

/// Returns the table, one block for each split, and the accuracy by level.
pub(super) fn table(comparison: &PolicyComparison) -> String {
    let mut text = format!(
        "data {}, seed {}, samples at temperature {}\n\n",
        safe_line(&comparison.dataset),
        comparison.seed,
        comparison.temperature
    );
    for (split, questions) in &comparison.questions {
        let rows: Vec<&ComparisonRow> = of_split(comparison, split).collect();
        if rows.is_empty() {
            continue;
        }
        let width = name_width(&rows);
        let _ = writeln!(text, "{} ({} questions)", safe_line(split), questions.len());
        let _ = writeln!(
            text,
            "  {:<width$}  shots  % right      95 %         against the first         difference                  pass@k",
            "policy"
        );
        for row in &rows {
            let _ = writeln!(text, "  {}", line(row, width));
        }
        text += &by_part("by level", &rows, width, |row| &row.greedy.by_level);
        text += &by_part("by database", &rows, width, |row| &row.greedy.by_database);
        text.push('\n');
    }
    let _ = writeln!(text, "limits: {}", safe_line(&comparison.limits_in_words()));
    text
}

/// Returns the rows of a split.
pub(super) fn of_split<'a>(
    comparison: &'a PolicyComparison,
    split: &'a str,
) -> impl Iterator<Item = &'a ComparisonRow> {
    comparison.rows.iter().filter(move |row| row.split == split)
}

fn name_width(rows: &[&ComparisonRow]) -> usize {
    let widths = rows.iter().map(|row| row.policy.chars().count());
    widths.max().unwrap_or_default().max(6)
}

fn line(row: &ComparisonRow, width: usize) -> String {
    let success = row.greedy.success;
    let interval = format!(
        "{}–{}",
        number::percent(success.wilson_low),
        number::percent(success.wilson_high)
    );
    let mut line = format!(
        "{:<width$}  {:>5}  {:>7}  {interval:>11}  {:<24}  {:<26}  {}",
        safe_line(&row.policy),
        row.shots,
        number::percent(success.success_rate),
        against(row),
        difference(row),
        pass_at(row),
    );
    if row.greedy.failed > 0 {
        let _ = write!(line, "  {} failed and count as wrong", row.greedy.failed);
    }
    line.trim_end().to_owned()
}

/// Returns the difference to the first row in words.
pub(super) fn against(row: &ComparisonRow) -> String {
    row.against_first.map_or_else(String::new, |it| {
        let p_value = p_in_words(it.p_value);
        format!("+{} −{}, {p_value}", it.gained, it.lost)
    })
}

/// Returns the difference of the accuracies in points, with its interval if there is one.
pub(super) fn difference(row: &ComparisonRow) -> String {
    let points = |accuracy: f64| number::signed(100.0 * accuracy, 1);
    row.against_first
        .map_or_else(String::new, |it| match it.interval {
            Some((low, high)) => {
                let (low, high) = (points(low), points(high));
                format!("{} ({low} to {high})", points(it.accuracy))
            }
            None => points(it.accuracy),
        })
}

/// Returns pass@k for each k.
pub(super) fn pass_at(row: &ComparisonRow) -> String {
    let Some(sampled) = &row.sampled else {
        return String::new();
    };
    let rates = sampled.pass_at.iter();
    let rates = rates.map(|(k, rate)| format!("@{k} {}", number::percent(*rate)));
    rates.collect::<Vec<_>>().join(", ")
}

/// Returns the accuracy by a property of questions, if there are several values of it, and not more
/// than a terminal is wide.
fn by_part(
    heading: &str,
    rows: &[&ComparisonRow],
    width: usize,
    counts: impl Fn(&ComparisonRow) -> &BTreeMap<String, CorrectCount>,
) -> String {
    let names: Vec<&String> = counts(rows[0]).keys().collect();
    if !(2..=MOST_COLUMNS).contains(&names.len()) {
        return String::new();
    }
    let width = width.max(heading.len());
    let column = |name: &str| name.chars().count().max(9);
    let mut text = format!("  {heading:<width$}  shots");
    for name in &names {
        let _ = write!(text, "  {:>1$}", safe_line(name), column(name));
    }
    text.push('\n');
    for row in rows {
        let _ = write!(
            text,
            "  {:<width$}  {:>5}",
            safe_line(&row.policy),
            row.shots
        );
        for name in &names {
            let rate = counts(row).get(*name);
            let rate = rate.map_or(0.0, |it| it.correct as f64 / it.questions.max(1) as f64);
            let _ = write!(text, "  {:>1$}", number::percent(rate), column(name));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::comparison;

    #[test]
    fn a_table_has_a_line_for_each_policy() {
        let text = comparison().text();
        assert!(text.contains("eval (1 questions)"), "{text}");
        assert!(text.contains("base              0     14.3"), "{text}");
        assert!(text.contains("+6 −1, p = 0.125          +71.4 "), "{text}");
        assert!(text.contains("@1 78.6, @2 85.7"), "{text}");
        let limits =
            "limits: 8 env steps, 96 tokens a turn, 768 tokens of context (base, runs/run-001)";
        assert!(text.contains(limits), "{text}");
    }
}
