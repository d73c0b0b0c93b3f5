//! The live page of a learner, in the look of the report and with its charts.
//!
//! Invariant: the page takes no markup from content, and loads nothing but its own fragment. Its
//! content security policy allows one script and one stylesheet, by hash.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    findings::{Finding, Severity},
    status::{ActorStatus, EnvNodeStatus, LiveEpisode, LiveStatus},
};
use crate::{
    number,
    page::{STYLE, curves, hash_source, safe_text, transcripts},
    records::RunStatus,
};

const LIVE_STYLE: &str = include_str!("live.css");
const SCRIPT: &str = include_str!("live.js");

/// Returns the content security policy of the page, which its server sends as a header.
pub fn live_security_policy() -> String {
    format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash_source(&style()),
        hash_source(SCRIPT)
    )
}

/// Returns the page. Its script fetches `fragment` again and again.
pub fn live_page(status: Option<&LiveStatus>) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title(status)) }
                style { (PreEscaped(style())) }
            }
            body {
                p #away.banner role="status" hidden {
                    "The learner does not answer. This page shows the last that it said, and tries \
                     again."
                }
                (main(status))
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    safe_text(&page.into_string())
}

/// Returns the part of the page that changes.
pub fn live_fragment(status: Option<&LiveStatus>) -> String {
    safe_text(&main(status).into_string())
}

fn style() -> String {
    STYLE.to_owned() + LIVE_STYLE
}

fn title(status: Option<&LiveStatus>) -> String {
    match status {
        None => "sqlenv: starting".to_owned(),
        Some(status) => format!("{} · {} · sqlenv", position(status), status.name),
    }
}

/// Returns the step and how many there are.
fn position(status: &LiveStatus) -> String {
    let step = number::count(status.step);
    match status.settings.steps {
        None => format!("step {step}"),
        Some(steps) => format!("step {step} of {}", number::count(steps)),
    }
}

fn main(status: Option<&LiveStatus>) -> Markup {
    html! {
        main data-title=(title(status)) {
            @match status {
                None => {
                    section #head {
                        p.eyebrow { "sqlenv" }
                        h1 { "GRPO has not begun" }
                        p.lead {
                            "The learner opens the run and asks its env-node for questions, or \
                             sqlenv train evaluates and trains the policies before GRPO. This \
                             page changes by itself when GRPO begins."
                        }
                    }
                }
                Some(status) => {
                    (head(status))
                    (findings(&status.findings))
                    (curves::section(&status.chart_records()).unwrap_or_default())
                    (actors(status))
                    (env_nodes(&status.env_nodes))
                    (episodes(&status.episodes))
                }
            }
        }
    }
}

fn head(status: &LiveStatus) -> Markup {
    let steps = status.settings.steps.filter(|steps| *steps > 0);
    let state = match status.state {
        RunStatus::Running => match status.eta_seconds {
            Some(seconds) => {
                let left = number::seconds(seconds);
                format!("about {left} left, without evaluations")
            }
            None => status.activity().to_owned(),
        },
        RunStatus::Interrupted => "stopped; the same command resumes it".to_owned(),
        RunStatus::Finished => "finished".to_owned(),
    };
    html! {
        section #head {
            p.eyebrow { "sqlenv · " (status.name) " · " (status.model) }
            h1 { (capitalized(&position(status))) ", " (state) }
            @if let Some(steps) = steps {
                progress value=(status.step) max=(steps) aria-label="Steps made" {}
            }
            dl.facts {
                @for (name, value, detail) in facts(status) {
                    div { dt { (name) } dd { (value) small { (detail) } } }
                }
            }
        }
    }
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters
        .next()
        .map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + characters.as_str()
}

/// Returns name, value and detail of each fact.
fn facts(status: &LiveStatus) -> Vec<(&'static str, String, String)> {
    let mut facts = Vec::new();
    let metric = |name: &str| status.metric(name);
    if let Some(reward) = metric("reward") {
        let correct = metric("rewards/correct/mean");
        let correct = correct.map(|it| format!("{} % of answers correct", number::percent(it)));
        facts.push(("Reward", number::value(reward), correct.unwrap_or_default()));
    }
    if let Some(last) = status.accuracy().last() {
        let rate = &last.metrics.success;
        facts.push((
            "Accuracy, new questions",
            format!("{} %", number::percent(rate.success_rate)),
            format!(
                "step {}, {} questions",
                last.step,
                number::count(rate.questions)
            ),
        ));
    }
    if let Some(seconds) = metric("step_time") {
        let waited = metric("time/wait_for_batch").map(|waited| waited / seconds);
        let detail = waited.map(|it| format!("{} % of it waiting for groups", number::percent(it)));
        let detail = detail.unwrap_or_default();
        facts.push(("Time of a step", number::seconds(seconds), detail));
    }
    if let Some(rate) = status.tokens_per_second() {
        let connected = status.actors.iter().filter(|actor| actor.is_connected);
        facts.push((
            "Sampling",
            format!("{} tokens/s", number::short_count(rate as u64)),
            match connected.count() {
                1 => "1 actor connected".to_owned(),
                count => format!("{count} actors connected"),
            },
        ));
    }
    facts
}

fn findings(findings: &[Finding]) -> Markup {
    html! {
        section #warnings {
            @for finding in findings {
                div.finding.problem[finding.severity == Severity::Problem] {
                    p { b { (finding.seen) } }
                    p { (finding.meaning) }
                    p { (finding.remedy) }
                }
            }
        }
    }
}

fn optional<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), format)
}

fn actors(status: &LiveStatus) -> Markup {
    if status.actors.is_empty() && !status.is_live {
        // Only a running learner has actors. The style hides an empty section.
        return html! { section #actors {} };
    }
    let row = |actor: &ActorStatus| {
        html! {
            tr {
                th scope="row" title=(actor.id) { (actor.id) }
                td { @if actor.is_connected { "connected" } @else { span.note { "away" } } }
                td.figure { (optional(actor.policy_version, number::count)) }
                td.figure { (optional(actor.version_lag, number::count)) }
                td.figure { (optional(actor.tokens_per_second, |it| number::short_count(it as u64))) }
                td.figure { (optional(actor.busy_share, |it| format!("{} %", number::percent(it)))) }
                td.figure { (number::count(actor.groups_in_flight)) }
                td.figure { (number::count(actor.groups_done)) }
                td.figure { (number::seconds(actor.silent_seconds)) }
            }
        }
    };
    html! {
        section #actors {
            h2 { "Actors" }
            @if status.actors.is_empty() {
                p.caption { "No actor has called yet." }
            } @else {
                div.scroll {
                    table {
                        thead {
                            tr {
                                th { "actor" }
                                th { "state" }
                                th.figure { "version" }
                                th.figure { "behind" }
                                th.figure { "tokens/s" }
                                th.figure { "engine busy" }
                                th.figure { "groups held" }
                                th.figure { "done" }
                                th.figure { "last call" small { "ago" } }
                            }
                        }
                        tbody { @for actor in &status.actors { (row(actor)) } }
                    }
                }
            }
        }
    }
}

fn env_nodes(nodes: &[EnvNodeStatus]) -> Markup {
    let row = |node: &EnvNodeStatus| {
        html! {
            tr {
                th scope="row" title=(node.address) { (node.address) }
                td.figure { (number::count(node.recent_calls)) }
                td.figure { (number::count(node.recent_errors)) }
                td.figure { (optional(node.mean_latency_seconds, milliseconds)) }
                td.figure { (optional(node.p95_latency_seconds, milliseconds)) }
                td.figure { (number::count(node.calls)) }
                td.figure { (number::count(node.errors)) }
            }
        }
    };
    html! {
        section #env-nodes {
            @if !nodes.is_empty() {
                h2 { "Env-nodes" }
                div.scroll {
                    table {
                        thead {
                            tr {
                                th { "address" small { "as actors see it" } }
                                th.figure { "calls" small { "last minute" } }
                                th.figure { "failed" small { "last minute" } }
                                th.figure { "mean latency" }
                                th.figure { "95 % below" }
                                th.figure { "calls" small { "in all" } }
                                th.figure { "failed" small { "in all" } }
                            }
                        }
                        tbody { @for node in nodes { (row(node)) } }
                    }
                }
            }
        }
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{} ms", number::value(1e3 * seconds))
}

fn episodes(episodes: &[LiveEpisode]) -> Markup {
    html! {
        section #episodes {
            @if !episodes.is_empty() {
                h2 { "The newest episodes" }
                @for episode in episodes { (card(episode)) }
            }
        }
    }
}

fn card(live: &LiveEpisode) -> Markup {
    let episode = &live.episode;
    let text = match episode.question.is_empty() {
        true => &episode.question_id,
        false => &episode.question,
    };
    html! {
        details.card #{ "episode-" (live.group_index) } {
            summary {
                (transcripts::verdict(episode))
                q { (transcripts::clip(text)) }
                small {
                    (episode.database) " · return " (number::signed(episode.reward, 2))
                    " · group " (number::count(live.group_index)) " by " (live.actor_id)
                }
            }
            div.columns {
                div.episode { (transcripts::env_steps(episode)) }
            }
        }
    }
}
