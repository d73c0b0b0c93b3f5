//! A line chart with bands.
//!
//! Lines are labelled at their ends instead of in a legend. Points that are not finite break the
//! line.

use maud::{Markup, html};

use super::{
    scale::{Scale, tick_label},
    series::{Point, Series, range},
    svg::{label, path, svg, unit},
};
use crate::number;

/// A name at a height: a horizontal line to compare with, or the end of a line.
#[derive(Clone)]
pub(crate) struct ReferenceLevel {
    pub(crate) label: String,
    pub(crate) class: &'static str,
    pub(crate) y: f64,
}

/// The range of the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum YAxis {
    /// Shares from 0 to 100 %.
    Percent,
    /// From zero to the largest value.
    FromZero,
    /// From the smallest to the largest value.
    Data,
}

/// The content of a chart.
pub(crate) struct LineChart {
    /// Text for screen readers.
    pub(crate) description: String,
    pub(crate) x_label: &'static str,
    pub(crate) y_axis: YAxis,
    pub(crate) series: Vec<Series>,
    pub(crate) references: Vec<ReferenceLevel>,
}

/// Lines with at most this many points show each point.
const MAX_DOTS: usize = 40;
const LABEL_HEIGHT: f64 = 14.0;
const CHARACTER_WIDTH: f64 = 6.1;

/// The part of the drawing inside the axes.
struct PlotArea {
    x: Scale,
    y: Scale,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl PlotArea {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.x.at(x), self.y.at(y))
    }

    /// Returns the path of a horizontal line.
    fn rule(&self, y: f64) -> String {
        format!("M{:.1} {y:.1}H{:.1}", self.left, self.right)
    }
}

impl LineChart {
    /// Tells whether there is nothing to draw.
    pub(crate) fn is_empty(&self) -> bool {
        self.series.iter().all(|s| s.finite().next().is_none())
    }

    /// Draws the chart.
    pub(crate) fn draw(&self, width: f64, height: f64) -> Markup {
        let area = self.plot_area(width, height);
        let content = html! {
            (self.grid(&area))
            @for level in &self.references {
                (path(&format!("reference {}", level.class), area.rule(area.y.at(level.y))))
            }
            @for series in &self.series { (self.line(series, &area)) }
            (self.names(&area))
        };
        svg(&self.description, width, height, &content)
    }

    fn plot_area(&self, width: f64, height: f64) -> PlotArea {
        let longest = self
            .end_labels()
            .iter()
            .map(|l| l.label.chars().count())
            .max();
        let margin = longest.map_or(12.0, |n| 22.0 + CHARACTER_WIDTH * n as f64);
        let (left, right) = (40.0, width - margin);
        let (top, bottom) = (10.0, height - 36.0);
        let xs = self.series.iter().flat_map(Series::finite).map(|p| p.x);
        let y = match self.y_axis {
            YAxis::Percent => Scale::new((0.0, 1.0), (bottom, top)),
            YAxis::FromZero => {
                let (low, high) = range(self.ys());
                let high = if high > 0.0 { high } else { 1.0 };
                Scale::nice((low.min(0.0), high), (bottom, top), 4)
            }
            YAxis::Data => Scale::nice(range(self.ys()), (bottom, top), 4),
        };
        PlotArea {
            x: Scale::new(range(xs), (left, right)),
            y,
            left,
            right,
            top,
            bottom,
        }
    }

    fn ys(&self) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(Series::finite);
        let values = points.flat_map(|p| {
            let (low, high) = p.band.unwrap_or((p.y, p.y));
            [p.y, low, high]
        });
        values.chain(self.references.iter().map(|r| r.y))
    }

    fn grid(&self, area: &PlotArea) -> Markup {
        let PlotArea {
            left,
            right,
            bottom,
            ..
        } = *area;
        let y_ticks = area.y.ticks(if bottom > 250.0 { 5 } else { 4 });
        let x_ticks = whole(area.x.ticks(5));
        let y_text = |tick: f64| match self.y_axis {
            YAxis::Percent => format!("{:.0} %", tick * 100.0),
            _ => tick_label(tick, distance(&y_ticks)),
        };
        html! {
            @for (tick, y) in y_ticks.iter().map(|tick| (*tick, area.y.at(*tick))) {
                (path("grid", area.rule(y)))
                (label("", (left - 6.0, y + 4.0), "end", &y_text(tick)))
            }
            @for (tick, x) in x_ticks.iter().map(|tick| (*tick, area.x.at(*tick))) {
                (path("tick", format!("M{x:.1} {bottom:.1}v4")))
                (label("", (x, bottom + 16.0), "middle", &tick_label(tick, distance(&x_ticks))))
            }
            (path("axis", area.rule(bottom)))
            (label("", ((left + right) / 2.0, bottom + 31.0), "middle", self.x_label))
        }
    }

    /// Draws the names at the right, apart where they would touch.
    fn names(&self, area: &PlotArea) -> Markup {
        let mut labels = self.end_labels();
        labels.sort_by(|a, b| b.y.total_cmp(&a.y));
        let wanted: Vec<f64> = labels.iter().map(|l| area.y.at(l.y)).collect();
        let placed = spread(&wanted, LABEL_HEIGHT, area.top, area.bottom);
        let (from, to) = (area.right + 3.0, area.right + 11.0);
        html! {
            @for ((end, wanted), y) in labels.iter().zip(wanted).zip(placed) {
                (path(
                    &format!("leader {}", end.class),
                    format!("M{from:.1} {wanted:.1}L{to:.1} {y:.1}h4"),
                ))
                (label("name", (area.right + 18.0, y + 4.0), "start", &end.label))
            }
        }
    }

    /// Returns the names to draw. A line that is alone needs none, since the title of the chart
    /// names it.
    fn end_labels(&self) -> Vec<ReferenceLevel> {
        let ends = self.series.iter().filter_map(|series| {
            Some(ReferenceLevel {
                label: series.label.clone(),
                class: series.class,
                y: series.finite().last()?.y,
            })
        });
        let mut all: Vec<_> = ends.chain(self.references.iter().cloned()).collect();
        all.retain(|level| !level.label.is_empty());
        if all.len() == 1 && self.references.is_empty() {
            all.clear();
        }
        all
    }

    fn line(&self, series: &Series, area: &PlotArea) -> Markup {
        let points = series.shortened();
        let runs = points
            .split(|p| !p.is_finite())
            .filter(|run| !run.is_empty());
        let dots = if points.len() > MAX_DOTS {
            &[]
        } else {
            &points[..]
        };
        html! {
            g class=(series.class) {
                @for run in runs {
                    @if series.joined {
                        @if let Some(band) = band(run, area) { (path("band", band)) }
                        (path("line", polyline(run.iter().map(|p| area.at(p.x, p.y)))))
                    } @else {
                        @for whisker in run.iter().filter_map(|p| whisker(p, area)) {
                            (path("whisker", whisker))
                        }
                    }
                }
                @for point in dots.iter().filter(|p| p.is_finite()) {
                    @let (x, y) = area.at(point.x, point.y);
                    circle.dot cx=(unit(x)) cy=(unit(y)) r="2.4" {
                        title { (self.tooltip(&series.label, point)) }
                    }
                }
            }
        }
    }

    fn tooltip(&self, label: &str, point: &Point) -> String {
        let show = |v: f64| match self.y_axis {
            YAxis::Percent => format!("{} %", number::percent(v)),
            _ => number::value(v),
        };
        let mut text = format!("{label} at {}: {}", point.x, show(point.y));
        if let Some((low, high)) = point.band {
            text += &format!(" ({} to {})", show(low), show(high));
        }
        text
    }
}

/// Returns the outline of the band around a line; none for a single point.
fn band(run: &[Point], area: &PlotArea) -> Option<String> {
    let banded = || run.iter().filter_map(|p| Some((p.x, p.band?)));
    if banded().count() < 2 {
        return None;
    }
    let upper = banded().map(|(x, (_, high))| area.at(x, high));
    let lower: Vec<_> = banded().map(|(x, (low, _))| area.at(x, low)).collect();
    Some(polyline(upper.chain(lower.into_iter().rev())) + "Z")
}

/// Returns the vertical line of the band at a single point.
fn whisker(point: &Point, area: &PlotArea) -> Option<String> {
    let (low, high) = point.band?;
    let (x, low) = area.at(point.x, low);
    Some(format!("M{x:.1} {low:.1}V{:.1}", area.y.at(high)))
}

fn polyline(points: impl Iterator<Item = (f64, f64)>) -> String {
    let commands = std::iter::once('M').chain(std::iter::repeat('L'));
    points
        .zip(commands)
        .map(|((x, y), command)| format!("{command}{x:.1} {y:.1}"))
        .collect()
}

/// Moves ascending positions at least `gap` apart, and inside `top..bottom` if there is room.
fn spread(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut placed: Vec<f64> = wanted.to_vec();
    for i in 1..placed.len() {
        placed[i] = placed[i].max(placed[i - 1] + gap);
    }
    if let Some(last) = placed.last_mut() {
        *last = last.min(bottom);
    }
    for i in (1..placed.len()).rev() {
        placed[i - 1] = placed[i - 1].min(placed[i] - gap);
    }
    if placed.first().is_some_and(|first| *first < top) {
        for (i, position) in placed.iter_mut().enumerate() {
            *position = position.max(top + i as f64 * gap);
        }
    }
    placed
}

/// Returns the ticks that are whole numbers, or all if none is.
fn whole(ticks: Vec<f64>) -> Vec<f64> {
    let is_whole = |tick: &f64| (tick - tick.round()).abs() < 1e-6;
    let whole: Vec<f64> = ticks.iter().copied().filter(is_whole).collect();
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
            y_axis: YAxis::FromZero,
            series: vec![Series {
                label: "a".to_owned(),
                class: "grpo",
                points,
                joined: true,
            }],
            references: Vec::new(),
        }
    }

    #[test]
    fn a_gap_breaks_the_line() {
        let point = |x: f64, y: f64| Point { x, y, band: None };
        let points = vec![point(0.0, 1.0), point(1.0, f64::NAN), point(2.0, 1.0)];
        let svg = chart(points).draw(300.0, 200.0).into_string();
        assert_eq!(svg.matches("class=\"line\"").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn points_that_are_not_joined_have_whiskers_and_no_line() {
        let point = |x: f64| Point {
            x,
            y: 0.5,
            band: Some((0.4, 0.6)),
        };
        let mut chart = chart(vec![point(0.0), point(80.0)]);
        chart.series[0].joined = false;
        let svg = chart.draw(300.0, 200.0).into_string();
        assert_eq!(svg.matches("class=\"whisker\"").count(), 2);
        assert!(!svg.contains("class=\"line\"") && !svg.contains("class=\"band\""));
    }

    #[test]
    fn labels_are_moved_apart_and_kept_inside() {
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
            let point = |(x, y, b): &(f64, f64, f64)| Point { x: *x, y: *y, band: Some((*b, *y)) };
            let points = values.iter().map(point).collect();
            let printed = chart(points).draw(300.0, 200.0).into_string();
            // Labels are text; coordinates are attributes.
            prop_assert!(!printed.contains("NaN") && !printed.contains("\"inf"), "{printed}");
        }
    }
}
