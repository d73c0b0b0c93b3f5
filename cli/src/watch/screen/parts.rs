//! What the parts of the screen have in common.

use ratatui::{
    style::{Color, Style},
    widgets::{Block, Borders},
};

pub(super) const ACCENT: Color = Color::Cyan;
/// Rows of a chart with its title and its axes.
pub(super) const CHART_ROWS: u16 = 9;

/// Returns a part with its title above.
pub(super) fn block(title: &str) -> Block<'static> {
    Block::new()
        .borders(Borders::TOP)
        .border_style(Style::new().fg(Color::DarkGray))
        .title(format!(" {title} "))
        .title_style(Style::new().fg(ACCENT))
}
