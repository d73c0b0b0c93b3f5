//! Charts as SVG. Pure.
//!
//! The stylesheet of the page gives them their colours, also in dark mode and in print. They are
//! drawn in the units of their width, so that text keeps its size when the page shows a chart at
//! that width.

mod line_chart;
mod rate_rows;
mod scale;
mod series;
mod stacked_bars;

use maud::{Markup, html};

pub(crate) use line_chart::{LineChart, ReferenceLevel, YAxis};
pub(crate) use rate_rows::{RatePoint, RateRow, interval_strip, rate_rows};
pub(crate) use series::{Point, Series};
pub(crate) use stacked_bars::{BarSegment, StackedBar, stacked_bars};

/// Returns an SVG element; `description` is for screen readers.
fn svg(description: &str, width: f64, height: f64, content: &Markup) -> Markup {
    html! {
        svg.chart viewBox={ "0 0 " (width) " " (height) } role="img" aria-label=(description) {
            (content)
        }
    }
}

/// Returns a path with a class.
fn path(class: &str, d: impl AsRef<str>) -> Markup {
    html! { path class=(class) d=(d.as_ref()) {} }
}

/// Returns a line of text that starts, ends or has its middle at `x`.
fn label(class: &str, (x, y): (f64, f64), anchor: &str, text: &str) -> Markup {
    html! {
        text class=[(!class.is_empty()).then_some(class)] x=(unit(x)) y=(unit(y)) text-anchor=(anchor) {
            (text)
        }
    }
}

/// Formats a coordinate.
fn unit(value: f64) -> String {
    format!("{value:.1}")
}
