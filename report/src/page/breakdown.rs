//! Accuracy by level and by database, how episodes end, their actions, and where the time went.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::{
    elements::{figure, policy_class, rate_in_words},
    episode_result::{ACTIONS, EpisodeResult, count_actions},
    evaluations::Evaluations,
};
use crate::{
    chart::{BarSegment, RatePoint, RateRow, StackedBar, rate_rows, stacked_bars},
    number,
    records::{CorrectCount, Evaluation, PolicyName, StageTime, SuccessRate, Transcript},
    run_records::RunRecords,
};

const WIDTH: f64 = 430.0;
/// Rows of a chart; the caption says that there are more.
const MAX_ROWS: usize = 24;
/// Colours of the stages in the style sheet.
const TIME_COLOURS: usize = 8;

pub(super) fn section(records: &RunRecords) -> Option<Markup> {
    let evaluations = Evaluations(&records.evaluations);
    let figures: Vec<Markup> = [
        before_and_after(evaluations, "By level", "level", |e| &e.metrics.by_level),
        results(&records.transcripts),
        actions(&records.transcripts),
        before_and_after(evaluations, "By database", "database", |e| {
            &e.metrics.by_database
        }),
        time(&records.timing),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!figures.is_empty()).then(|| {
        html! {
            section #breakdown {
                h2 { "What changed" }
                div.pairs { @for figure in figures { (figure) } }
            }
        }
    })
}

fn before_and_after(
    evaluations: Evaluations<'_>,
    title: &str,
    unit: &str,
    counts: fn(&Evaluation) -> &BTreeMap<String, CorrectCount>,
) -> Option<Markup> {
    let policies = [evaluations.start(), PolicyName::Grpo].into_iter();
    let evaluated: Vec<&Evaluation> = policies
        .filter_map(|policy| evaluations.greedy(policy))
        .collect();
    let newest = counts(evaluated.last()?);
    if newest.is_empty() {
        return None;
    }
    let row = |(name, count): (&String, &CorrectCount)| {
        let points = evaluated.iter();
        RateRow {
            label: name.clone(),
            note: format!("n = {}", number::count(count.questions)),
            points: points
                .filter_map(|e| rate_point(e.policy, *counts(e).get(name)?))
                .collect(),
        }
    };
    let rows: Vec<RateRow> = newest.iter().take(MAX_ROWS).map(row).collect();
    let mut caption = format!(
        "Greedy accuracy on new queries for each {unit}; thin lines: Wilson's 95\u{a0}% interval."
    );
    if newest.len() > rows.len() {
        caption += &format!(" The first {} of {} by name.", rows.len(), newest.len());
    }
    let description = format!("Accuracy {} before and after GRPO", title.to_lowercase());
    let drawing = html! {
        ul.legend {
            @for evaluation in &evaluated {
                li class=(policy_class(evaluation.policy)) {
                    span.swatch.round {} (evaluation.policy)
                }
            }
        }
        (rate_rows(&description, &rows, WIDTH))
    };
    Some(figure(title, &caption, &drawing))
}

fn rate_point(policy: PolicyName, count: CorrectCount) -> Option<RatePoint> {
    let success = SuccessRate::from(count);
    (count.questions > 0).then(|| RatePoint {
        class: policy_class(policy),
        rate: success.success_rate,
        interval: (success.wilson_low, success.wilson_high),
        tooltip: format!("{policy}: {}", rate_in_words(&success)),
    })
}

fn results(transcripts: &[Transcript]) -> Option<Markup> {
    let bar = |policy: PolicyName, transcripts: &[&Transcript]| {
        let total = transcripts.len();
        let segment = |(kind, result): (usize, &EpisodeResult)| {
            let is_result = |t: &&&Transcript| EpisodeResult::of(&t.episode) == *result;
            let count = transcripts.iter().filter(is_result).count();
            let share = count as f64 / total as f64;
            BarSegment {
                kind,
                size: share,
                text: format!("{:.0} %", 100.0 * share),
                tooltip: format!("{}: {count} of {total}", result.name()),
            }
        };
        StackedBar {
            label: policy.to_string(),
            segments: EpisodeResult::ALL.iter().enumerate().map(segment).collect(),
            total: format!("n={total}"),
        }
    };
    let caption = "From the recorded transcripts. A wrong episode counts once: failed for a \
        reason outside the policy, else malformed call, else budget spent, no query, SQL error in \
        the last query, else wrong SQL or answer.";
    let names = EpisodeResult::ALL.map(EpisodeResult::name);
    by_policy(
        "How episodes end",
        "ending",
        caption,
        &names,
        transcripts,
        bar,
    )
}

fn actions(transcripts: &[Transcript]) -> Option<Markup> {
    let bar = |policy: PolicyName, transcripts: &[&Transcript]| {
        let means = count_actions(transcripts).map(|n| n as f64 / transcripts.len() as f64);
        let segment = |(kind, mean): (usize, &f64)| BarSegment {
            kind,
            size: *mean,
            text: format!("{mean:.1}"),
            tooltip: format!("{}: {mean:.2} per episode", ACTIONS[kind]),
        };
        StackedBar {
            label: policy.to_string(),
            segments: means.iter().enumerate().map(segment).collect(),
            total: format!("{:.1}", means.iter().sum::<f64>()),
        }
    };
    let caption = "Mean number of actions of each kind, from the recorded transcripts.";
    by_policy(
        "Actions per episode",
        "action",
        caption,
        &ACTIONS,
        transcripts,
        bar,
    )
}

/// Draws a bar for each policy that has transcripts. `names` are the kinds of segments.
fn by_policy(
    title: &str,
    palette: &str,
    caption: &str,
    names: &[&str],
    transcripts: &[Transcript],
    bar: impl Fn(PolicyName, &[&Transcript]) -> StackedBar,
) -> Option<Markup> {
    let bars: Vec<StackedBar> = PolicyName::ALL
        .into_iter()
        .filter_map(|policy| {
            let of_policy = transcripts.iter().filter(|t| t.policy == policy);
            let of_policy: Vec<&Transcript> = of_policy.collect();
            (!of_policy.is_empty()).then(|| bar(policy, &of_policy))
        })
        .collect();
    let segments = bars
        .iter()
        .flat_map(|bar| &bar.segments)
        .filter(|s| s.size > 0.0);
    let seen: BTreeSet<usize> = segments.map(|segment| segment.kind).collect();
    let names = seen.into_iter().map(|kind| (kind, names[kind].to_owned()));
    let drawing = html! {
        (legend(palette, names))
        (stacked_bars(&format!("{title}, by policy"), palette, &bars, WIDTH))
    };
    (!bars.is_empty()).then(|| figure(title, caption, &drawing))
}

fn time(timing: &[StageTime]) -> Option<Markup> {
    let total: f64 = timing.iter().map(|s| s.seconds).sum();
    if total <= 0.0 {
        return None;
    }
    let in_words = |s: &StageTime| format!("{} {}", s.stage, number::seconds(s.seconds));
    let segment = |(i, stage): (usize, &StageTime)| BarSegment {
        kind: i % TIME_COLOURS,
        size: stage.seconds,
        text: format!("{:.0} %", 100.0 * stage.seconds / total),
        tooltip: in_words(stage),
    };
    let bar = StackedBar {
        label: String::new(),
        segments: timing.iter().enumerate().map(segment).collect(),
        total: String::new(),
    };
    let names = timing
        .iter()
        .enumerate()
        .map(|(i, s)| (i % TIME_COLOURS, in_words(s)));
    let drawing = html! {
        (stacked_bars("Time by stage", "time", &[bar], WIDTH))
        (legend("time", names))
    };
    let caption = format!("Wall-clock time, {} in total.", number::seconds(total));
    Some(figure("Time by stage", &caption, &drawing))
}

/// Lists colour and name of each kind.
fn legend(palette: &str, names: impl Iterator<Item = (usize, String)>) -> Markup {
    html! {
        ul.legend {
            @for (kind, name) in names {
                li { span.swatch.{ (palette) "-" (kind) } {} (name) }
            }
        }
    }
}
