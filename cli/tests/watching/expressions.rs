//! The PromQL of the dashboard and the alerts, and the metrics that an expression names.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::read;

const DASHBOARD: &str = "deploy/grafana/dashboards/sqlenv.json";
pub(crate) const ALERTS: &str = "deploy/prometheus/alerts.yml";

/// What is an identifier in PromQL and no metric, unless it is a function, which a parenthesis
/// follows.
const KEYWORDS: [&str; 13] = [
    "and",
    "bool",
    "by",
    "group_left",
    "group_right",
    "ignoring",
    "inf",
    "nan",
    "offset",
    "on",
    "or",
    "unless",
    "without",
];

/// The keywords that a list of labels may follow.
const LABEL_LISTS: [&str; 6] = [
    "by",
    "group_left",
    "group_right",
    "ignoring",
    "on",
    "without",
];

/// Returns the expressions of the dashboard.
pub(crate) fn of_dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let of_panel = |panel: &Value| {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        let expression = |target: Value| target["expr"].as_str().unwrap().to_owned();
        targets.into_iter().map(expression)
    };
    panels.iter().flat_map(of_panel).collect()
}

/// Replaces Grafana's variables: the interval by 30 seconds, the namespace by the pattern for any.
pub(crate) fn without_variables(expression: &str) -> String {
    let text = expression.replace("$__rate_interval", "30s");
    text.replace("$namespace", ".*")
}

/// Returns the blocks of an alerts file: the lines from one `- alert:` to the next.
pub(crate) fn alerts() -> Vec<(String, String)> {
    let text = read(ALERTS);
    let blocks = text.split("- alert:").skip(1);
    let named = blocks.map(|block| {
        let name = block.lines().next().unwrap().trim();
        (name.to_owned(), block.to_owned())
    });
    named.collect()
}

/// Returns the value of a field of an alert. A folded value has its lines joined.
pub(crate) fn field(block: &str, name: &str) -> Option<String> {
    let mut lines = block.lines();
    let key = format!("{name}:");
    let first = lines.find(|line| line.trim_start().starts_with(&key))?;
    let indent = |line: &str| line.len() - line.trim_start().len();
    let value = first.trim_start()[key.len()..].trim();
    if value != ">-" {
        return Some(value.to_owned());
    }
    let deeper = lines.take_while(|line| indent(line) > indent(first));
    Some(deeper.map(str::trim).collect::<Vec<_>>().join(" "))
}

/// Returns the expressions of the alerts.
pub(crate) fn of_alerts() -> Vec<String> {
    let expression = |(name, block): (String, String)| {
        field(&block, "expr").unwrap_or_else(|| panic!("{name} has no expr"))
    };
    alerts().into_iter().map(expression).collect()
}

/// Returns the names of the metrics in an expression.
pub(crate) fn metric_names(expression: &str) -> BTreeSet<String> {
    let name = |selector: &String| selector.split('{').next().unwrap().to_owned();
    selectors(expression).iter().map(name).collect()
}

/// Returns the selectors of an expression without their ranges: metrics with their label matchers.
pub(crate) fn selectors(expression: &str) -> BTreeSet<String> {
    let is_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let mut selectors = BTreeSet::new();
    let mut rest = expression;
    while let Some(start) = rest.find(|it| is_word(it) || it == '"' || it == '[') {
        rest = &rest[start..];
        if let Some(text) = rest.strip_prefix('"') {
            rest = after(text, '"');
            continue;
        }
        if rest.starts_with('[') {
            rest = after(rest, ']');
            continue;
        }
        let end = rest.find(|it| !is_word(it)).unwrap_or(rest.len());
        let (word, following) = rest.split_at(end);
        let next = following.trim_start();
        let has_labels = LABEL_LISTS.contains(&word) && next.starts_with('(');
        rest = match next.chars().next() {
            Some('{') => after(next, '}'),
            Some('(') if has_labels => after(next, ')'),
            _ => following,
        };
        let is_number = word.starts_with(|it: char| it.is_ascii_digit());
        let is_keyword = KEYWORDS.contains(&word.to_lowercase().as_str());
        let is_function = ["(", "by", "without"].iter().any(|it| next.starts_with(it));
        if !is_function && !is_number && !is_keyword {
            let matchers = &following[..following.len() - rest.len()];
            selectors.insert(format!("{word}{}", matchers.trim()));
        }
    }
    selectors
}

/// Returns what follows the first `end` in a text.
fn after(text: &str, end: char) -> &str {
    text.split_once(end).unwrap().1
}

#[test]
fn names_are_found_in_expressions() {
    let names = |expression| metric_names(expression).into_iter().collect::<Vec<_>>();
    assert_eq!(
        names(r#"sum by (le, call) (rate(a_b_bucket{call="x", d=~"e|f"}[5m])) / 2 > 0.5"#),
        ["a_b_bucket"]
    );
    assert_eq!(
        names("max(a) - on() group_right() b unless (c == 1) and on(instance) d offset 5m"),
        ["a", "b", "c", "d"].map(str::to_owned)
    );
    assert_eq!(
        names("avg_over_time((x_ratio >= 0)[15m:15s]) > 1e3"),
        ["x_ratio"]
    );
    assert_eq!(
        names(r#"label_replace(x_total, "reason", "a by (b)", "", "") or absent(y)"#),
        ["x_total", "y"]
    );
}

#[test]
fn selectors_keep_their_label_matchers() {
    let text = r#"sum by (le) (rate(a_total{call=~"x|y", z="[1]"}[5m:15s])) / b > 1"#;
    let found: Vec<String> = selectors(text).into_iter().collect();
    assert_eq!(found, [r#"a_total{call=~"x|y", z="[1]"}"#, "b"]);
}
