//! The tables of the screen.

use ratatui::{
    Frame,
    layout::{Constraint, Rect},
    style::Stylize as _,
    widgets::{Row, Table},
};
use report::{ActorStatus, EnvNodeStatus, number, safe_line};

use super::parts::block;

fn optional<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), format)
}

fn table(title: &str, head: &[&'static str], rows: Vec<Row<'static>>) -> Table<'static> {
    let widths = std::iter::once(Constraint::Min(16))
        .chain(head[1..].iter().map(|_| Constraint::Length(12)));
    Table::new(rows, widths)
        .header(Row::new(head.to_vec()).dim())
        .block(block(title))
}

pub(super) fn draw_actors(frame: &mut Frame<'_>, area: Rect, actors: &[ActorStatus]) {
    let row = |actor: &ActorStatus| {
        let row = Row::new([
            safe_line(&actor.id),
            if actor.is_connected {
                "connected"
            } else {
                "away"
            }
            .to_owned(),
            optional(actor.policy_version, |it| it.to_string()),
            optional(actor.version_lag, |it| it.to_string()),
            optional(actor.tokens_per_second, |it| number::short_count(it as u64)),
            optional(actor.busy_share, |it| format!("{} %", number::percent(it))),
            actor.groups_in_flight.to_string(),
            actor.groups_done.to_string(),
            number::seconds(actor.silent_seconds),
        ]);
        if actor.is_connected {
            row
        } else {
            row.yellow()
        }
    };
    let head = [
        "actor",
        "state",
        "version",
        "behind",
        "tokens/s",
        "busy",
        "held",
        "done",
        "last call",
    ];
    frame.render_widget(
        table("Actors", &head, actors.iter().map(row).collect()),
        area,
    );
}

pub(super) fn draw_env_nodes(frame: &mut Frame<'_>, area: Rect, nodes: &[EnvNodeStatus]) {
    let milliseconds = |seconds: f64| format!("{} ms", number::value(1e3 * seconds));
    let row = |node: &EnvNodeStatus| {
        Row::new([
            safe_line(&node.address),
            node.recent_calls.to_string(),
            node.recent_errors.to_string(),
            optional(node.mean_latency_seconds, milliseconds),
            optional(node.p95_latency_seconds, milliseconds),
            node.calls.to_string(),
            node.errors.to_string(),
        ])
    };
    let head = [
        "env-node",
        "calls/min",
        "failed/min",
        "mean",
        "95 % below",
        "calls",
        "failed",
    ];
    frame.render_widget(
        table("Env-nodes", &head, nodes.iter().map(row).collect()),
        area,
    );
}
