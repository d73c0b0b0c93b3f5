//! Rates with their intervals: rows of points on one axis, and the small interval inside a table
//! cell.
//!
//! Every row has its label and its last rate as text; the colour only repeats what the legend says.

use maud::{Markup, html};

use super::{
    scale::Scale,
    svg::{label, path, svg, unit},
};

/// A rate with its interval.
pub(crate) struct RatePoint {
    pub(crate) class: &'static str,
    pub(crate) rate: f64,
    pub(crate) interval: (f64, f64),
    pub(crate) tooltip: String,
}

/// The points of one line, oldest first.
pub(crate) struct RateRow {
    pub(crate) label: String,
    pub(crate) note: String,
    pub(crate) points: Vec<RatePoint>,
}

const ROW_HEIGHT: f64 = 31.0;
const LABEL_RIGHT: f64 = 132.0;
const LABEL_CHARACTERS: usize = 20;

/// Draws rates on a common axis of 0 to 100 %, one row each. A line joins the first and the last
/// point of a row.
pub(crate) fn rate_rows(description: &str, rows: &[RateRow], width: f64) -> Markup {
    let axis = Scale::new((0.0, 1.0), (140.0, width - 48.0));
    let bottom = 4.0 + ROW_HEIGHT * rows.len() as f64;
    let content = html! {
        @for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
            @let x = axis.at(share);
            (path("grid", format!("M{x:.1} 4V{bottom:.1}")))
            (label("", (x, bottom + 16.0), "middle", &format!("{:.0} %", share * 100.0)))
        }
        @for (i, row) in rows.iter().enumerate() {
            (rate_row(row, &axis, 4.0 + ROW_HEIGHT * (i as f64 + 0.5), width))
        }
    };
    svg(description, width, bottom + 22.0, &content)
}

fn rate_row(row: &RateRow, axis: &Scale, y: f64, width: f64) -> Markup {
    let name = shorten(&row.label, LABEL_CHARACTERS);
    // The intervals are drawn one below the other, so that they do not hide each other.
    let first_offset = -3.5 * (row.points.len() as f64 - 1.0);
    html! {
        g {
            (label("name", (LABEL_RIGHT, y - 1.0), "end", &name))
            (label("small", (LABEL_RIGHT, y + 11.0), "end", &row.note))
            @if let [first, .., last] = &row.points[..] {
                @let (from, to) = (axis.at(first.rate), axis.at(last.rate));
                (path(&format!("change {}", last.class), format!("M{from:.1} {y:.1}H{to:.1}")))
            }
            @for (i, point) in row.points.iter().enumerate() {
                @let (low, high) = (axis.at(point.interval.0), axis.at(point.interval.1));
                @let whisker_y = y + first_offset + 7.0 * i as f64;
                g class=(point.class) {
                    title { (point.tooltip) }
                    (path("whisker", format!("M{low:.1} {whisker_y:.1}H{high:.1}")))
                    circle.dot.big cx=(unit(axis.at(point.rate))) cy=(unit(y)) r="5" {}
                }
            }
            @if let Some(last) = row.points.last() {
                @let rate = format!("{:.0} %", 100.0 * last.rate);
                (label("name", (width - 2.0, y + 4.0), "end", &rate))
            }
        }
    }
}

/// Draws the interval of one rate on an axis of 0 to 100 %, for a table cell.
pub(crate) fn interval_strip(class: &str, rate: f64, (low, high): (f64, f64)) -> Markup {
    let axis = Scale::new((0.0, 1.0), (1.5, 102.5));
    let (from, to, at) = (axis.at(low), axis.at(high), axis.at(rate));
    html! {
        svg.strip.(class) viewBox="0 0 104 9" aria-hidden="true" {
            (path("grid", "M1.5 4.5H102.5"))
            (path("whisker", format!("M{from:.1} 4.5H{to:.1}")))
            (path("rate", format!("M{at:.1} 0.5V8.5")))
        }
    }
}

/// Returns the first characters of a text, with an ellipsis if it is longer.
fn shorten(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    text.chars().take(characters - 1).chain(['…']).collect()
}
