//! The top of the page: the result in one sentence, then model, data and time.
//!
//! Invariant: a change is claimed only if the two Wilson intervals do not overlap.

use std::cmp::Ordering;

use maud::{Markup, html};

use super::{
    elements::rate_in_words,
    evaluations::{Evaluations, UNSEEN_DOMAIN_SPLIT, UNSEEN_SPLIT},
};
use crate::{
    number,
    records::{
        DecodingMode, EVAL_SPLIT, Evaluation, NEW_WORDS_SPLIT, PolicyName, RunStatus, TrainingStage,
    },
    run_records::RunRecords,
};

pub(super) fn section(records: &RunRecords) -> Markup {
    let evaluations = Evaluations(&records.evaluations);
    let start = evaluations.greedy(evaluations.start());
    let grpo = evaluations.greedy(PolicyName::Grpo);
    let imitation = evaluations.greedy(PolicyName::OracleImitation);
    let info = records.info.as_ref();
    html! {
        header {
            p.eyebrow { "sqlenv" @if let Some(info) = info { " · " (info.name) } }
            h1 { (title(start, grpo, records)) }
            @if let Some(status) = status(records) { p.banner { (status) } }
            p.lead {
                (lead(start, grpo, records))
                @if let (Some(grpo), Some(imitation)) = (grpo, imitation) {
                    (against_imitation(grpo, imitation)) (on_new_databases(evaluations))
                }
            }
            dl.facts {
                @for (name, value, detail) in facts(records) {
                    div { dt { (name) } dd { (value) small { (detail) } } }
                }
            }
        }
    }
}

fn title(start: Option<&Evaluation>, grpo: Option<&Evaluation>, records: &RunRecords) -> String {
    let (from, to) = (start.map(percent), grpo.map(percent));
    let (from, to) = (from.unwrap_or_default(), to.unwrap_or_default());
    match (start, grpo) {
        (Some(start), Some(grpo)) => match compare(start, grpo) {
            Ordering::Greater => {
                format!("GRPO raised accuracy on new questions from {from} to {to}")
            }
            Ordering::Less => {
                format!("GRPO lowered accuracy on new questions from {from} to {to}")
            }
            Ordering::Equal => {
                format!("GRPO made no clear difference on new questions: {from} before, {to} after")
            }
        },
        (None, Some(_)) => format!("GRPO answers {to} of new questions"),
        (Some(start), None) => format!(
            "The {} answers {from} of new questions; GRPO has not been evaluated",
            start.policy
        ),
        (None, None) => without_eval(records).0,
    }
}

/// Returns title and paragraph of a run or a pretraining without an accuracy on `eval`.
fn without_eval(records: &RunRecords) -> (String, &'static str) {
    if records.is_of_pretraining() {
        return pretraining(Evaluations(&records.evaluations));
    }
    let info = records.info.as_ref();
    let has_eval = info.is_none_or(|info| info.questions.contains_key(EVAL_SPLIT));
    let is_finished = info.is_some_and(|info| info.status == RunStatus::Finished);
    let mut evaluations = records.evaluations.iter();
    let (title, lead) = match evaluations.any(|e| e.split.starts_with(UNSEEN_SPLIT)) {
        true if !has_eval => (
            "This run is evaluated on new databases only",
            "Its data have no question of the split eval, so the accuracy is that on databases \
             without any training question.",
        ),
        false if !has_eval && is_finished => (
            "The data have no question of the split eval",
            "So the run was not evaluated, and the page has the metrics of its steps only.",
        ),
        _ => (
            "Nothing has been evaluated yet",
            "This page grows with the run: steps add metrics, evaluations add accuracy.",
        ),
    };
    (title.to_owned(), lead)
}

fn pretraining(evaluations: Evaluations<'_>) -> (String, &'static str) {
    let splits = [(NEW_WORDS_SPLIT, "words"), (UNSEEN_DOMAIN_SPLIT, "domains")];
    let rates = splits.into_iter().filter_map(|(split, name)| {
        let last = evaluations.last(PolicyName::Base, split, DecodingMode::Greedy)?;
        Some(format!("{} on new {name}", percent(last)))
    });
    let rates: Vec<String> = rates.collect();
    (
        format!("The pretrained policy answers {}", rates.join(" and ")),
        "It has imitated the oracle on generated databases, on each of them once, and is evaluated \
         on databases that it has not seen.",
    )
}

fn lead(start: Option<&Evaluation>, grpo: Option<&Evaluation>, records: &RunRecords) -> String {
    if start.is_none() && grpo.is_none() {
        return without_eval(records).1.to_owned();
    }
    let info = records.info.as_ref();
    let mut text = String::new();
    if let Some(start) = start {
        text += &format!(
            "The {}: {} right. ",
            start.policy,
            rate_in_words(&start.metrics.success)
        );
        if let Some(warm_start) = info.and_then(|info| info.warm_start.as_ref()) {
            text += &format!("It was trained by {warm_start}. ");
        }
    }
    if let Some(grpo) = grpo {
        let (step, success) = (grpo.step, rate_in_words(&grpo.metrics.success));
        text += &format!("After {step} steps of GRPO: {success} right. ");
    }
    if let (Some(start), Some(grpo)) = (start, grpo) {
        let [before, after] = [start, grpo].map(|e| e.metrics.success.success_rate);
        let points = number::signed(100.0 * (after - before), 1);
        let overlap = match compare(start, grpo) {
            Ordering::Equal => "overlap",
            _ => "do not overlap",
        };
        text += &format!("The difference is {points} points; the 95\u{a0}% intervals {overlap}. ");
    }
    text += match info.and_then(|info| info.eval_queries_in_train) {
        Some(0) => "Greedy decoding on the eval split, whose queries are not in the training data.",
        Some(shared) => {
            return text
                + &format!(
                    "Greedy decoding on the eval split, {} of whose questions share their SQL with \
                     a training question.",
                    number::count(shared)
                );
        }
        None => "Greedy decoding on the eval split.",
    };
    text
}

/// Compares GRPO with imitation of the oracle, the simplest alternative.
fn against_imitation(grpo: &Evaluation, imitation: &Evaluation) -> String {
    let difference = match compare(imitation, grpo) {
        Ordering::Greater => "GRPO is clearly better",
        Ordering::Less => "GRPO is clearly worse",
        Ordering::Equal => "the difference from GRPO is not clear",
    };
    let (reached, success) = (percent(imitation), &imitation.metrics.success);
    format!(
        " For comparison, imitation of the oracle reaches {reached} ({} to {}); {difference}.",
        number::percent(success.wilson_low),
        number::percent(success.wilson_high),
    )
}

/// Compares GRPO with imitation of the oracle on databases that the run did not train on. Empty if
/// they were not evaluated.
fn on_new_databases(evaluations: Evaluations<'_>) -> String {
    let rate = |policy| {
        let split = evaluations.new_databases_split();
        let evaluation = evaluations.last(policy, split, DecodingMode::Greedy);
        evaluation.map(percent)
    };
    let policies = [
        PolicyName::OracleImitation,
        PolicyName::Grpo,
        evaluations.start(),
    ];
    let [Some(imitation), Some(grpo), Some(start)] = policies.map(rate) else {
        return String::new();
    };
    format!(" On new databases it reaches {imitation} and GRPO {grpo}, from {start}.")
}

fn status(records: &RunRecords) -> Option<String> {
    let steps = records.steps.iter();
    let grpo_steps = steps.filter(|s| s.stage == TrainingStage::Grpo);
    let position = match grpo_steps.map(|s| s.step).max() {
        Some(step) => format!("at GRPO step {step}"),
        None => "before its first GRPO step".to_owned(),
    };
    match records.info.as_ref()?.status {
        RunStatus::Finished => None,
        RunStatus::Running => Some(format!(
            "This run had not ended when the page was written; it was {position}."
        )),
        RunStatus::Interrupted => Some(format!(
            "This run was stopped {position}. It can be resumed."
        )),
    }
}

/// Returns name, value and detail of each fact.
fn facts(records: &RunRecords) -> Vec<(&'static str, String, String)> {
    let mut facts = Vec::new();
    let info = records.info.as_ref();
    if let Some(info) = info {
        let parameters = number::short_count(info.parameters);
        facts.push((
            "Policy",
            format!("{parameters} parameters"),
            info.model.clone(),
        ));
        let train = number::count(info.questions.get("train").copied().unwrap_or(0));
        let databases = number::count(info.databases);
        let data = format!("{}, {databases} databases", info.dataset);
        facts.push(("Data", format!("{train} training questions"), data));
    }
    let seconds: f64 = records.timing.iter().map(|s| s.seconds).sum();
    if seconds > 0.0 {
        let machine = info.map_or_else(String::new, |info| info.machine.clone());
        facts.push(("Time", number::seconds(seconds), machine));
    }
    for (name, stage) in [
        ("Supervised training", TrainingStage::Sft),
        ("GRPO", TrainingStage::Grpo),
    ] {
        if let Some(last) = records.steps.iter().rfind(|s| s.stage == stage) {
            let tokens = last
                .metrics
                .get("num_tokens")
                .map(|tokens| format!("{} tokens", number::short_count(*tokens as u64)));
            let steps = format!("{} steps", number::count(last.step));
            facts.push((name, steps, tokens.unwrap_or_default()));
        }
    }
    facts
}

/// Compares accuracies as far as the intervals tell. They are equal if the intervals overlap.
fn compare(before: &Evaluation, after: &Evaluation) -> Ordering {
    let (before, after) = (&before.metrics.success, &after.metrics.success);
    if after.wilson_low > before.wilson_high {
        Ordering::Greater
    } else if after.wilson_high < before.wilson_low {
        Ordering::Less
    } else {
        Ordering::Equal
    }
}

fn percent(evaluation: &Evaluation) -> String {
    format!(
        "{} %",
        number::percent(evaluation.metrics.success.success_rate)
    )
}
