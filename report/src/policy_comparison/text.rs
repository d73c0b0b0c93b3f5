//! A comparison of policies as text.

use std::fmt::Write as _;

use super::{ComparisonRow, PolicyComparison, p_in_words};
use crate::{number, safe_line};

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
            "  {:<width$}  shots  % right      95 %         against the first         pass@k",
            "policy"
        );
        for row in &rows {
            let _ = writeln!(text, "  {}", line(row, width));
        }
        text += &by_level(&rows, width);
        text.push('\n');
    }
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
        "{:<width$}  {:>5}  {:>7}  {interval:>11}  {:<24}  {}",
        safe_line(&row.policy),
        row.shots,
        number::percent(success.success_rate),
        against(row),
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

/// Returns pass@k for each k.
pub(super) fn pass_at(row: &ComparisonRow) -> String {
    let Some(sampled) = &row.sampled else {
        return String::new();
    };
    let rates = sampled.pass_at.iter();
    let rates = rates.map(|(k, rate)| format!("@{k} {}", number::percent(*rate)));
    rates.collect::<Vec<_>>().join(", ")
}

/// Returns the accuracy by level, if there are several.
fn by_level(rows: &[&ComparisonRow], width: usize) -> String {
    let levels: Vec<&String> = rows[0].greedy.by_level.keys().collect();
    if levels.len() < 2 {
        return String::new();
    }
    let mut text = format!("  {:<width$}  shots", "by level");
    for level in &levels {
        let _ = write!(text, "  {:>9}", safe_line(level));
    }
    text.push('\n');
    for row in rows {
        let _ = write!(
            text,
            "  {:<width$}  {:>5}",
            safe_line(&row.policy),
            row.shots
        );
        for level in &levels {
            let rate = row.greedy.by_level.get(*level);
            let rate = rate.map_or(0.0, |it| it.correct as f64 / it.questions.max(1) as f64);
            let _ = write!(text, "  {:>9}", number::percent(rate));
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
        assert!(text.contains("+6 −1, p = 0.125"), "{text}");
        assert!(text.contains("@1 78.6, @2 85.7"), "{text}");
    }
}
