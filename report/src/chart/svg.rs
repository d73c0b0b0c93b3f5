//! SVG elements. Pure.

use maud::{Markup, html};

/// Returns an SVG element; `description` is for screen readers.
pub(super) fn svg(description: &str, width: f64, height: f64, content: &Markup) -> Markup {
    html! {
        svg.chart viewBox={ "0 0 " (width) " " (height) } role="img" aria-label=(description) {
            (content)
        }
    }
}

/// Returns a path with a class.
pub(super) fn path(class: &str, d: impl AsRef<str>) -> Markup {
    html! { path class=(class) d=(d.as_ref()) {} }
}

/// Returns a line of text that starts, ends or has its middle at `x`.
pub(super) fn label(class: &str, (x, y): (f64, f64), anchor: &str, text: &str) -> Markup {
    html! {
        text class=[(!class.is_empty()).then_some(class)] x=(unit(x)) y=(unit(y))
            text-anchor=(anchor) { (text) }
    }
}

/// Formats a coordinate.
pub(super) fn unit(value: f64) -> String {
    format!("{value:.1}")
}
