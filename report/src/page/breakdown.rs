//! Where it got better and how episodes end: by level, by database, actions, endings, and where the time went.

use std::collections::BTreeMap;

use actor::{CorrectCount, SuccessRate};

use super::{
    bars::{Mark, MarkRow, Part, PartRow, legend, mark_rows, part_rows, rate_in_words},
    episodes::{ACTIONS, Ending, count_actions},
    evaluations::{EVAL, Evaluations},
    figure,
    markup::{Element, el},
    policy_class,
};
use crate::folder::RunRecords;
use crate::number;
use crate::records::{DecodingMode, Evaluation, PolicyName, StageTime, Tally, Transcript};

const WIDTH: f64 = 430.0;
/// More databases than this are named in the caption only by their number.
const MOST_DATABASES: usize = 24;

pub(super) fn section(records: &RunRecords) -> Option<Element> {
    let evaluations = Evaluations(&records.evaluations);
    let figures: Vec<Element> = [
        before_and_after(evaluations, "By level", "level", |e| &e.by_level),
        endings(&records.transcripts),
        actions(&records.transcripts),
        before_and_after(evaluations, "By database", "database", |e| &e.by_database),
        time(&records.timing),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!figures.is_empty()).then(|| {
        el("section")
            .attr("id", "breakdown")
            .child(el("h2").text("Where it changed"))
            .child(el("div").class("pairs").children(figures))
    })
}

fn before_and_after(
    evaluations: Evaluations<'_>,
    title: &str,
    unit: &str,
    tallies: fn(&Evaluation) -> &BTreeMap<String, Tally>,
) -> Option<Element> {
    let played: Vec<&Evaluation> = [PolicyName::WarmStart, PolicyName::Grpo]
        .into_iter()
        .filter_map(|policy| evaluations.last(policy, EVAL, DecodingMode::Greedy))
        .collect();
    let names = tallies(played.last()?);
    if names.is_empty() {
        return None;
    }
    let rows: Vec<MarkRow> = names
        .iter()
        .take(MOST_DATABASES)
        .map(|(name, tally)| MarkRow {
            label: name.clone(),
            note: format!("n = {}", number::count(tally.questions)),
            marks: played
                .iter()
                .filter_map(|e| mark(e, tallies(e).get(name)?))
                .collect(),
        })
        .collect();
    let mut caption = format!(
        "Greedy accuracy on new queries for each {unit}; thin lines: Wilson's 95\u{a0}% interval."
    );
    if names.len() > rows.len() {
        caption += &format!(
            " The first {} of {} in order of name.",
            rows.len(),
            names.len()
        );
    }
    let description = format!("Accuracy {} before and after GRPO", title.to_lowercase());
    let key = el("ul").class("legend").children(played.iter().map(|e| {
        el("li")
            .class(policy_class(e.policy))
            .child(el("span").class("swatch round"))
            .text(e.policy)
    }));
    Some(figure(
        title,
        &caption,
        [key, mark_rows(&description, &rows, WIDTH)],
    ))
}

fn mark(evaluation: &Evaluation, tally: &Tally) -> Option<Mark> {
    if tally.questions == 0 {
        return None;
    }
    let score = SuccessRate::from(CorrectCount {
        questions: tally.questions,
        correct: tally.correct,
    });
    let (rate, interval) = (score.success_rate, (score.wilson_low, score.wilson_high));
    let words = rate_in_words(rate, interval, tally.correct, tally.questions);
    Some(Mark {
        class: policy_class(evaluation.policy),
        rate,
        interval,
        title: format!("{}: {words}", evaluation.policy),
    })
}

fn by_policy(transcripts: &[Transcript]) -> Vec<(PolicyName, Vec<&Transcript>)> {
    PolicyName::ALL
        .into_iter()
        .map(|policy| {
            (
                policy,
                transcripts
                    .iter()
                    .filter(|t| t.policy == policy)
                    .collect::<Vec<_>>(),
            )
        })
        .filter(|(_, played)| !played.is_empty())
        .collect()
}

fn endings(transcripts: &[Transcript]) -> Option<Element> {
    let mut seen = [false; Ending::ALL.len()];
    let rows: Vec<PartRow> = by_policy(transcripts)
        .into_iter()
        .map(|(policy, played)| {
            let parts = Ending::ALL.iter().enumerate().map(|(kind, ending)| {
                let count = played.iter().filter(|t| Ending::of(t) == *ending).count();
                let share = count as f64 / played.len() as f64;
                seen[kind] |= count > 0;
                Part {
                    kind,
                    size: share,
                    text: format!("{:.0} %", 100.0 * share),
                    title: format!("{}: {count} of {}", ending.name(), played.len()),
                }
            });
            PartRow {
                label: policy.to_string(),
                parts: parts.collect(),
                total: format!("n={}", played.len()),
            }
        })
        .collect();
    let names = Ending::ALL
        .iter()
        .enumerate()
        .filter(|(kind, _)| seen[*kind]);
    let key = legend("ending", names.map(|(kind, e)| (kind, e.name().to_owned())));
    let drawing = part_rows("How episodes end, by policy", "ending", &rows, WIDTH);
    (!rows.is_empty()).then(|| {
        figure(
            "How episodes end",
            "From the kept transcripts. A wrong episode counts once: malformed call, then budget spent, no query, SQL error in the \
             last query, else wrong SQL or answer.",
            [key, drawing],
        )
    })
}

fn actions(transcripts: &[Transcript]) -> Option<Element> {
    let mut seen = [false; ACTIONS.len()];
    let rows: Vec<PartRow> = by_policy(transcripts)
        .into_iter()
        .map(|(policy, played)| {
            let counts = count_actions(&played);
            let episodes = played.len() as f64;
            let parts = counts.iter().enumerate().map(|(kind, count)| {
                seen[kind] |= *count > 0;
                let mean = *count as f64 / episodes;
                Part {
                    kind,
                    size: mean,
                    text: format!("{mean:.1}"),
                    title: format!("{}: {mean:.2} per episode", ACTIONS[kind]),
                }
            });
            PartRow {
                label: policy.to_string(),
                parts: parts.collect(),
                total: format!("{:.1}", counts.iter().sum::<u64>() as f64 / episodes),
            }
        })
        .collect();
    let names = ACTIONS.iter().enumerate().filter(|(kind, _)| seen[*kind]);
    let key = legend(
        "action",
        names.map(|(kind, name)| (kind, (*name).to_owned())),
    );
    let drawing = part_rows("Actions per episode, by policy", "action", &rows, WIDTH);
    (!rows.is_empty()).then(|| {
        figure(
            "Actions per episode",
            "Mean number of actions of each kind, from the kept transcripts.",
            [key, drawing],
        )
    })
}

fn time(timing: &[StageTime]) -> Option<Element> {
    let total: f64 = timing.iter().map(|s| s.seconds).sum();
    if total <= 0.0 {
        return None;
    }
    let in_words = |s: &StageTime| format!("{} {}", s.stage, number::seconds(s.seconds));
    let parts = timing.iter().enumerate().map(|(i, stage)| Part {
        kind: i % 8,
        size: stage.seconds,
        text: format!("{:.0} %", 100.0 * stage.seconds / total),
        title: in_words(stage),
    });
    let row = PartRow {
        label: String::new(),
        parts: parts.collect(),
        total: String::new(),
    };
    let key = legend(
        "time",
        timing.iter().enumerate().map(|(i, s)| (i % 8, in_words(s))),
    );
    let drawing = part_rows("Time by stage", "time", &[row], WIDTH);
    let caption = format!("Wall-clock time, {} in all.", number::seconds(total));
    Some(figure("Where the time went", &caption, [drawing, key]))
}
