//! A Prometheus server scrapes a run, and every query of the dashboard has data.
//!
//! Runs if `prometheus` is in the path.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use crate::{
    expressions::ALERTS,
    http::{free_address, get},
    live::Roles,
    program::Running,
    promtool::is_installed,
    queries::Prometheus,
    read,
};

/// Writes the configuration for a run's admin ports.
fn configure(dir: &Path, roles: &Roles) {
    fs::write(dir.join("alerts.yml"), read(ALERTS)).unwrap();
    let mut config = "global: {scrape_interval: 250ms, scrape_timeout: 250ms, \
                      evaluation_interval: 1s}\nrule_files: [alerts.yml]\nscrape_configs:\n"
        .to_owned();
    for (role, address) in &roles.admin {
        // As if Kubernetes ran the actor.
        let labels = match *role {
            "actor" => "{job_container: actor}",
            _ => "{}",
        };
        writeln!(
            config,
            "- job_name: {role}\n  static_configs: [{{targets: [\"{address}\"], labels: {labels}}}]"
        )
        .unwrap();
    }
    fs::write(dir.join("prometheus.yml"), config).unwrap();
}

fn start(dir: &Path) -> (Running, Prometheus) {
    let address = free_address();
    let mut prometheus = Command::new("prometheus");
    prometheus
        .current_dir(dir)
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut running = Running(prometheus.spawn().unwrap());
    while get(&address, "/-/ready").is_none() {
        let ended = running.0.try_wait().unwrap();
        assert!(ended.is_none(), "Prometheus ended: {ended:?}");
        sleep(Duration::from_millis(20));
    }
    (running, Prometheus::ready(&address))
}

#[test]
fn every_query_of_the_dashboard_has_data() {
    if !is_installed("prometheus") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut roles = Roles::start(dir.path(), 15, |_| ());
    configure(dir.path(), &roles);
    let (_running, prometheus) = start(dir.path());
    while roles.ended().is_none() {
        sleep(Duration::from_millis(100));
    }
    let empty = prometheus.without_data();
    assert!(empty.is_empty(), "without data: {empty:#?}");
    let firing = prometheus.firing();
    assert!(firing.is_empty(), "{firing:?}");
}
