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

/// An expression and where it is from.
pub(crate) struct Expression {
    pub(crate) source: String,
    pub(crate) text: String,
}

/// Returns the expressions of the dashboard, by panel.
pub(crate) fn of_dashboard() -> Vec<Expression> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |target| Expression {
            source: format!("panel {title:?}"),
            text: target["expr"].as_str().unwrap().to_owned(),
        })
    };
    panels.iter().flat_map(of_panel).collect()
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
pub(crate) fn of_alerts() -> Vec<Expression> {
    let expression = |(name, block): (String, String)| Expression {
        text: field(&block, "expr").unwrap_or_else(|| panic!("{name} has no expr")),
        source: format!("alert {name}"),
    };
    alerts().into_iter().map(expression).collect()
}

/// Removes what is between two characters, which do not nest.
fn without(text: &str, open: char, close: char) -> String {
    let mut depth = 0;
    let mut kept = String::new();
    for character in text.chars() {
        if character == open && depth == 0 {
            depth = 1;
            kept.push(' ');
        } else if character == close && depth == 1 {
            depth = 0;
        } else if depth == 0 {
            kept.push(character);
        }
    }
    kept
}

/// Removes the lists of labels after `by`, `on` and the like.
fn without_label_lists(text: &str) -> String {
    let mut kept = text.to_owned();
    for keyword in [
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "group_right",
    ] {
        for opening in [format!(" {keyword} ("), format!(" {keyword}(")] {
            while let Some(start) = kept.find(&opening) {
                let end = start + kept[start..].find(')').unwrap();
                kept.replace_range(start..=end, " ");
            }
        }
    }
    kept
}

/// Returns the names of the metrics in an expression.
pub(crate) fn metric_names(expression: &str) -> BTreeSet<String> {
    let plain = without(&without(expression, '"', '"'), '{', '}');
    let plain = without_label_lists(&without(&plain, '[', ']'));
    let mut names = BTreeSet::new();
    let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut rest = plain.as_str();
    while let Some(start) = rest.find(is_word) {
        let length = rest[start..].find(|it| !is_word(it));
        let end = length.map_or(rest.len(), |length| start + length);
        let word = &rest[start..end];
        rest = &rest[end..];
        let is_function = rest.trim_start().starts_with('(');
        let is_number = word.starts_with(|it: char| it.is_ascii_digit());
        if !is_function && !is_number && !KEYWORDS.contains(&word.to_lowercase().as_str()) {
            names.insert(word.to_owned());
        }
    }
    names
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
}
