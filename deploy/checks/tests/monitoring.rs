//! The monitoring component: its alerts are those of Prometheus in compose, its documents fit their
//! schemas, and it scrapes what the overlays run.

use std::{env, fs, path::PathBuf};

use deploy_checks::{
    documents, faults, mistakes::is_noticed, overlays, policy::violations, render, root,
};
use serde_json::{Value, json};

const ALERTS: &str = "deploy/kubernetes/components/monitoring/alerts.yaml";

/// What precedes the groups of alerts in the PrometheusRule.
const HEAD: &str = "\
# Generated from deploy/prometheus/alerts.yml. After a change there:
#
#   UPDATE_ALERTS=1 cargo test --manifest-path deploy/checks/Cargo.toml alerts
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: sqlenv
  # The Prometheus of kube-prometheus-stack selects by the name of its Helm release.
  labels: {release: kube-prometheus-stack}
spec:
";

/// kustomize cannot make a PrometheusRule of a file of rules, so this test does.
#[test]
fn the_alerts_are_those_of_alerts_yml() {
    let alerts = fs::read_to_string(root().join("deploy/prometheus/alerts.yml")).unwrap();
    let mut expected = HEAD.to_owned();
    for line in alerts.lines() {
        let indent = if line.is_empty() { "" } else { "  " };
        expected.extend([indent, line, "\n"]);
    }
    let path = root().join(ALERTS);
    if env::var_os("UPDATE_ALERTS").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let rule = fs::read_to_string(path).unwrap_or_default();
    assert!(
        rule == expected,
        "{ALERTS} is not what alerts.yml gives; run with UPDATE_ALERTS=1"
    );
    let groups = &documents(&rule)[0]["spec"]["groups"];
    assert!(groups.is_array());
    assert_eq!(groups, &documents(&alerts)[0]["groups"]);
}

/// The documents of the kustomization that uses the component.
fn monitored() -> Vec<Value> {
    render(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/monitored"))
}

fn of_kind(documents: &[Value], kind: &str) -> Value {
    let found = documents.iter().find(|it| it["kind"] == kind);
    found
        .unwrap_or_else(|| panic!("there is no {kind}"))
        .clone()
}

#[test]
fn every_document_fits_its_schema() {
    let documents = monitored();
    let faults: Vec<String> = documents.iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    for kind in ["PodMonitor", "PrometheusRule"] {
        let found = of_kind(&documents, kind);
        assert_eq!(found["metadata"]["namespace"], "sqlenv", "{kind}");
    }
}

#[test]
fn the_dashboard_is_a_config_map_that_grafana_loads() {
    let documents = monitored();
    let is_loaded = |it: &&Value| it["metadata"]["labels"]["grafana_dashboard"] == "1";
    let found: Vec<&Value> = documents.iter().filter(is_loaded).collect();
    assert_eq!(found.len(), 1);
    let dashboard = root().join("deploy/grafana/dashboards/sqlenv.json");
    let data = json!({"sqlenv.json": fs::read_to_string(dashboard).unwrap()});
    assert_eq!(found[0]["data"], data);
}

/// The PodMonitor fits the pods of every overlay, not only of the one that is rendered with it.
#[test]
fn every_admin_port_is_scraped() {
    let documents = monitored();
    let monitor = of_kind(&documents, "PodMonitor");
    let relabelings = &monitor["spec"]["podMetricsEndpoints"][0]["relabelings"];
    // SqlenvProcessRestarts counts the pods of a Job by this label.
    let is_by_job = |it: &Value| it["targetLabel"] == "job_container";
    assert!(relabelings.as_array().unwrap().iter().any(is_by_job));
    for overlay in overlays() {
        // Its containers declare no ports.
        if overlay.ends_with("podman") {
            continue;
        }
        let mut documents = render(&overlay);
        documents.push(monitor.clone());
        let found = violations(&documents);
        assert!(found.is_empty(), "{}: {found:#?}", overlay.display());
    }
    let found = violations(&documents);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn ports_that_are_not_scraped_are_noticed() {
    let documents = monitored();
    let is_noticed = |kind: &str, pointer: &str, to: Value, violation: &str| {
        is_noticed(&documents, kind, pointer, &to, violation);
    };
    let learner = "/spec/replicatedJobs/0/template/spec/template";
    let unscraped = |port| format!("job learner: admin port {port}: no PodMonitor scrapes it");
    is_noticed(
        "PodMonitor",
        "/spec/podMetricsEndpoints/0/port",
        json!("metrics"),
        &unscraped(9000),
    );
    is_noticed(
        "PodMonitor",
        "/spec/podMetricsEndpoints/1/port",
        json!("admin-1"),
        &unscraped(9001),
    );
    is_noticed(
        "PodMonitor",
        "/spec/selector/matchExpressions/0/values",
        json!(["env-node", "actor"]),
        &unscraped(9000),
    );
    is_noticed(
        "JobSet",
        &format!("{learner}/metadata/labels/app.kubernetes.io~1component"),
        json!("trainer"),
        &unscraped(9000),
    );
    is_noticed(
        "JobSet",
        &format!("{learner}/spec/initContainers/0/ports"),
        json!([]),
        &unscraped(9001),
    );
    is_noticed(
        "JobSet",
        &format!("{learner}/spec/initContainers/0/name"),
        json!("learner-1"),
        "admin port 9001: its job is Some(\"learner\")",
    );
    is_noticed(
        "NetworkPolicy",
        "/spec/ingress/0/ports/0/endPort",
        json!(9000),
        "admin port 9001: no NetworkPolicy lets Prometheus in",
    );
}
