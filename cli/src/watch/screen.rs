//! The screen of `sqlenv watch`.
//!
//! Pure. A view and a size give the same screen. A part for which there is no room is left out,
//! the least important first.

mod charts;
mod parts;
mod tables;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Gauge, Paragraph, Wrap},
};
use report::{LiveEpisode, LiveStatus, RunStatus, Severity, number, safe_line};

use self::parts::{ACCENT, CHART_ROWS, block};
use crate::status_source::Fetched;

const MAX_WARNINGS: usize = 3;

/// What the screen shows.
#[derive(Clone, Debug)]
pub(super) struct View {
    address: String,
    status: Option<Box<LiveStatus>>,
    /// Why the learner does not answer, if it does not.
    away: Option<String>,
}

impl View {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            status: None,
            away: None,
        }
    }

    /// Takes a new status. The last one stays while the learner is away.
    pub(super) fn fetched(&mut self, fetched: Fetched) {
        match fetched {
            Fetched::Status(status) => {
                self.status = Some(status);
                self.away = None;
            }
            Fetched::Away(reason) => self.away = Some(reason),
        }
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let away = view.away.as_ref().map(|reason| away_line(view, reason));
    let [notice, rest] = Layout::vertical([
        Constraint::Length(if away.is_some() { 2 } else { 0 }),
        Constraint::Min(0),
    ])
    .areas(frame.area());
    if let Some(away) = away {
        let notice_text = Paragraph::new(away).wrap(Wrap { trim: true });
        frame.render_widget(notice_text.black().on_yellow(), notice);
    }
    match &view.status {
        Some(status) => draw_status(frame, rest, status),
        None => frame.render_widget("Waiting for the learner. q quits.", rest),
    }
}

fn away_line(view: &View, reason: &str) -> String {
    let has_ended = |status: &LiveStatus| status.state != RunStatus::Running;
    let (address, reason) = (safe_line(&view.address), safe_line(reason));
    match view.status.as_deref().is_some_and(has_ended) {
        true => "The run has ended, and its learner with it. q quits.".to_owned(),
        false => format!("{address} does not answer: {reason}. Trying again. q quits."),
    }
}

fn draw_status(frame: &mut Frame<'_>, area: Rect, status: &LiveStatus) {
    let warnings = warning_lines(status);
    let table_rows = |rows: usize| if rows == 0 { 0 } else { rows as u16 + 2 };
    let wanted = [
        2,
        warnings.len() as u16,
        table_rows(status.actors.len().min(8)),
        table_rows(status.env_nodes.len().min(4)),
        2 * CHART_ROWS,
    ];
    let rows = fit(area.height, &wanted);
    let [head, warned, actors, env_nodes, charts, episode] = Layout::vertical([
        Constraint::Length(rows[0]),
        Constraint::Length(rows[1]),
        Constraint::Length(rows[2]),
        Constraint::Length(rows[3]),
        Constraint::Length(rows[4]),
        Constraint::Min(0),
    ])
    .areas(area);
    draw_head(frame, head, status);
    frame.render_widget(Paragraph::new(warnings), warned);
    if actors.height > 2 {
        tables::draw_actors(frame, actors, &status.actors);
    }
    if env_nodes.height > 2 {
        tables::draw_env_nodes(frame, env_nodes, &status.env_nodes);
    }
    charts::draw_charts(frame, charts, status);
    if let Some(newest) = status.episodes.first().filter(|_| episode.height > 2) {
        draw_episode(frame, episode, newest);
    }
}

/// Gives each part the rows it wants while there are rows left.
fn fit(rows: u16, wanted: &[u16; 5]) -> [u16; 5] {
    let mut left = rows;
    wanted.map(|wanted| {
        let given = wanted.min(left);
        left -= given;
        given
    })
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, status: &LiveStatus) {
    let [title, gauge] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    let mut spans = vec![
        Span::styled(
            safe_line(&status.name),
            Style::new().fg(ACCENT).add_modifier(Modifier::BOLD),
        ),
        Span::raw(format!("  {}", state(status))),
    ];
    for name in ["reward", "loss", "entropy", "kl"] {
        if let Some(value) = status.metric(name) {
            spans.push(Span::raw(format!("  {name} ")).dim());
            spans.push(Span::raw(number::value(value)));
        }
    }
    if let Some(last) = status.accuracy().last() {
        let rate = last.metrics.success.success_rate;
        spans.push(Span::raw("  accuracy ").dim());
        spans.push(Span::raw(format!("{} %", number::percent(rate))));
    }
    if let Some(rate) = status.tokens_per_second() {
        spans.push(Span::raw("  tokens/s ").dim());
        spans.push(Span::raw(number::short_count(rate as u64)));
    }
    frame.render_widget(Line::from(spans), title);
    let steps = status.settings.steps.unwrap_or(0).max(1);
    let bar = Gauge::default()
        .ratio((status.step as f64 / steps as f64).min(1.0))
        .label(status.position())
        .gauge_style(Style::new().fg(ACCENT).bg(Color::DarkGray));
    if status.settings.steps.is_some() {
        frame.render_widget(bar, gauge);
    } else {
        frame.render_widget(status.position(), gauge);
    }
}

fn state(status: &LiveStatus) -> String {
    match (status.state, status.eta_seconds) {
        (RunStatus::Finished, _) => "finished".to_owned(),
        (RunStatus::Interrupted, _) => "stopped".to_owned(),
        (RunStatus::Running, Some(left)) => format!("{} left", number::seconds(left)),
        (RunStatus::Running, None) => status.activity().to_owned(),
    }
}

fn warning_lines(status: &LiveStatus) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = Vec::new();
    for finding in status.findings.iter().take(MAX_WARNINGS) {
        let color = match finding.severity {
            Severity::Problem => Color::Red,
            Severity::Hint => Color::Yellow,
        };
        let seen = Span::styled(
            format!("! {}", safe_line(&finding.seen)),
            Style::new().fg(color),
        );
        lines.push(seen.into());
        lines.push(Line::from(format!("  {}", safe_line(&finding.remedy))).dim());
    }
    let more = status.findings.len().saturating_sub(MAX_WARNINGS);
    if more > 0 {
        lines.push(format!("  and {more} more: sqlenv doctor").into());
    }
    lines
}

fn draw_episode(frame: &mut Frame<'_>, area: Rect, live: &LiveEpisode) {
    let episode = &live.episode;
    let question = match episode.question.is_empty() {
        true => &episode.question_id,
        false => &episode.question,
    };
    let verdict = match (episode.failure.is_empty(), episode.correct) {
        (false, _) => Span::from("failed ").red(),
        (true, true) => Span::from("right ").green(),
        (true, false) => Span::from("wrong ").red(),
    };
    let mut lines = vec![Line::from(vec![
        verdict,
        Span::raw(safe_line(question)).bold(),
    ])];
    for step in &episode.steps {
        let action = format!("{:<8} {}", step.action_type, safe_line(&step.argument));
        lines.push(Line::from(action));
        let (text, is_error) = match (&step.error, &step.result) {
            (Some(error), _) => (error, true),
            (None, Some(result)) => (result, false),
            (None, None) => continue,
        };
        let first = text.lines().next().unwrap_or_default();
        let line = Line::from(format!("         {}", safe_line(first)));
        lines.push(if is_error { line.red() } else { line.dim() });
    }
    let title = format!(
        "Newest episode: group {}, return {}",
        live.group_index,
        number::signed(episode.reward, 2)
    );
    frame.render_widget(Paragraph::new(lines).block(block(&title)), area);
}

#[cfg(test)]
pub(super) mod tests;
