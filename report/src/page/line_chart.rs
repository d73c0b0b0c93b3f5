//! A line chart with bands as SVG. Pure.
//!
//! Invariant: drawn in the units of its width, so that text keeps its size when the page shows it at that width. Lines are
//! labelled at their ends, never by a legend. Points that are not finite break the line.

use super::{
    markup::{Element, el},
    points::{Point, finite, is_finite, range, thin},
    scale::{Scale, tick_label},
};

/// A named series; `class` gives its colour.
pub(super) struct Line {
    pub(super) label: String,
    pub(super) class: &'static str,
    pub(super) points: Vec<Point>,
}

/// A level to compare with.
pub(super) struct Reference {
    pub(super) label: String,
    pub(super) class: &'static str,
    pub(super) y: f64,
}

/// How the vertical axis is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vertical {
    /// Shares from 0 to 100 %.
    Percent,
    /// From zero to the largest value.
    FromZero,
    /// From the smallest to the largest value.
    Data,
}

/// What is drawn.
pub(super) struct LineChart {
    /// What a screen reader says.
    pub(super) description: String,
    pub(super) x_label: &'static str,
    pub(super) vertical: Vertical,
    pub(super) lines: Vec<Line>,
    pub(super) references: Vec<Reference>,
}

/// Lines up to this long show their points.
const MOST_DOTS: usize = 40;
const LABEL_HEIGHT: f64 = 14.0;
const CHARACTER_WIDTH: f64 = 6.1;

struct Frame {
    x: Scale,
    y: Scale,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl LineChart {
    /// True where there is nothing to draw.
    pub(super) fn is_empty(&self) -> bool {
        self.lines
            .iter()
            .all(|l| finite(&l.points).next().is_none())
    }

    /// The chart at `width` by `height`.
    pub(super) fn draw(&self, width: f64, height: f64) -> Element {
        let frame = self.frame(width, height);
        el("svg")
            .class("chart")
            .attr("viewBox", format!("0 0 {width} {height}"))
            .attr("role", "img")
            .attr("aria-label", &self.description)
            .children(self.grid(&frame))
            .children(self.references.iter().map(|r| {
                rule(frame.left, frame.right, frame.y.at(r.y))
                    .class(format!("reference {}", r.class))
            }))
            .children(
                self.lines
                    .iter()
                    .map(|line| draw_line(line, &frame, self.vertical)),
            )
            .children(self.labels(&frame))
    }

    fn frame(&self, width: f64, height: f64) -> Frame {
        let labels = self.end_labels();
        let longest = labels.iter().map(|l| l.text.chars().count()).max();
        let margin = longest.map_or(12.0, |n| 22.0 + CHARACTER_WIDTH * n as f64);
        let (left, right) = (40.0, width - margin);
        let (top, bottom) = (10.0, height - 36.0);
        let xs = self
            .lines
            .iter()
            .flat_map(|l| finite(&l.points))
            .map(|p| p.x);
        Frame {
            x: Scale::new(range(xs), (left, right)),
            y: match self.vertical {
                Vertical::Percent => Scale::new((0.0, 1.0), (bottom, top)),
                Vertical::FromZero => {
                    let (low, high) = range(self.ys());
                    let high = if high > 0.0 { high } else { 1.0 };
                    Scale::nice((low.min(0.0), high), (bottom, top), 4)
                }
                Vertical::Data => Scale::nice(range(self.ys()), (bottom, top), 4),
            },
            left,
            right,
            top,
            bottom,
        }
    }

    fn ys(&self) -> impl Iterator<Item = f64> {
        let points = self.lines.iter().flat_map(|l| finite(&l.points));
        points
            .flat_map(|p| [Some(p.y), p.band.map(|b| b.0), p.band.map(|b| b.1)])
            .flatten()
            .chain(self.references.iter().map(|r| r.y))
    }

    fn grid(&self, frame: &Frame) -> Vec<Element> {
        let mut grid = Vec::new();
        let ticks = frame.y.ticks(if frame.bottom > 250.0 { 5 } else { 4 });
        let step = distance(&ticks);
        for tick in &ticks {
            let y = frame.y.at(*tick);
            let text = match self.vertical {
                Vertical::Percent => format!("{:.0} %", tick * 100.0),
                _ => tick_label(*tick, step),
            };
            grid.push(rule(frame.left, frame.right, y).class("grid"));
            grid.push(label(frame.left - 6.0, y + 4.0, "end", &text));
        }
        let ticks = whole(frame.x.ticks(5));
        let step = distance(&ticks);
        for tick in &ticks {
            let x = frame.x.at(*tick);
            grid.push(
                el("path")
                    .class("tick")
                    .attr("d", format!("M{x:.1} {:.1}v4", frame.bottom)),
            );
            grid.push(label(
                x,
                frame.bottom + 16.0,
                "middle",
                &tick_label(*tick, step),
            ));
        }
        grid.push(rule(frame.left, frame.right, frame.bottom).class("axis"));
        let middle = (frame.left + frame.right) / 2.0;
        grid.push(label(middle, frame.bottom + 31.0, "middle", self.x_label).class("label title"));
        grid
    }

    /// Names at the right, pushed apart where they would touch.
    fn labels(&self, frame: &Frame) -> Vec<Element> {
        let mut labels = self.end_labels();
        labels.sort_by(|a, b| b.y.total_cmp(&a.y));
        let wanted: Vec<f64> = labels.iter().map(|l| frame.y.at(l.y)).collect();
        let places = spread(&wanted, LABEL_HEIGHT, frame.top, frame.bottom);
        let mut drawn = Vec::new();
        for ((end, wanted), place) in labels.iter().zip(wanted).zip(places) {
            let x = frame.right;
            drawn.push(el("path").class(format!("leader {}", end.class)).attr(
                "d",
                format!("M{:.1} {wanted:.1}L{:.1} {place:.1}h4", x + 3.0, x + 11.0),
            ));
            drawn.push(label(x + 18.0, place + 4.0, "start", &end.text).class("label name"));
        }
        drawn
    }

    fn end_labels(&self) -> Vec<EndLabel> {
        let lines = self.lines.iter().filter_map(|line| {
            let last = finite(&line.points).last()?;
            Some(EndLabel {
                text: line.label.clone(),
                class: line.class,
                y: last.y,
            })
        });
        let references = self.references.iter().map(|r| EndLabel {
            text: r.label.clone(),
            class: r.class,
            y: r.y,
        });
        let all: Vec<_> = lines
            .chain(references)
            .filter(|l| !l.text.is_empty())
            .collect();
        if all.len() > 1 || !self.references.is_empty() {
            all
        } else {
            Vec::new()
        }
    }
}

struct EndLabel {
    text: String,
    class: &'static str,
    y: f64,
}

fn draw_line(line: &Line, frame: &Frame, vertical: Vertical) -> Element {
    let points = thin(&line.points);
    let place = |p: &Point| (frame.x.at(p.x), frame.y.at(p.y));
    let mut group = el("g").class(line.class);
    for run in points
        .split(|p| !is_finite(p))
        .filter(|run| !run.is_empty())
    {
        group = group.child(band(run, frame)).child(
            el("path")
                .class("line")
                .attr("d", path(run.iter().map(place))),
        );
    }
    if points.len() > MOST_DOTS {
        return group;
    }
    group.children(points.iter().filter(|p| is_finite(p)).map(|p| {
        let (x, y) = place(p);
        el("circle")
            .class("dot")
            .attr("cx", format!("{x:.1}"))
            .attr("cy", format!("{y:.1}"))
            .attr("r", 2.4)
            .child(el("title").text(tooltip(line, p, vertical)))
    }))
}

fn tooltip(line: &Line, point: &Point, vertical: Vertical) -> String {
    let show = |v: f64| match vertical {
        Vertical::Percent => format!("{} %", crate::number::percent(v)),
        _ => crate::number::value(v),
    };
    let mut text = format!("{} at {}: {}", line.label, point.x, show(point.y));
    if let Some((low, high)) = point.band {
        text += &format!(" ({} to {})", show(low), show(high));
    }
    text.trim_start().to_owned()
}

fn band(run: &[Point], frame: &Frame) -> Option<Element> {
    let banded: Vec<(f64, f64, f64)> = run
        .iter()
        .filter_map(|p| p.band.map(|(low, high)| (p.x, low, high)))
        .collect();
    if banded.len() < 2 {
        return None;
    }
    let upper = banded
        .iter()
        .map(|(x, _, high)| (frame.x.at(*x), frame.y.at(*high)));
    let lower = banded
        .iter()
        .rev()
        .map(|(x, low, _)| (frame.x.at(*x), frame.y.at(*low)));
    Some(
        el("path")
            .class("band")
            .attr("d", path(upper.chain(lower)) + "Z"),
    )
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    points
        .enumerate()
        .map(|(i, (x, y))| format!("{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' }))
        .collect()
}

fn rule(left: f64, right: f64, y: f64) -> Element {
    el("path").attr("d", format!("M{left:.1} {y:.1}H{right:.1}"))
}

fn label(x: f64, y: f64, anchor: &str, text: &str) -> Element {
    el("text")
        .attr("x", format!("{x:.1}"))
        .attr("y", format!("{y:.1}"))
        .attr("text-anchor", anchor)
        .text(text)
}

/// Moves ascending places at least `gap` apart, inside `top..bottom` where there is room.
fn spread(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut places: Vec<f64> = wanted.to_vec();
    for i in 1..places.len() {
        places[i] = places[i].max(places[i - 1] + gap);
    }
    if let Some(last) = places.last_mut() {
        *last = last.min(bottom);
    }
    for i in (1..places.len()).rev() {
        places[i - 1] = places[i - 1].min(places[i] - gap);
    }
    if places.first().is_some_and(|p| *p < top) {
        places
            .iter_mut()
            .enumerate()
            .for_each(|(i, p)| *p = p.max(top + i as f64 * gap));
    }
    places
}

fn whole(ticks: Vec<f64>) -> Vec<f64> {
    let whole: Vec<f64> = ticks
        .iter()
        .copied()
        .filter(|t| (t - t.round()).abs() < 1e-6)
        .collect();
    if whole.is_empty() { ticks } else { whole }
}

fn distance(ticks: &[f64]) -> f64 {
    ticks
        .windows(2)
        .next()
        .map_or(1.0, |pair| pair[1] - pair[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chart(points: Vec<Point>) -> LineChart {
        LineChart {
            description: "test".to_owned(),
            x_label: "step",
            vertical: Vertical::FromZero,
            lines: vec![Line {
                label: "a".to_owned(),
                class: "grpo",
                points,
            }],
            references: Vec::new(),
        }
    }

    #[test]
    fn a_gap_breaks_the_line() {
        let point = |x: f64, y: f64| Point { x, y, band: None };
        let points = vec![point(0.0, 1.0), point(1.0, f64::NAN), point(2.0, 1.0)];
        let svg = chart(points).draw(300.0, 200.0).to_string();
        assert_eq!(svg.matches("class=\"line\"").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn labels_are_pushed_apart_and_kept_inside() {
        assert_eq!(
            spread(&[50.0, 51.0, 90.0], 10.0, 0.0, 95.0),
            [50.0, 60.0, 90.0]
        );
        assert_eq!(spread(&[90.0, 94.0], 10.0, 0.0, 95.0), [85.0, 95.0]);
        assert_eq!(spread(&[], 10.0, 0.0, 95.0), [0.0; 0]);
    }

    proptest! {
        #[test]
        fn any_data_draws_finite_numbers(
            values in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>()), 0..50)
        ) {
            let points = values.iter().map(|(x, y, b)| Point { x: *x, y: *y, band: Some((*b, *y)) }).collect();
            let svg = chart(points).draw(300.0, 200.0);
            // Labels are text; coordinates are attributes.
            let printed = svg.to_string();
            prop_assert!(!printed.contains("NaN") && !printed.contains("\"inf"), "{printed}");
        }
    }
}
