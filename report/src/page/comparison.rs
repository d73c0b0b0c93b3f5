//! The comparison table: the accuracy of every policy on every split, with Wilson intervals.

use maud::{Markup, html};

use super::{
    elements::{policy_class, rate_cell},
    evaluations::{Evaluations, UNSEEN_DATABASE_SPLIT, UNSEEN_DOMAIN_SPLIT, UNSEEN_SPLIT},
    safe_line,
};
use crate::{
    number,
    records::{
        DecodingMode, EVAL_SPLIT, Evaluation, MESSY_SCHEMAS_SPLIT, NEW_WORDS_SPLIT, PolicyName,
    },
    run_records::RunRecords,
};

/// Heading, split and decoding mode of an accuracy column.
type AccuracyColumn = (&'static str, &'static str, DecodingMode);

/// All accuracy columns. The table has those whose split was evaluated.
const COLUMNS: [AccuracyColumn; 7] = [
    ("new words", NEW_WORDS_SPLIT, DecodingMode::Greedy),
    ("messy schemas", MESSY_SCHEMAS_SPLIT, DecodingMode::Greedy),
    ("new queries", EVAL_SPLIT, DecodingMode::Greedy),
    ("new queries, sampled", EVAL_SPLIT, DecodingMode::Sampled),
    ("new databases", UNSEEN_SPLIT, DecodingMode::Greedy),
    ("new databases", UNSEEN_DATABASE_SPLIT, DecodingMode::Greedy),
    ("new domains", UNSEEN_DOMAIN_SPLIT, DecodingMode::Greedy),
];

/// What the columns of a run mean.
const OF_RUN: &str = "New queries: questions that are not in the training data, on databases that \
    are (split eval). New databases and new domains: not in this run's training data at all \
    (splits eval-unseen). Decoding is greedy unless the heading says sampled. Random and oracle \
    are scripted policies. Oracle imitation starts where GRPO starts and learns demonstrations \
    with the gold SQL, by default as many tokens as GRPO trained on. ";

/// What the columns of a pretraining mean.
const OF_PRETRAINING: &str = "New words: generated databases of words that the pretraining does \
    not have. Messy schemas: the same, all with messy schemas. New databases: domains and names of \
    the pretraining, with other rows and columns. New domains: domains that it does not have. \
    Decoding is greedy. Base: the policy after its pretraining. ";

/// The evaluations that the table shows.
struct ComparisonTable<'a> {
    evaluations: Evaluations<'a>,
    policies: Vec<PolicyName>,
    columns: Vec<AccuracyColumn>,
}

impl<'a> ComparisonTable<'a> {
    /// Returns the table, unless nothing was evaluated.
    fn new(records: &'a RunRecords) -> Option<Self> {
        let evaluations = Evaluations(&records.evaluations);
        let is_evaluated = |policy: PolicyName, (_, split, mode): &AccuracyColumn| {
            evaluations.last(policy, split, *mode).is_some()
        };
        let mut policies = PolicyName::ALL.to_vec();
        policies.retain(|policy| COLUMNS.iter().any(|column| is_evaluated(*policy, column)));
        let mut columns = COLUMNS.to_vec();
        columns.retain(|column| policies.iter().any(|policy| is_evaluated(*policy, column)));
        (!policies.is_empty()).then_some(Self {
            evaluations,
            policies,
            columns,
        })
    }

    /// Returns the evaluations of a policy, one per column.
    fn row(&self, policy: PolicyName) -> impl Iterator<Item = Option<&'a Evaluation>> {
        let columns = self.columns.iter();
        columns.map(move |(_, split, mode)| self.evaluations.last(policy, split, *mode))
    }

    /// Returns the number of questions of a column. Some policies are asked fewer.
    fn questions(&self, column: usize) -> u64 {
        let policies = self.policies.iter();
        let questions = policies
            .filter_map(|policy| Some(self.row(*policy).nth(column)??.metrics.success.questions));
        questions.max().unwrap_or(0)
    }
}

pub(super) fn section(records: &RunRecords) -> Option<Markup> {
    let table = ComparisonTable::new(records)?;
    Some(html! {
        section #comparison {
            h2 { "Accuracy by policy" }
            div.scroll tabindex="0" {
                table.comparison {
                    thead { (heading(&table)) }
                    tbody { @for policy in &table.policies { (row(&table, *policy)) } }
                }
            }
            p.caption {
                "Share of questions with a right answer, in per cent, with Wilson's 95\u{a0}% "
                "interval, which is too narrow where several questions are about one query or "
                "database. "
                @if records.is_of_pretraining() { (OF_PRETRAINING) } @else {
                    (OF_RUN) @if let Some(base) = base(&table, records) { (base) " " }
                    "In a run with a warm start, base answers a quarter of the questions. "
                }
                "Reward, steps and malformed calls are those of the first column."
            }
            @if let Some(note) = failures(&table) { p.note { (note) } }
        }
    })
}

/// Says which model is called base, if one is: it need not be the embedded one, which `sqlenv
/// compare` calls base.
fn base(table: &ComparisonTable<'_>, records: &RunRecords) -> Option<String> {
    let is_shown = table.policies.contains(&PolicyName::Base);
    let model = records.info.as_ref().map(|info| &info.model);
    let model = model.map_or_else(String::new, |model| format!(" ({model})"));
    is_shown.then(|| format!("Base: the model before this run's training{model}."))
}

/// Returns the comparison table for a terminal. It is empty if nothing was evaluated.
pub fn summary(records: &RunRecords) -> String {
    let Some(table) = ComparisonTable::new(records) else {
        return String::new();
    };
    let mut text = format!("{:>18}", "% right");
    for (name, ..) in &table.columns {
        text += &format!("  {name:>21}");
    }
    text.push('\n');
    for &policy in &table.policies {
        text += &format!("{:>18}", policy.to_string());
        for evaluation in table.row(policy) {
            let success = evaluation
                .map(|e| e.metrics.success)
                .filter(|s| s.questions > 0);
            let rate = success.map_or("·".to_owned(), |s| number::percent(s.success_rate));
            text += &format!("  {rate:>21}");
        }
        text.push('\n');
    }
    if let Some(base) = base(&table, records) {
        text += &format!("{}\n", safe_line(&base));
    }
    text
}

/// Tells which rates are lower because episodes failed.
fn failures(table: &ComparisonTable<'_>) -> Option<String> {
    let shown = table
        .policies
        .iter()
        .flat_map(|policy| table.row(*policy))
        .flatten();
    let failed: Vec<String> = shown
        .filter(|e| e.metrics.failed > 0)
        .map(|e| {
            let (failed, questions) = (e.metrics.failed, e.metrics.success.questions);
            format!(
                "{failed} of {questions} ({} on {}, {})",
                e.policy, e.split, e.mode
            )
        })
        .collect();
    (!failed.is_empty()).then(|| {
        format!(
            "Episodes that failed for a reason outside the policy count as wrong: {}.",
            failed.join(", ")
        )
    })
}

fn heading(table: &ComparisonTable<'_>) -> Markup {
    let accuracies = table
        .columns
        .iter()
        .enumerate()
        .map(|(i, (name, ..))| (*name, format!("n = {}", number::count(table.questions(i)))));
    let means = [
        ("reward", "mean"),
        ("steps", "mean"),
        ("malformed", "% of turns"),
    ];
    let means = means.map(|(name, detail)| (name, detail.to_owned()));
    html! {
        tr {
            th scope="col" { "Policy" }
            @for (name, detail) in accuracies.chain(means) {
                th scope="col" { (name) small { (detail) } }
            }
        }
    }
}

fn row(table: &ComparisonTable<'_>, policy: PolicyName) -> Markup {
    let class = policy_class(policy);
    let first = table.row(policy).next().flatten();
    let means = first.map(|e| {
        [
            number::signed(e.metrics.mean_reward, 2),
            format!("{:.1}", e.metrics.mean_steps),
            number::percent(e.metrics.malformed_rate),
        ]
    });
    html! {
        tr class=(class) {
            th scope="row" { span.swatch {} (policy) }
            @for evaluation in table.row(policy) { (cell(class, evaluation)) }
            @for mean in means.unwrap_or(["·"; 3].map(str::to_owned)) { td.figure { (mean) } }
        }
    }
}

fn cell(class: &str, evaluation: Option<&Evaluation>) -> Markup {
    let Some(evaluation) = evaluation.filter(|e| e.metrics.success.questions > 0) else {
        return html! { td.rate { "·" } };
    };
    rate_cell(class, &evaluation.metrics.success)
}
