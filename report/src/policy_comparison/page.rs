//! A comparison of policies as an HTML page without scripts.

use std::collections::BTreeSet;

use actor::CorrectCount;
use maud::{DOCTYPE, Markup, html};

use super::{
    ComparisonRow, PolicyComparison,
    text::{against, difference, of_split, pass_at},
};
use crate::{
    number,
    page::{document_head, rate_cell, safe_text},
};

/// Renders the page.
pub(super) fn render(comparison: &PolicyComparison) -> String {
    let title = format!("Policies on {} · sqlenv", comparison.dataset);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (document_head(&title))
            body {
                main {
                    h1 { "Policies on " (comparison.dataset) }
                    @for split in comparison.questions.keys() { (section(comparison, split).unwrap_or_default()) }
                    (explanation(comparison))
                }
            }
        }
    };
    safe_text(&page.into_string())
}

fn section(comparison: &PolicyComparison, split: &str) -> Option<Markup> {
    let rows: Vec<&ComparisonRow> = of_split(comparison, split).collect();
    let questions = comparison.questions.get(split).map_or(0, Vec::len);
    (!rows.is_empty()).then(|| {
        html! {
            section {
                h2 { (split) }
                p { (number::count(questions as u64)) " questions." }
                (accuracy(&rows))
                (parts("By level", &rows, |row| &row.greedy.by_level).unwrap_or_default())
                (parts("By database", &rows, |row| &row.greedy.by_database).unwrap_or_default())
            }
        }
    })
}

fn accuracy(rows: &[&ComparisonRow]) -> Markup {
    html! {
        div.scroll tabindex="0" {
            table.comparison {
                thead {
                    tr {
                        @for name in [
                            "Policy", "Shots", "% right", "Against the first", "Difference",
                            "pass@k", "Reward", "Steps", "Malformed",
                        ] { th scope="col" { (name) } }
                    }
                }
                tbody { @for row in rows { (accuracy_row(row)) } }
            }
        }
    }
}

fn accuracy_row(row: &ComparisonRow) -> Markup {
    let metrics = &row.greedy;
    html! {
        tr {
            th scope="row" { (row.policy) }
            td.figure { (row.shots) }
            (rate_cell(class(row), &metrics.success))
            td.figure { (against(row)) }
            td.figure { (difference(row)) }
            td.figure { (pass_at(row)) }
            td.figure { (number::signed(metrics.mean_reward, 2)) }
            td.figure { (format!("{:.1}", metrics.mean_steps)) }
            td.figure { (number::percent(metrics.malformed_rate)) }
        }
        @if metrics.failed > 0 {
            tr { td colspan="9" {
                (metrics.failed) " episodes failed for a reason outside the policy and count as wrong."
            } }
        }
    }
}

/// Returns the colour of a row: those of reports for scripted policies and for where others start.
fn class(row: &ComparisonRow) -> &'static str {
    match row.policy.as_str() {
        "random" => "random",
        "oracle" => "oracle",
        _ if row.against_first.is_none() => "base",
        _ => "grpo",
    }
}

/// Renders the accuracy by a property of questions, if they have several values of it.
fn parts(
    heading: &str,
    rows: &[&ComparisonRow],
    counts: impl Fn(&ComparisonRow) -> &std::collections::BTreeMap<String, CorrectCount>,
) -> Option<Markup> {
    let names = rows.iter().flat_map(|row| counts(row).keys());
    let names: BTreeSet<&String> = names.collect();
    let cell = |row: &ComparisonRow, name: &String| match counts(row).get(name) {
        Some(CorrectCount { questions, correct }) => {
            let rate = *correct as f64 / (*questions).max(1) as f64;
            format!("{} ({correct}/{questions})", number::percent(rate))
        }
        None => "·".to_owned(),
    };
    (names.len() > 1).then(|| {
        html! {
            details {
                summary { (heading) }
                div.scroll tabindex="0" {
                    table.comparison {
                        thead { tr {
                            th scope="col" { "" }
                            @for row in rows {
                                th scope="col" { (row.policy) small { (row.shots) " shots" } }
                            }
                        } }
                        tbody { @for name in names { tr {
                            th scope="row" { (name) }
                            @for row in rows { td.figure { (cell(row, name)) } }
                        } } }
                    }
                }
            }
        }
    })
}

fn explanation(comparison: &PolicyComparison) -> Markup {
    // The whole hash is in the JSON and too long for a phone.
    let hash: String = comparison.data_sha256.chars().take(12).collect();
    html! {
        p.caption {
            "Share of questions with a right answer, with greedy decoding and Wilson's 95\u{a0}% "
            "interval. All policies of a split have the same questions. “Against the first” "
            "counts the questions that only this policy answered (+) and that only the first one "
            "answered (−), with the two-sided p-value of McNemar's exact test. “Difference” is "
            "in points of accuracy, with its 95\u{a0}% interval grouped by database, if there are "
            "ten or more. Wilson's interval and McNemar's test take questions for independent, so "
            "they are too certain if several are about one database. pass@k is the "
            "chance that one of k samples is right, at temperature " (comparison.temperature) ". "
            "Limits of an episode: " (comparison.limits_in_words()) ". "
            "Seed " (comparison.seed) ", data " (hash) "."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::comparison;

    #[test]
    fn a_page_shows_what_the_text_shows_and_escapes_names() {
        let page = comparison().page();
        for part in [
            "library &amp; &lt;co&gt;",
            "+6 −1, p = 0.125",
            "@2 85.7",
            "runs/run-001",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<script"), "no scripts");
    }
}
