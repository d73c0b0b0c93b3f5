//! The top of the page: the result in one sentence, what was trained on what, and how long it took.
//!
//! Invariant: every claim is computed. A change is called one only where the two Wilson intervals do not overlap.

use super::{
    bars::rate_in_words,
    evaluations::{EVAL, Evaluations},
    markup::{Element, el},
};
use crate::folder::RunRecords;
use crate::number;
use crate::records::{DecodingMode, Evaluation, PolicyName, RunInfo, RunStatus, TrainingStage};

pub(super) fn section(records: &RunRecords) -> Element {
    let evaluations = Evaluations(&records.evaluations);
    let last = |policy| evaluations.last(policy, EVAL, DecodingMode::Greedy);
    let (warm, grpo) = (last(PolicyName::WarmStart), last(PolicyName::Grpo));
    el("header")
        .child(
            el("p")
                .class("eyebrow")
                .text(eyebrow(records.info.as_ref())),
        )
        .child(el("h1").text(title(warm, grpo)))
        .child(status(records))
        .child(
            el("p")
                .class("lead")
                .text(lead(warm, grpo, records.info.as_ref())),
        )
        .child(against_imitation(grpo, last(PolicyName::OracleImitation)))
        .child(facts(records))
}

fn eyebrow(info: Option<&RunInfo>) -> String {
    match info {
        Some(info) => format!("sqlenv · {}", info.name),
        None => "sqlenv".to_owned(),
    }
}

fn title(warm: Option<&Evaluation>, grpo: Option<&Evaluation>) -> String {
    match (warm, grpo) {
        (Some(warm), Some(grpo)) => {
            let (from, to) = (percent(warm), percent(grpo));
            match compare(warm, grpo) {
                Verdict::Higher => {
                    format!("GRPO raised accuracy on new questions from {from} to {to}")
                }
                Verdict::Lower => {
                    format!("GRPO lowered accuracy on new questions from {from} to {to}")
                }
                Verdict::Unclear => {
                    format!(
                        "GRPO made no clear difference on new questions: {from} before, {to} after"
                    )
                }
            }
        }
        (None, Some(grpo)) => format!("GRPO answers {} of new questions", percent(grpo)),
        (Some(warm), None) => {
            format!(
                "The warm start answers {} of new questions; GRPO has not been evaluated",
                percent(warm)
            )
        }
        (None, None) => "Nothing has been evaluated yet".to_owned(),
    }
}

fn lead(warm: Option<&Evaluation>, grpo: Option<&Evaluation>, info: Option<&RunInfo>) -> String {
    let in_words = |e: &Evaluation| {
        rate_in_words(
            e.success_rate,
            (e.wilson_low, e.wilson_high),
            e.correct,
            e.questions,
        )
    };
    let mut text = String::new();
    if let Some(warm) = warm {
        text += &format!("Warm start: {} right. ", in_words(warm));
    }
    if let Some(grpo) = grpo {
        text += &format!(
            "After {} steps of GRPO: {} right. ",
            grpo.step,
            in_words(grpo)
        );
    }
    if let (Some(warm), Some(grpo)) = (warm, grpo) {
        let points = 100.0 * (grpo.success_rate - warm.success_rate);
        let apart = match compare(warm, grpo) {
            Verdict::Unclear => "overlap",
            _ => "do not overlap",
        };
        text += &format!(
            "That is {} points; the 95\u{a0}% intervals {apart}. ",
            number::signed_points(points)
        );
    }
    if text.is_empty() {
        return "This page fills as the run goes on: metrics with every step, accuracy with every evaluation.".to_owned();
    }
    text + &asked(info)
}

/// What the questions were, as far as the run knows how they differ from those of training.
fn asked(info: Option<&RunInfo>) -> String {
    match info.and_then(|info| info.eval_queries_in_train) {
        Some(0) => "Greedy play on the eval split, whose queries were never trained on.".to_owned(),
        Some(shared) => format!(
            "Greedy play on the eval split, {} of whose questions share their SQL with a training question.",
            number::count(shared)
        ),
        None => "Greedy play on the eval split.".to_owned(),
    }
}

/// What GRPO is worth beside the plainest alternative: imitating the oracle and nothing else.
fn against_imitation(grpo: Option<&Evaluation>, imitation: Option<&Evaluation>) -> Option<Element> {
    let (grpo, imitation) = (grpo?, imitation?);
    let verdict = match compare(imitation, grpo) {
        Verdict::Higher => "GRPO ends clearly above it",
        Verdict::Lower => "GRPO ends clearly below it",
        Verdict::Unclear => "the difference from GRPO is not clear",
    };
    let text = format!(
        "For comparison, imitating the oracle alone reaches {} ({} to {}); {verdict}.",
        percent(imitation),
        number::percent(imitation.wilson_low),
        number::percent(imitation.wilson_high),
    );
    Some(el("p").class("lead quiet").text(text))
}

fn status(records: &RunRecords) -> Option<Element> {
    let done = records
        .steps
        .iter()
        .filter(|s| s.stage == TrainingStage::Grpo)
        .map(|s| s.step)
        .max();
    let done = done.map_or("before its first GRPO step".to_owned(), |s| {
        format!("at GRPO step {s}")
    });
    let text = match records.info.as_ref()?.status {
        RunStatus::Finished => return None,
        RunStatus::Running => {
            format!("This run had not ended when the page was made; it stood {done}.")
        }
        RunStatus::Interrupted => format!("This run was stopped {done}. It can be resumed."),
    };
    Some(el("p").class("banner").text(text))
}

fn facts(records: &RunRecords) -> Element {
    let mut facts: Vec<(&str, String, String)> = Vec::new();
    if let Some(info) = &records.info {
        facts.push((
            "Policy",
            format!("{} parameters", number::short_count(info.parameters)),
            info.model.clone(),
        ));
        let train = info.questions.get("train").copied().unwrap_or(0);
        facts.push((
            "Data",
            format!("{} training questions", number::count(train)),
            format!(
                "{}, {} databases",
                info.dataset,
                number::count(info.databases)
            ),
        ));
    }
    let seconds: f64 = records.timing.iter().map(|s| s.seconds).sum();
    if seconds > 0.0 {
        let machine = records
            .info
            .as_ref()
            .map_or(String::new(), |i| i.machine.clone());
        facts.push(("Time", number::seconds(seconds), machine));
    }
    for (name, stage) in [
        ("Warm start", TrainingStage::Sft),
        ("GRPO", TrainingStage::Grpo),
    ] {
        if let Some(last) = records.steps.iter().rfind(|s| s.stage == stage) {
            let tokens = last.metrics.get("num_tokens").map_or(String::new(), |t| {
                format!("{} tokens", number::short_count(*t as u64))
            });
            facts.push((name, format!("{} steps", number::count(last.step)), tokens));
        }
    }
    el("dl")
        .class("facts")
        .children(facts.into_iter().map(|(name, value, detail)| {
            el("div")
                .child(el("dt").text(name))
                .child(el("dd").text(value).child(el("small").text(detail)))
        }))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Higher,
    Lower,
    Unclear,
}

fn compare(before: &Evaluation, after: &Evaluation) -> Verdict {
    if after.wilson_low > before.wilson_high {
        Verdict::Higher
    } else if after.wilson_high < before.wilson_low {
        Verdict::Lower
    } else {
        Verdict::Unclear
    }
}

fn percent(evaluation: &Evaluation) -> String {
    format!("{} %", number::percent(evaluation.success_rate))
}
