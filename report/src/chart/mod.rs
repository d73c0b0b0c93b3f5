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
mod svg;

pub(crate) use line_chart::{LineChart, ReferenceLevel, YAxis};
pub(crate) use rate_rows::{RatePoint, RateRow, interval_strip, rate_rows};
pub(crate) use series::{Point, Series};
pub(crate) use stacked_bars::{BarSegment, StackedBar, stacked_bars};
