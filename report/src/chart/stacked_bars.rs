//! Stacked bars.
//!
//! Every bar has its label and total as text, and the legend names the colours.

use maud::{Markup, html};

use super::{
    scale::Scale,
    svg::{label, svg, unit},
};

/// A segment of a bar.
pub(crate) struct BarSegment {
    /// Position in the legend; gives the colour.
    pub(crate) kind: usize,
    pub(crate) size: f64,
    /// Written on the segment if there is room.
    pub(crate) text: String,
    pub(crate) tooltip: String,
}

/// A bar of segments.
pub(crate) struct StackedBar {
    pub(crate) label: String,
    pub(crate) segments: Vec<BarSegment>,
    /// Written behind the bar.
    pub(crate) total: String,
}

const ROW_HEIGHT: f64 = 31.0;
const BAR_HEIGHT: f64 = 23.0;

impl BarSegment {
    /// Returns the size to draw: 0 for sizes that are negative or not finite.
    fn drawn(&self) -> f64 {
        if self.size.is_finite() {
            self.size.max(0.0)
        } else {
            0.0
        }
    }
}

/// Draws bars on a common scale from zero; the longest fills the width.
pub(crate) fn stacked_bars(
    description: &str,
    palette: &str,
    bars: &[StackedBar],
    width: f64,
) -> Markup {
    let size = |bar: &StackedBar| bar.segments.iter().map(BarSegment::drawn).sum();
    let longest = bars.iter().map(size).fold(0.0, f64::max);
    let has_labels = bars.iter().any(|bar| !bar.label.is_empty());
    let has_totals = bars.iter().any(|bar| !bar.total.is_empty());
    let left = if has_labels { 110.0 } else { 1.0 };
    let right = if has_totals { 40.0 } else { 1.0 };
    let axis = Scale::new((0.0, longest), (left, width - right));
    let content = html! {
        @for (i, bar) in bars.iter().enumerate() {
            (draw(bar, &axis, palette, left, ROW_HEIGHT * i as f64 + 3.0))
        }
    };
    svg(description, width, ROW_HEIGHT * bars.len() as f64, &content)
}

fn draw(bar: &StackedBar, axis: &Scale, palette: &str, left: f64, top: f64) -> Markup {
    let base = top + 15.0;
    let mut end = 0.0;
    let spans = bar.segments.iter().map(|segment| {
        let start = end;
        end += segment.drawn();
        (segment, axis.at(start), axis.at(end))
    });
    let spans: Vec<_> = spans
        .filter(|(segment, ..)| segment.drawn() > 0.0)
        .collect();
    html! {
        g {
            (label("name", (left - 8.0, base), "end", &bar.label))
            @for (segment, from, to) in spans {
                @let has_room = to - from > 7.0 * segment.text.chars().count() as f64 + 6.0;
                g.{ (palette) "-" (segment.kind) } {
                    title { (segment.tooltip) }
                    rect.part x=(unit(from)) y=(top) height=(BAR_HEIGHT)
                        width=(unit((to - from - 1.0).max(0.4))) {}
                    @if has_room {
                        (label("inside", ((from + to - 1.0) / 2.0, base), "middle", &segment.text))
                    }
                }
            }
            (label("", (axis.at(end) + 6.0, base), "start", &bar.total))
        }
    }
}
