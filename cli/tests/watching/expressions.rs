//! The PromQL of the dashboard and the alerts, and the metrics that an expression names.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::read;

const DASHBOARD: &str = "deploy/grafana/dashboards/sqlenv.json";
pub(crate) const ALERTS: &str = "deploy/prometheus/alerts.yml";

/// What the names of the project's metrics begin with: their crate.
pub(crate) const CRATE_PREFIXES: [&str; 3] = ["actor_", "env_", "learner_"];

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
/// A metric is a word with label matchers, or with the prefix of a crate or of the metrics that
/// Prometheus's libraries give to every process, which no label, keyword or function has.
pub(crate) fn selectors(expression: &str) -> BTreeSet<String> {
    let is_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let prefixes = CRATE_PREFIXES.iter().chain([&"process_"]);
    let mut selectors = BTreeSet::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_word) {
        rest = &rest[start..];
        let word = rest.find(|it| !is_word(it)).unwrap_or(rest.len());
        let matchers = match rest[word..].starts_with('{') {
            true => rest[word..].find('}').unwrap() + 1,
            false => 0,
        };
        let (selector, after) = rest.split_at(word + matchers);
        if matchers > 0 || prefixes.clone().any(|it| selector.starts_with(it)) {
            selectors.insert(selector.to_owned());
        }
        rest = after;
    }
    selectors
}

#[test]
fn metrics_are_found_with_their_label_matchers() {
    let text = r#"sum by (le) (rate(env_a_total{call=~"x|y", z="[1]"}[5m:15s]))
                  / on(job) group_right() process_b unless (up{job="j"} == 1e3) offset 5m"#;
    let found: Vec<String> = selectors(text).into_iter().collect();
    let env = r#"env_a_total{call=~"x|y", z="[1]"}"#;
    assert_eq!(found, [env, "process_b", r#"up{job="j"}"#]);
    let names: Vec<String> = metric_names(text).into_iter().collect();
    assert_eq!(names, ["env_a_total", "process_b", "up"]);
}
