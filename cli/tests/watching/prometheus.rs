//! A Prometheus server scrapes a run, and every query of the dashboard has data.
//!
//! Runs if `SQLENV_TEST_PROMETHEUS` is set, because it needs `prometheus` in the path.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use serde_json::Value;

use crate::{
    expressions::{ALERTS, metric_names, of_alerts, of_dashboard},
    http::{encoded, free_address, get},
    live::Roles,
    program::Running,
    read,
};

/// Writes the configuration for a run's admin ports.
fn configure(dir: &Path, roles: &Roles) {
    fs::write(dir.join("alerts.yml"), read(ALERTS)).unwrap();
    let mut config = "global: {scrape_interval: 250ms, scrape_timeout: 250ms, \
                      evaluation_interval: 1s}\nrule_files: [alerts.yml]\nscrape_configs:\n"
        .to_owned();
    for (role, address) in &roles.admin {
        writeln!(
            config,
            "- job_name: {role}\n  static_configs: [{{targets: [\"{address}\"]}}]"
        )
        .unwrap();
    }
    fs::write(dir.join("prometheus.yml"), config).unwrap();
}

fn start(dir: &Path) -> (Running, String) {
    let address = free_address();
    let mut prometheus = Command::new("prometheus");
    prometheus
        .current_dir(dir)
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let running = Running(prometheus.spawn().unwrap());
    while get(&address, "/-/ready").is_none() {
        sleep(Duration::from_millis(20));
    }
    (running, address)
}

fn api(address: &str, path: &str) -> Value {
    let body = get(address, path).unwrap_or_else(|| panic!("{path} is refused"));
    serde_json::from_str(&body).unwrap()
}

/// Returns the finite samples of a query over the time of the test.
fn finite_samples(address: &str, query: &str, (start, end): (u64, u64)) -> usize {
    let query = encoded(query);
    let path = format!("/api/v1/query_range?query={query}&start={start}&end={end}&step=1");
    let response = api(address, &path);
    let series = response["data"]["result"].as_array().unwrap().clone();
    let values = series
        .iter()
        .flat_map(|it| it["values"].as_array().unwrap());
    let numbers = values.map(|it| it[1].as_str().unwrap().parse::<f64>().unwrap());
    numbers.filter(|value| value.is_finite()).count()
}

fn unix_seconds(address: &str) -> u64 {
    let response = api(
        address,
        &format!("/api/v1/query?query={}", encoded("time()")),
    );
    let time = response["data"]["result"][1].as_str().unwrap();
    time.parse::<f64>().unwrap() as u64
}

#[test]
fn every_query_of_the_dashboard_has_data() {
    if std::env::var_os("SQLENV_TEST_PROMETHEUS").is_none() {
        eprintln!("SKIPPED: SQLENV_TEST_PROMETHEUS is not set");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut roles = Roles::start(dir.path(), 15, |_| ());
    configure(dir.path(), &roles);
    let (_prometheus, address) = start(dir.path());
    let start = unix_seconds(&address);
    while roles.ended().is_none() {
        sleep(Duration::from_millis(100));
    }
    let time = (start, unix_seconds(&address) + 1);
    let mut missing = Vec::new();
    for expression in of_dashboard() {
        let query = expression.text.replace("$__rate_interval", "5s");
        let count = finite_samples(&address, &query, time);
        println!("{count} samples: {}: {query}", expression.source);
        if count == 0 {
            missing.push(format!("{}: {query}", expression.source));
        }
    }
    assert!(
        missing.is_empty(),
        "without data after {time:?}: {missing:#?}"
    );
    let of_alerts = of_alerts().into_iter().map(|it| metric_names(&it.text));
    for name in of_alerts.flatten().collect::<BTreeSet<_>>() {
        let count = finite_samples(&address, &name, time);
        assert!(count > 0, "the alerts use {name}, which has no data");
    }
    let rules = api(&address, "/api/v1/rules");
    for group in rules["data"]["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            assert_eq!(rule["health"], "ok", "{rule}");
            assert_ne!(rule["state"], "firing", "{rule}");
        }
    }
}
