//! The overlays keep the policies, and each policy notices what is against it.

use deploy_checks::{
    mistakes::is_noticed,
    overlays,
    policy::{pods, violations},
    render, root,
};
use serde_json::{Value, json};

/// Returns the violations that count. podman has no budgets, and serves to try a run.
fn counted(overlay: &str, documents: &[Value]) -> Vec<String> {
    let mut found = violations(documents);
    found.retain(|it| overlay != "podman" || !it.contains("PodDisruptionBudget"));
    found
}

#[test]
fn overlays_keep_the_policies() {
    for overlay in overlays() {
        let documents = render(&overlay);
        let name = overlay.file_name().unwrap().to_str().unwrap();
        assert!(!pods(&documents).is_empty(), "{name} has no pod");
        let found = counted(name, &documents);
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

/// Every overlay for a cluster denies connections that no policy allows, and env-node connects to
/// nothing.
#[test]
fn connections_are_denied_by_default() {
    for overlay in overlays() {
        if overlay.ends_with("podman") {
            continue;
        }
        let documents = render(&overlay);
        let policy = |name: &str| {
            let is_it =
                |it: &&Value| it["kind"] == "NetworkPolicy" && it["metadata"]["name"] == name;
            documents.iter().find(is_it).map(|it| &it["spec"])
        };
        let all = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
        assert_eq!(policy("default-deny"), Some(&all), "{}", overlay.display());
        if let Some(node) = policy("env-node") {
            assert!(node["egress"].is_null(), "{}", overlay.display());
        }
    }
}

#[test]
fn violations_are_noticed() {
    let documents = render(&root().join("deploy/kubernetes/overlays/multi-node"));
    let is_noticed = |kind: &str, pointer: &str, to: Value, violation: &str| {
        is_noticed(&documents, kind, pointer, &to, violation);
    };
    let pod = "/spec/template/spec";
    let container = "/spec/template/spec/containers/0";
    let deployed = |part: &str, to: Value, violation: &str| {
        is_noticed("Deployment", &format!("{container}{part}"), to, violation);
    };
    let root = format!("{pod}/securityContext/runAsNonRoot");
    is_noticed("Deployment", &root, json!(false), "may run as root");
    let token = format!("{pod}/automountServiceAccountToken");
    is_noticed(
        "Deployment",
        &token,
        json!(true),
        "a token of the API server",
    );
    let read_only = "/securityContext/readOnlyRootFilesystem";
    deployed(read_only, json!(false), "its root can be written");
    deployed(
        "/securityContext/capabilities/drop",
        json!([]),
        "keeps capabilities",
    );
    deployed(
        "/resources/limits/memory",
        Value::Null,
        "no limits of memory",
    );
    deployed(
        "/image",
        json!("sqlenv-env-node:latest"),
        "is not of version",
    );
    deployed("/image", json!("sqlenv-env-node"), "is not of version");
    deployed("/readinessProbe", Value::Null, "no readinessProbe");
    deployed(
        "/livenessProbe/httpGet/port",
        json!("other"),
        "its livenessProbe asks port",
    );
    deployed(
        "/volumeMounts/0/name",
        json!("other"),
        "no volume \"other\"",
    );
    let settings = format!("{pod}/volumes/0/configMap/name");
    is_noticed(
        "Deployment",
        &settings,
        json!("other"),
        "no ConfigMap \"other\"",
    );
    let secret = format!("{pod}/volumes/1/secret/items/0/key");
    is_noticed(
        "Deployment",
        &secret,
        json!("other"),
        "makes a secret \"other\"",
    );
    let target = "/spec/ports/0/targetPort";
    is_noticed("Service", target, json!("http"), "no port \"http\"");
    let budget = "/spec/selector/matchLabels";
    let other = json!({"app.kubernetes.io/component": "other"});
    is_noticed(
        "PodDisruptionBudget",
        budget,
        other,
        "no PodDisruptionBudget",
    );
    let target = "/spec/successPolicy/targetReplicatedJobs/0";
    is_noticed("JobSet", target, json!("leader"), "no job \"leader\"");
    is_noticed(
        "JobSet",
        "/spec/replicatedJobs/2/replicas",
        json!(4),
        "expects 4 ranks",
    );
    is_noticed(
        "JobSet",
        "/spec/network/subdomain",
        json!("other"),
        "is not at http://run-",
    );
    let container = "/spec/replicatedJobs/0/template/spec/template/spec/containers/0";
    let secret = json!([{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "sqlenv"}}}]);
    let env = format!("{container}/env");
    is_noticed("JobSet", &env, secret, "belongs in a file");
    let gpus = format!("{container}/resources/limits/nvidia.com~1gpu");
    is_noticed("JobSet", &gpus, json!("2"), "other GPUs");
}

#[test]
fn wrong_answers_to_failures_are_noticed() {
    let overlays = root().join("deploy/kubernetes/overlays");
    let multi_node = render(&overlays.join("multi-node"));
    let learner = "/spec/replicatedJobs/0/template/spec";
    let actor = "/spec/replicatedJobs/1/template/spec";
    let rank = "/spec/replicatedJobs/2/template/spec";
    for (role, job) in [("learner", learner), ("actor", actor), ("rank", rank)] {
        let arguments = format!("{job}/template/spec/containers/0/args");
        let violation = format!("container {role}: it may hold a GPU and compute on the CPU");
        is_noticed(
            &multi_node,
            "JobSet",
            &arguments,
            &json!([role]),
            &violation,
        );
    }
    let action = "/spec/failurePolicy/rules/1/action";
    let unlimited = json!("RestartJobSetAndIgnoreMaxRestarts");
    is_noticed(
        &multi_node,
        "JobSet",
        action,
        &unlimited,
        "restarts without limit",
    );
    let limit = format!("{actor}/backoffLimit");
    let restarts = "an actor that fails restarts the run";
    is_noticed(&multi_node, "JobSet", &limit, &json!(6), restarts);
    let limit = format!("{learner}/backoffLimit");
    let used = "a rank that fails uses up the failures of the learner";
    is_noticed(&multi_node, "JobSet", &limit, &json!(6), used);

    let one_node = render(&overlays.join("multi-gpu-one-node"));
    let arguments = format!("{learner}/template/spec/initContainers/0/args");
    let holds = "container rank-1: it may hold a GPU";
    is_noticed(&one_node, "JobSet", &arguments, &json!(["rank"]), holds);
}
