//! Rows of marks: before and after on one axis, stacked bars, and the small interval inside a table cell. Pure SVG.
//!
//! Invariant: every row has its label and number as text; colour only repeats what a label or a legend says.

use super::{
    markup::{Element, el},
    scale::Scale,
};
use crate::number;

/// A rate with its interval.
pub(super) struct Mark {
    pub(super) class: &'static str,
    pub(super) rate: f64,
    pub(super) interval: (f64, f64),
    /// Shown when pointed at.
    pub(super) title: String,
}

/// Marks on one line, oldest first.
pub(super) struct MarkRow {
    pub(super) label: String,
    pub(super) note: String,
    pub(super) marks: Vec<Mark>,
}

const ROW: f64 = 31.0;
const LABEL_CHARACTERS: usize = 20;

/// Rates on a common axis of 0 to 100 %, a row each; a line joins the first mark of a row to its last.
pub(super) fn mark_rows(description: &str, rows: &[MarkRow], width: f64) -> Element {
    let axis = Scale::new((0.0, 1.0), (140.0, width - 48.0));
    let bottom = 4.0 + ROW * rows.len() as f64;
    let mut svg = canvas(description, width, bottom + 22.0);
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let x = axis.at(share);
        svg = svg
            .child(stroke(format!("M{x:.1} 4V{bottom:.1}")).class("grid"))
            .child(words(
                x,
                bottom + 16.0,
                "middle",
                &format!("{:.0} %", share * 100.0),
            ));
    }
    svg.children(rows.iter().enumerate().map(|(i, row)| {
        let y = 4.0 + ROW * (i as f64 + 0.5);
        mark_row(row, &axis, y, width)
    }))
}

fn mark_row(row: &MarkRow, axis: &Scale, y: f64, width: f64) -> Element {
    let mut group = el("g")
        .child(
            words(
                132.0,
                y - 1.0,
                "end",
                &shorten(&row.label, LABEL_CHARACTERS),
            )
            .class("label name"),
        )
        .child(words(132.0, y + 11.0, "end", &row.note).class("label small"));
    let spread = row.marks.len() as f64 - 1.0;
    if let [first, .., last] = row.marks.as_slice() {
        let (from, to) = (axis.at(first.rate), axis.at(last.rate));
        group = group.child(
            stroke(format!("M{from:.1} {y:.1}H{to:.1}")).class(format!("change {}", last.class)),
        );
    }
    for (i, mark) in row.marks.iter().enumerate() {
        let offset = 3.5 * (2.0 * i as f64 - spread);
        group = group.child(whisker(mark, axis, y, offset));
    }
    let Some(last) = row.marks.last() else {
        return group;
    };
    group.child(
        words(
            width - 2.0,
            y + 4.0,
            "end",
            &format!("{:.0} %", 100.0 * last.rate),
        )
        .class("label name"),
    )
}

fn whisker(mark: &Mark, axis: &Scale, y: f64, offset: f64) -> Element {
    let (low, high) = (axis.at(mark.interval.0), axis.at(mark.interval.1));
    el("g")
        .class(mark.class)
        .child(el("title").text(&mark.title))
        .child(stroke(format!("M{low:.1} {:.1}H{high:.1}", y + offset)).class("whisker"))
        .child(
            el("circle")
                .class("dot big")
                .attr("cx", format!("{:.1}", axis.at(mark.rate)))
                .attr("cy", format!("{y:.1}"))
                .attr("r", 5),
        )
}

/// The interval of one rate on an axis of 0 to 100 %, for a table cell.
pub(super) fn interval_strip(class: &str, rate: f64, (low, high): (f64, f64)) -> Element {
    let axis = Scale::new((0.0, 1.0), (1.5, 102.5));
    let (from, to, at) = (axis.at(low), axis.at(high), axis.at(rate));
    el("svg")
        .class(format!("strip {class}"))
        .attr("viewBox", "0 0 104 9")
        .attr("aria-hidden", "true")
        .child(stroke("M1.5 4.5H102.5".to_owned()).class("grid"))
        .child(stroke(format!("M{from:.1} 4.5H{to:.1}")).class("whisker"))
        .child(stroke(format!("M{at:.1} 0.5V8.5")).class("rate"))
}

/// One part of a stacked bar.
pub(super) struct Part {
    /// Position in the legend; gives the colour.
    pub(super) kind: usize,
    pub(super) size: f64,
    /// Written on the part where there is room.
    pub(super) text: String,
    /// Shown when pointed at.
    pub(super) title: String,
}

/// A bar of parts.
pub(super) struct PartRow {
    pub(super) label: String,
    pub(super) parts: Vec<Part>,
    /// Written behind the bar.
    pub(super) total: String,
}

/// Stacked bars on a common scale from zero; the longest fills the width.
pub(super) fn part_rows(description: &str, palette: &str, rows: &[PartRow], width: f64) -> Element {
    let longest = rows.iter().map(PartRow::size).fold(0.0, f64::max);
    let left = if rows.iter().all(|r| r.label.is_empty()) {
        1.0
    } else {
        110.0
    };
    let right = if rows.iter().all(|r| r.total.is_empty()) {
        1.0
    } else {
        40.0
    };
    let axis = Scale::new((0.0, longest), (left, width - right));
    canvas(description, width, ROW * rows.len() as f64).children(rows.iter().enumerate().map(
        |(i, row)| {
            let top = ROW * i as f64 + 3.0;
            part_row(row, &axis, palette, left, top)
        },
    ))
}

impl PartRow {
    fn size(&self) -> f64 {
        self.parts.iter().map(Part::drawn).sum()
    }
}

impl Part {
    fn drawn(&self) -> f64 {
        if self.size.is_finite() {
            self.size.max(0.0)
        } else {
            0.0
        }
    }
}

fn part_row(row: &PartRow, axis: &Scale, palette: &str, left: f64, top: f64) -> Element {
    let height = ROW - 8.0;
    let mut group =
        el("g").child(words(left - 8.0, top + 15.0, "end", &row.label).class("label name"));
    let mut done = 0.0;
    for part in row.parts.iter().filter(|p| p.drawn() > 0.0) {
        let (from, to) = (axis.at(done), axis.at(done + part.drawn()));
        done += part.drawn();
        let mut drawn = el("g")
            .class(format!("{palette}-{}", part.kind))
            .child(el("title").text(&part.title))
            .child(
                el("rect")
                    .class("part")
                    .attr("x", format!("{from:.1}"))
                    .attr("y", top)
                    .attr("width", format!("{:.1}", (to - from - 1.0).max(0.4)))
                    .attr("height", height),
            );
        if to - from > 7.0 * part.text.chars().count() as f64 + 6.0 {
            let middle = (from + to - 1.0) / 2.0;
            drawn = drawn.child(words(middle, top + 15.0, "middle", &part.text).class("inside"));
        }
        group = group.child(drawn);
    }
    group.child(words(axis.at(done) + 6.0, top + 15.0, "start", &row.total))
}

/// Colour and name of each kind, as text beside a swatch.
pub(super) fn legend(palette: &str, names: impl IntoIterator<Item = (usize, String)>) -> Element {
    el("ul")
        .class("legend")
        .children(names.into_iter().map(|(kind, name)| {
            el("li")
                .child(el("span").class(format!("swatch {palette}-{kind}")))
                .text(name)
        }))
}

/// The first characters of a text, an ellipsis where something is left out.
pub(super) fn shorten(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(characters.saturating_sub(1)).collect();
    kept + "…"
}

/// `81.3 % (76.5 to 85.3), 244 of 300`.
pub(super) fn rate_in_words(
    rate: f64,
    (low, high): (f64, f64),
    correct: u64,
    questions: u64,
) -> String {
    format!(
        "{} % ({} to {}), {} of {}",
        number::percent(rate),
        number::percent(low),
        number::percent(high),
        number::count(correct),
        number::count(questions),
    )
}

fn canvas(description: &str, width: f64, height: f64) -> Element {
    el("svg")
        .class("chart")
        .attr("viewBox", format!("0 0 {width} {height}"))
        .attr("role", "img")
        .attr("aria-label", description)
}

fn stroke(path: String) -> Element {
    el("path").attr("d", path)
}

fn words(x: f64, y: f64, anchor: &str, text: &str) -> Element {
    el("text")
        .attr("x", format!("{x:.1}"))
        .attr("y", format!("{y:.1}"))
        .attr("text-anchor", anchor)
        .text(text)
}
