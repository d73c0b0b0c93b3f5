//! `report.html`: one page that shows what a run did and needs no other file.
//!
//! Invariant: the page has no script, makes no request, and takes no markup from content. Its
//! content security policy allows only its own stylesheet, by hash. Parts that the run folder does
//! not have are left out.

mod breakdown;
mod comparison;
pub(crate) mod curves;
mod elements;
mod episode_result;
mod evaluations;
mod headline;
pub(crate) mod transcripts;

pub use comparison::summary;
pub(crate) use elements::rate_cell;
pub(crate) use evaluations::Evaluations;

use std::path::{Path, PathBuf};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use crate::{ReportError, folder::RunFolder, run_records::RunRecords};

pub(crate) const STYLE: &str = include_str!("style.css");

/// Writes `report.html` into the run folder and returns its path.
///
/// # Errors
/// The folder is missing or that of no run, a file in it cannot be read, or the report cannot be
/// written.
pub fn write(run_dir: &Path) -> Result<PathBuf, ReportError> {
    let folder = RunFolder::new(run_dir);
    let records = folder.read()?;
    if !folder.is_of_run(&records) {
        return Err(ReportError::NotARun(run_dir.to_owned()));
    }
    folder.write_report(&render(&records))
}

/// Renders the page.
pub fn render(records: &RunRecords) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (head(records))
            body {
                main {
                    (headline::section(records))
                    @for section in [
                        comparison::section(records),
                        curves::section(records),
                        breakdown::section(records),
                        transcripts::section(records),
                        refused_actors(records),
                        settings(records),
                    ] { (section.unwrap_or_default()) }
                    (footer(records))
                }
            }
        }
    };
    safe_text(&page.into_string()) + "\n"
}

/// Names the actors whose groups are not part of the run.
fn refused_actors(records: &RunRecords) -> Option<Markup> {
    let refused = &records.info.as_ref()?.refused_actors;
    (!refused.is_empty()).then(|| {
        html! {
            section {
                h2 { "Refused actors" }
                p { "The learner refused these actors or groups of theirs. The run has nothing of \
                     what it refused." }
                ul {
                    @for actor in refused {
                        li { b { (actor.id) } ", " (refused_how_often(actor.count)) " because "
                             (actor.reason) }
                    }
                }
            }
        }
    })
}

fn refused_how_often(count: u64) -> String {
    match count {
        1 => "once,".to_owned(),
        count => format!("{count} times, the last"),
    }
}

/// Replaces the characters that XML forbids or that control a terminal, and those that change the
/// reading direction. Line breaks and tabs stay.
pub fn safe_text(text: &str) -> String {
    let safe = |c: char| match is_unsafe(c) {
        true => char::REPLACEMENT_CHARACTER,
        false => c,
    };
    text.chars().map(safe).collect()
}

/// Returns a text of a model, a question or an actor as one line that a terminal shows as it is:
/// without control characters and line breaks, and in its reading direction.
pub fn safe_line(text: &str) -> String {
    safe_text(text).replace(['\n', '\t', '\u{2028}', '\u{2029}'], "\u{FFFD}")
}

/// Returns the source of an embedded text for a content security policy.
pub(crate) fn hash_source(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

/// Tells whether XML forbids a character, or whether it changes the reading direction of the text
/// after it.
fn is_unsafe(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        // Marks, embeddings and isolates.
        '\u{061C}' | '\u{200E}' | '\u{200F}' => true,
        '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => true,
        '\u{FFFE}' | '\u{FFFF}' => true,
        c => c.is_control(),
    }
}

fn head(records: &RunRecords) -> Markup {
    let title = match &records.info {
        Some(info) => format!("{} · sqlenv", info.name),
        None => "sqlenv run".to_owned(),
    };
    document_head(&title)
}

/// Returns the head of a page whose only resource is the stylesheet of reports.
pub(crate) fn document_head(title: &str) -> Markup {
    let style = hash_source(STYLE);
    let security_policy =
        format!("default-src 'none'; style-src {style}; base-uri 'none'; form-action 'none'");
    html! {
        head {
            meta charset="utf-8";
            meta http-equiv="Content-Security-Policy" content=(security_policy);
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) }
            style { (PreEscaped(STYLE)) }
        }
    }
}

fn settings(records: &RunRecords) -> Option<Markup> {
    let config = records.config.as_ref()?;
    Some(html! {
        section #config {
            details.config {
                summary { h2 { "Resolved settings" } }
                pre { (config) }
            }
        }
    })
}

fn footer(records: &RunRecords) -> Markup {
    html! {
        footer {
            @if let Some(info) = &records.info {
                p {
                    "Written by " code { (info.command) } ", sqlenv " (info.version) ", run seed "
                    (info.run_seed) ", " (info.machine) "."
                }
            }
            @for (file, lines) in &records.unreadable {
                p.note {
                    (lines) @if *lines == 1 { " line" } @else { " lines" } " of " (file)
                    " could not be read and are not part of this page."
                }
            }
            p {
                "The numbers come from metrics.jsonl and evaluations.jsonl"
                " in the folder of this page"
                @if !records.transcripts.is_empty() { ", and those of episodes from transcripts.jsonl" }
                "."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_refusal_has_no_last_one() {
        assert_eq!(refused_how_often(1), "once,");
        assert_eq!(refused_how_often(2), "2 times, the last");
    }

    #[test]
    fn a_text_keeps_its_direction_and_a_line_is_one() {
        let text = "a\u{061C}\u{200F}\u{202E}b\u{1b}\n\t\u{2028}\u{2029}\u{85}c";
        assert_eq!(
            safe_text(text),
            "a\u{FFFD}\u{FFFD}\u{FFFD}b\u{FFFD}\n\t\u{2028}\u{2029}\u{FFFD}c"
        );
        let line = format!("a\u{FFFD}\u{FFFD}\u{FFFD}b{}c", "\u{FFFD}".repeat(6));
        assert_eq!(safe_line(text), line);
    }
}
