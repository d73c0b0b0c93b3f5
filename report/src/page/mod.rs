//! `report.html`: what a run did, as one page that needs nothing else.
//!
//! Invariant: no script, no request, no markup from content. The content security policy allows only this page's own
//! stylesheet, by its hash. Whatever is missing from the run folder is left out of the page; nothing is made up.

mod bars;
mod breakdown;
mod comparison;
mod curves;
mod episodes;
mod evaluations;
mod headline;
mod line_chart;
mod markup;
mod points;
mod questions;
mod scale;

use std::path::{Path, PathBuf};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha256};

use crate::{
    ReportError,
    folder::{RunFolder, RunRecords},
    records::PolicyName,
};
use markup::{Element, el};

const STYLE: &str = include_str!("style.css");

/// Writes `report.html` into the run folder and returns its path.
///
/// # Errors
/// The folder is missing, a file in it cannot be read, or the report cannot be written.
pub fn write(run_dir: &Path) -> Result<PathBuf, ReportError> {
    let folder = RunFolder::new(run_dir);
    let page = render(&folder.read()?);
    folder.write_report(&page)
}

/// The comparison table for a terminal; empty where nothing was evaluated.
#[must_use]
pub fn summary(records: &RunRecords) -> String {
    comparison::text(records)
}

/// The page for these records.
#[must_use]
pub fn render(records: &RunRecords) -> String {
    let main = el("main")
        .child(headline::section(records))
        .child(comparison::section(records))
        .child(curves::section(records))
        .child(breakdown::section(records))
        .child(questions::section(records))
        .child(config(records))
        .child(footer(records));
    let page = el("html")
        .attr("lang", "en")
        .child(head(records))
        .child(el("body").child(main));
    format!("<!DOCTYPE html>\n{page}\n")
}

fn head(records: &RunRecords) -> Element {
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        BASE64_STANDARD.encode(Sha256::digest(STYLE))
    );
    let title = match &records.info {
        Some(info) => format!("{} · sqlenv", info.name),
        None => "sqlenv run".to_owned(),
    };
    el("head")
        .child(el("meta").attr("charset", "utf-8"))
        .child(
            el("meta")
                .attr("http-equiv", "Content-Security-Policy")
                .attr("content", policy),
        )
        .child(
            el("meta")
                .attr("name", "viewport")
                .attr("content", "width=device-width, initial-scale=1"),
        )
        .child(
            el("meta")
                .attr("name", "color-scheme")
                .attr("content", "light dark"),
        )
        .child(el("title").text(title))
        .child(el("style").verbatim(STYLE))
}

fn config(records: &RunRecords) -> Option<Element> {
    let config = records.config.as_ref()?;
    Some(
        el("section").attr("id", "config").child(
            el("details")
                .class("config")
                .child(el("summary").child(el("h2").text("Resolved config")))
                .child(el("pre").text(config)),
        ),
    )
}

fn footer(records: &RunRecords) -> Element {
    let mut footer = el("footer");
    if let Some(info) = &records.info {
        footer = footer.child(
            el("p")
                .text("Made by ")
                .child(el("code").text(&info.command))
                .text(format!(
                    ", sqlenv {}, run seed {}, {}.",
                    info.version, info.run_seed, info.machine
                )),
        );
    }
    for (file, lines) in &records.unreadable {
        let plural = if *lines == 1 { "line" } else { "lines" };
        let note = format!("{lines} {plural} of {file} could not be read and were left out.");
        footer = footer.child(el("p").class("note").text(note));
    }
    footer.child(el("p").text("Numbers come from metrics.jsonl, evaluations.jsonl and transcripts.jsonl beside this page."))
}

/// The style class that gives a policy its colour.
fn policy_class(policy: PolicyName) -> &'static str {
    match policy {
        PolicyName::Random => "random",
        PolicyName::Base | PolicyName::Model => "base",
        PolicyName::OracleImitation => "imitation",
        PolicyName::WarmStart => "warm",
        PolicyName::Grpo => "grpo",
        PolicyName::Oracle => "oracle",
    }
}

/// A drawing with its title above and what it shows below.
fn figure(title: &str, caption: &str, drawing: impl IntoIterator<Item = Element>) -> Element {
    let mut figure = el("figure").child(el("h3").text(title)).children(drawing);
    if !caption.is_empty() {
        figure = figure.child(el("figcaption").text(caption));
    }
    figure
}
