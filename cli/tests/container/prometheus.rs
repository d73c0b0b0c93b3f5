//! Asks a Prometheus over its HTTP API.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

/// How far back a query looks: longer than the run of the test.
const SPAN: Duration = Duration::from_secs(1800);
/// Words of PromQL that look like the name of a metric.
const KEYWORDS: [&str; 25] = [
    "and",
    "or",
    "unless",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "offset",
    "bool",
    "inf",
    "nan",
    "atan2",
    "sum",
    "min",
    "max",
    "avg",
    "count",
    "group",
    "stddev",
    "stdvar",
    "topk",
    "bottomk",
    "quantile",
];

/// A server on this machine.
pub(crate) struct Prometheus {
    address: String,
}

impl Prometheus {
    pub(crate) fn at(port: &str) -> Self {
        Self {
            address: format!("127.0.0.1:{port}"),
        }
    }

    /// Returns `data` of the response to a GET.
    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        // HTTP/1.0 has no chunks, and the server closes the connection at the end.
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (_, body) = response.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["status"], "success", "{path}: {body}");
        body["data"].clone()
    }

    /// Whether an expression has had any value since the start of the test.
    #[expect(
        clippy::disallowed_methods,
        reason = "Prometheus takes the time of day"
    )]
    fn has_data(&self, expression: &str) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let (start, end) = ((now - SPAN).as_secs(), now.as_secs());
        let query = encoded(expression);
        let path = format!("/api/v1/query_range?query={query}&start={start}&end={end}&step=2");
        self.get(&path)["result"]
            .as_array()
            .is_some_and(|series| !series.is_empty())
    }

    /// Each job has been scraped with success.
    pub(crate) fn has_seen(&self, jobs: &[&str]) {
        for job in jobs {
            let up = format!("up{{job=\"{job}\"}} == 1");
            assert!(self.has_data(&up), "{job} was never scraped");
        }
    }

    /// Every metric that an alert names has data. Most alerts themselves have none, by design.
    pub(crate) fn has_the_metrics_of_all_alerts(&self) {
        let rules = self.get("/api/v1/rules");
        let groups = rules["groups"].as_array().unwrap();
        let rules = groups.iter().flat_map(|it| it["rules"].as_array().unwrap());
        let expressions: Vec<&str> = rules.map(|it| it["query"].as_str().unwrap()).collect();
        assert!(!expressions.is_empty(), "no alert rules are loaded");
        let missing: Vec<String> = expressions
            .into_iter()
            .flat_map(metrics)
            // These are of runs with several ranks.
            .filter(|name| !name.starts_with("learner_rank"))
            .filter(|name| !self.has_data(name))
            .collect();
        assert!(missing.is_empty(), "alerts without data: {missing:?}");
    }

    /// Every query of the dashboards in a folder returns data.
    pub(crate) fn answers_dashboards(&self, folder: &Path) {
        let mut expressions = BTreeSet::new();
        for entry in fs::read_dir(folder).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            collect(
                "expr",
                &serde_json::from_str(&text).unwrap(),
                &mut expressions,
            );
        }
        assert!(!expressions.is_empty(), "no dashboard has a query");
        let empty: Vec<&String> = expressions
            .iter()
            // These are of runs with several ranks.
            .filter(|it| !it.contains("learner_rank"))
            .filter(|it| !self.has_data(&without_variables(it)))
            .collect();
        assert!(empty.is_empty(), "queries without data: {empty:#?}");
    }
}

/// Collects the texts of all fields of this name.
fn collect(field: &str, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == field => drop(into.insert(text.clone())),
                    _ => collect(field, value, into),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|it| collect(field, it, into)),
        _ => {}
    }
}

/// Replaces Grafana's variables: durations by 30 seconds, others by the pattern for anything.
fn without_variables(expression: &str) -> String {
    let mut parts = expression.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let part = part.strip_prefix('{').unwrap_or(part);
        let end = part.find(|it: char| !it.is_alphanumeric() && it != '_');
        let (name, rest) = part.split_at(end.unwrap_or(part.len()));
        text.push_str(if name.starts_with("__") { "30s" } else { ".*" });
        text.push_str(rest.strip_prefix('}').unwrap_or(rest));
    }
    text
}

/// Returns the metrics that an expression names.
fn metrics(expression: &str) -> Vec<String> {
    // Label matchers, label lists, durations and quoted texts hold other names.
    let unquoted: String = expression.split('"').step_by(2).collect();
    let mut text = String::new();
    let (mut depth, mut after_keyword) = (0, false);
    for part in unquoted.split_inclusive(['{', '}', '(', ')', '[', ']']) {
        let (body, last) =
            part.split_at(part.len() - part.chars().last().map_or(0, char::len_utf8));
        let (body, last) = match last.chars().all(|it| "{}()[]".contains(it)) {
            true => (body, last),
            false => (part, ""),
        };
        if depth == 0 {
            text.push_str(body);
            let word = body.split_whitespace().last().unwrap_or_default();
            after_keyword = ["by", "without", "on", "ignoring", "group_left"].contains(&word);
            // A name before a parenthesis is a function.
            if last == "(" && !after_keyword {
                let kept = text.trim_end_matches(|it: char| it.is_alphanumeric() || it == '_');
                text.truncate(kept.len());
            }
        }
        match last {
            "{" | "[" => depth += 1,
            "(" if depth > 0 || after_keyword => depth += 1,
            "}" | "]" => depth -= 1,
            ")" if depth > 0 => depth -= 1,
            _ => {}
        }
        text.push(' ');
    }
    let words = text.split(|it: char| !it.is_alphanumeric() && it != '_' && it != ':');
    let is_metric = |word: &&str| {
        word.starts_with(|it: char| it.is_alphabetic())
            && !KEYWORDS.contains(&word.to_lowercase().as_str())
    };
    words.filter(is_metric).map(str::to_owned).collect()
}

/// Encodes a text for a URL.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[test]
fn metrics_of_an_expression_are_found() {
    let expression = "sum by (job, le) (rate(env_steps_total{code=~\"a|b\"}[5m])) > 0.5 \
                      and on(instance) time() - learner_time_seconds > 600";
    assert_eq!(
        metrics(expression),
        ["env_steps_total", "learner_time_seconds"]
    );
    assert_eq!(metrics("absent(up{job=\"learner\"} == 1)"), ["up"]);
    let labelled = "label_replace(refused_parts_total, \"reason\", \"evaluation\", \"\", \"\")";
    assert_eq!(metrics(labelled), ["refused_parts_total"]);
}

#[test]
fn variables_of_grafana_are_replaced() {
    let expression = "rate(a{job=~\"$job\"}[$__rate_interval]) + b{c=\"${d}\"}";
    let replaced = "rate(a{job=~\".*\"}[30s]) + b{c=\".*\"}";
    assert_eq!(without_variables(expression), replaced);
}
