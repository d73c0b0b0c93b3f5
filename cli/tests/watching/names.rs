//! Checks the names and the texts of metrics and alerts against each other.

use std::collections::BTreeSet;

use crate::{
    described::{Described, all},
    expressions::{CRATE_PREFIXES, alerts, field, metric_names, of_alerts, of_dashboard},
    read,
};

/// The metrics of Prometheus itself and of its libraries that dashboard and alerts use.
const OF_PROMETHEUS: [&str; 4] = [
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "up",
];

/// Returns the metric that a series is of.
pub(crate) fn base(series: &str, is_histogram: impl Fn(&str) -> bool) -> String {
    let suffixes = ["_bucket", "_sum", "_count"];
    let stems = suffixes.iter().filter_map(|it| series.strip_suffix(it));
    let stem = stems.into_iter().find(|stem| is_histogram(stem));
    stem.unwrap_or(series).to_owned()
}

/// Returns the metrics of the project that dashboard and alerts use.
pub(crate) fn used() -> BTreeSet<String> {
    let all = all();
    let is_histogram = |name: &str| all.get(name).is_some_and(|it| it.kind == "histogram");
    let expressions = of_dashboard().into_iter().chain(of_alerts());
    let names = expressions.flat_map(|expression| metric_names(&expression));
    let own = names.filter(|name| !OF_PROMETHEUS.contains(&name.as_str()));
    own.map(|name| base(&name, is_histogram)).collect()
}

#[test]
fn every_name_in_dashboard_and_alerts_is_a_metric() {
    let all = all();
    let unknown: Vec<String> = used()
        .into_iter()
        .filter(|it| !all.contains_key(it))
        .collect();
    assert!(unknown.is_empty(), "no crate describes {unknown:?}");
    // Otherwise the parser may have found nothing.
    assert!(used().len() > 50, "{:?}", used());
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    for (name, Described { kind, text }) in all() {
        let has_prefix = CRATE_PREFIXES.iter().any(|it| name.starts_with(it));
        assert!(has_prefix, "{name} has no crate as prefix");
        assert_eq!(
            name.ends_with("_total"),
            kind == "counter",
            "{name}: {kind}"
        );
        assert!(
            text.ends_with('.') && !text.contains('\n'),
            "{name}: {text:?}"
        );
        for unit in ["_milliseconds", "_ms", "_percent", "_kib", "_minutes"] {
            assert!(!name.contains(unit), "{name} has no base unit");
        }
        let unit = ["_seconds", "_bytes", "_work_units"];
        let has_buckets = unit.iter().any(|it| name.ends_with(it));
        assert!(kind != "histogram" || has_buckets, "{name} has no buckets");
    }
}

#[test]
fn every_alert_says_what_to_do_and_is_tested() {
    let tests = read("deploy/prometheus/alerts.test.yml");
    let settings = read("docs/settings.md");
    let alerts = alerts();
    assert!(alerts.len() > 20);
    for (name, block) in alerts {
        let severity = field(&block, "labels").unwrap();
        let is_known = ["{severity: critical}", "{severity: warning}"].contains(&severity.as_str());
        assert!(is_known, "{name}: {severity}");
        assert!(!field(&block, "summary").unwrap().is_empty(), "{name}");
        let fires = format!("alertname=\"{name}\", alertstate=\"firing\"");
        assert!(tests.contains(&fires), "{name} is not tested");
        let description = field(&block, "description").unwrap();
        let is_path = |it: char| it.is_ascii_alphanumeric() || "._".contains(it);
        for word in description.split(|it| !is_path(it)) {
            let setting = word.trim_end_matches('.');
            let section = setting.split('.').next().unwrap();
            let is_setting = setting.contains('.')
                && ["actor", "env", "env_node", "evaluation", "learner"].contains(&section);
            let is_there = settings.contains(&format!("`{setting}`"));
            assert!(
                !is_setting || is_there,
                "{name} names {setting}, no setting"
            );
        }
    }
}
