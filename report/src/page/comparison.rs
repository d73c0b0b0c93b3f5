//! The comparison table: every policy against every split, with Wilson intervals.

use super::{
    bars::{interval_strip, rate_in_words},
    evaluations::{EVAL, Evaluations},
    markup::{Element, el},
    policy_class,
};
use crate::folder::RunRecords;
use crate::number;
use crate::records::{DecodingMode, Evaluation, PolicyName};

/// Heading, split and mode of the accuracy columns; those whose split was played are shown.
const COLUMNS: [Column; 5] = [
    ("new queries", EVAL, DecodingMode::Greedy),
    ("new queries, sampled", EVAL, DecodingMode::Sampled),
    // Spider's: its databases have no domains.
    ("new databases", "eval-unseen", DecodingMode::Greedy),
    (
        "new databases",
        "eval-unseen/database",
        DecodingMode::Greedy,
    ),
    ("new domains", "eval-unseen/domain", DecodingMode::Greedy),
];

type Column = (&'static str, &'static str, DecodingMode);

fn columns(evaluations: Evaluations<'_>) -> Vec<Column> {
    let is_played = |(_, split, mode): &Column| {
        let mut policies = PolicyName::ALL.into_iter();
        policies.any(|policy| evaluations.last(policy, split, *mode).is_some())
    };
    COLUMNS.into_iter().filter(is_played).collect()
}

pub(super) fn section(records: &RunRecords) -> Option<Element> {
    let evaluations = Evaluations(&records.evaluations);
    let policies = evaluated(evaluations);
    if policies.is_empty() {
        return None;
    }
    let note = broken_off(evaluations, &policies);
    let rows = policies.into_iter().map(|policy| row(evaluations, policy));
    let table = el("table")
        .class("comparison")
        .child(el("thead").child(heading(evaluations)))
        .child(el("tbody").children(rows));
    Some(
        el("section")
            .attr("id", "comparison")
            .child(el("h2").text("Who answers how many"))
            .child(el("div").class("scroll").attr("tabindex", 0).child(table))
            .child(el("p").class("caption").text(
                "Share of questions answered right, in per cent, with Wilson's 95\u{a0}% interval. New queries: databases known from \
                 training, other questions (split eval). New databases and new domains were never trained on (splits \
                 eval-unseen). Greedy play except where sampled; random and oracle are scripted; the base is asked a quarter of the questions. \
                 Reward, steps and malformed calls are of the first column.",
            ))
            .child(note),
    )
}

/// The table's rates as text; empty where nothing was evaluated.
pub(super) fn text(records: &RunRecords) -> String {
    let evaluations = Evaluations(&records.evaluations);
    let policies = evaluated(evaluations);
    if policies.is_empty() {
        return String::new();
    }
    let mut text = format!("{:>18}", "% right");
    let columns = columns(evaluations);
    for (name, ..) in &columns {
        text += &format!("  {name:>21}");
    }
    text.push('\n');
    for policy in policies {
        text += &format!("{:>18}", policy.to_string());
        for &(_, split, mode) in &columns {
            let rate = evaluations
                .last(policy, split, mode)
                .filter(|e| e.questions > 0)
                .map_or("·".to_owned(), |e| number::percent(e.success_rate));
            text += &format!("  {rate:>21}");
        }
        text.push('\n');
    }
    text
}

/// The policies that have a row.
fn evaluated(evaluations: Evaluations<'_>) -> Vec<PolicyName> {
    PolicyName::ALL
        .into_iter()
        .filter(|policy| {
            COLUMNS
                .iter()
                .any(|(_, split, mode)| evaluations.last(*policy, split, *mode).is_some())
        })
        .collect()
}

/// Says which figures episodes that broke off have made worse.
fn broken_off(evaluations: Evaluations<'_>, policies: &[PolicyName]) -> Option<Element> {
    let shown = policies.iter().flat_map(|policy| {
        COLUMNS
            .iter()
            .filter_map(|(_, split, mode)| evaluations.last(*policy, split, *mode))
    });
    let failed: Vec<String> = shown
        .filter(|e| e.failed > 0)
        .map(|e| {
            format!(
                "{} of {} ({} on {}, {})",
                e.failed, e.questions, e.policy, e.split, e.mode
            )
        })
        .collect();
    (!failed.is_empty()).then(|| {
        el("p").class("note").text(format!(
            "Episodes that broke off for a reason outside the policy, and count as wrong: {}.",
            failed.join(", ")
        ))
    })
}

fn heading(evaluations: Evaluations<'_>) -> Element {
    let heading = |name: &str, detail: String| {
        el("th")
            .attr("scope", "col")
            .text(name)
            .child(el("small").text(detail))
    };
    let asked = |split: &str, mode| {
        let counts = PolicyName::ALL
            .into_iter()
            .filter_map(|p| Some(evaluations.last(p, split, mode)?.questions));
        counts
            .max()
            .map_or(String::new(), |n| format!("n = {}", number::count(n)))
    };
    el("tr")
        .child(el("th").attr("scope", "col").text("Policy"))
        .children(
            columns(evaluations)
                .into_iter()
                .map(|(name, split, mode)| heading(name, asked(split, mode))),
        )
        .child(heading("reward", "mean".to_owned()))
        .child(heading("steps", "mean".to_owned()))
        .child(heading("malformed", "% of turns".to_owned()))
}

fn row(evaluations: Evaluations<'_>, policy: PolicyName) -> Element {
    let class = policy_class(policy);
    let cells = columns(evaluations)
        .into_iter()
        .map(|(_, split, mode)| cell(class, evaluations.last(policy, split, mode)));
    let first = evaluations.last(policy, EVAL, DecodingMode::Greedy);
    let figure = |show: fn(&Evaluation) -> String| {
        el("td")
            .class("figure")
            .text(first.map_or("·".to_owned(), show))
    };
    el("tr")
        .class(class)
        .child(
            el("th")
                .attr("scope", "row")
                .child(el("span").class("swatch"))
                .text(policy),
        )
        .children(cells)
        .child(figure(|e| number::signed(e.mean_reward)))
        .child(figure(|e| format!("{:.1}", e.mean_steps)))
        .child(figure(|e| number::percent(e.malformed_rate)))
}

fn cell(class: &str, evaluation: Option<&Evaluation>) -> Element {
    let Some(e) = evaluation.filter(|e| e.questions > 0) else {
        return el("td").class("rate").text("·");
    };
    let interval = (e.wilson_low, e.wilson_high);
    el("td")
        .class("rate")
        .attr(
            "title",
            rate_in_words(e.success_rate, interval, e.correct, e.questions),
        )
        .child(el("b").text(number::percent(e.success_rate)))
        .child(el("small").text(format!(
            "{}–{}",
            number::percent(interval.0),
            number::percent(interval.1)
        )))
        .child(interval_strip(class, e.success_rate, interval))
}
