//! The curves of the screen.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Style},
    symbols::Marker,
    widgets::{Axis, Chart, Dataset, GraphType},
};
use report::{LiveStatus, number};

use super::parts::{ACCENT, CHART_ROWS, block};

pub(super) fn draw_charts(frame: &mut Frame<'_>, area: Rect, status: &LiveStatus) {
    let accuracy = status.accuracy();
    let accuracy = accuracy
        .iter()
        .map(|it| (it.step as f64, 100.0 * it.metrics.success.success_rate));
    let mut curves = vec![
        ("Training reward", status.series("reward")),
        ("Accuracy on new questions, %", accuracy.collect()),
        ("Entropy, nats", status.series("entropy")),
        (
            "Zero-variance groups, share",
            status.series("frac_reward_zero_std"),
        ),
        ("KL to the reference, nats", status.series("kl")),
        ("Loss", status.series("loss")),
    ];
    curves.retain(|(_, points)| points.len() > 1);
    let columns = usize::from(area.width / 40).clamp(1, 3);
    let rows = usize::from(area.height / CHART_ROWS.min(area.height.max(1)));
    let rows = rows.min(curves.len().div_ceil(columns));
    let lines = Layout::vertical(vec![Constraint::Length(CHART_ROWS); rows]).split(area);
    for (line, curves) in lines.iter().zip(curves.chunks(columns)) {
        let cells = Layout::horizontal(vec![Constraint::Fill(1); columns]).spacing(2);
        for (cell, (title, points)) in cells.split(*line).iter().zip(curves) {
            draw_chart(frame, *cell, title, points);
        }
    }
}

fn draw_chart(frame: &mut Frame<'_>, area: Rect, title: &str, points: &[(f64, f64)]) {
    let bounds = |pick: fn(&(f64, f64)) -> f64| {
        let values = points.iter().map(pick);
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        // A chart needs a range: equal values are drawn in its middle.
        let margin = if high > low {
            0.0
        } else {
            0.5_f64.max(high.abs() / 10.0)
        };
        [low - margin, high + margin]
    };
    let axis = |bounds: [f64; 2]| {
        Axis::default()
            .bounds(bounds)
            .labels(bounds.map(number::value))
            .style(Style::new().fg(Color::DarkGray))
    };
    let line = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Style::new().fg(ACCENT))
        .data(points);
    let chart = Chart::new(vec![line])
        .block(block(title))
        .x_axis(axis(bounds(|point| point.0)))
        .y_axis(axis(bounds(|point| point.1)));
    frame.render_widget(chart, area);
}
