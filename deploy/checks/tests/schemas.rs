//! Every document of every overlay fits the schema of its kind, and mistakes are caught.

use deploy_checks::{
    documents, faults,
    mistakes::{is_caught, rename},
    overlays, render, root,
};
use serde_json::{Value, json};

#[test]
fn every_document_fits_its_schema() {
    for overlay in overlays() {
        let documents = render(&overlay);
        assert!(!documents.is_empty(), "{} is empty", overlay.display());
        let faults: Vec<String> = documents.iter().flat_map(faults).collect();
        assert!(faults.is_empty(), "{}: {faults:#?}", overlay.display());
    }
}

/// Returns the documents of the overlay of this name.
fn of_overlay(name: &str) -> Vec<Value> {
    render(&root().join("deploy/kubernetes/overlays").join(name))
}

#[test]
fn mistyped_fields_are_caught() {
    let cpu_test = of_overlay("cpu-test");
    is_caught(
        &cpu_test,
        "Deployment",
        rename(
            "/spec/template/spec/containers/0",
            "readinessProbe",
            "readyProbe",
        ),
        "unknown field spec.template.spec.containers.0.readyProbe",
    );
    is_caught(
        &cpu_test,
        "JobSet",
        rename("/spec/failurePolicy", "maxRestarts", "maxRestart"),
        "unknown field spec.failurePolicy.maxRestart",
    );
    is_caught(
        &cpu_test,
        "JobSet",
        rename(
            "/spec/replicatedJobs/0/template/spec/template/spec/containers/0",
            "volumeMounts",
            "volumesMounts",
        ),
        "containers.0.volumesMounts",
    );
    is_caught(
        &of_overlay("kueue"),
        "ClusterQueue",
        rename("/spec/resourceGroups/0", "flavors", "flavours"),
        "flavors",
    );
}

#[test]
fn wrong_values_are_caught() {
    let spot = of_overlay("spot");
    let set = |pointer: &'static str, to: Value| {
        move |document: &mut Value| *document.pointer_mut(pointer).unwrap() = to.clone()
    };
    let rule = "/spec/failurePolicy/rules/0/action";
    is_caught(
        &spot,
        "JobSet",
        set(rule, json!("Restart")),
        "unknown variant `Restart`",
    );
    let replicas = "/spec/replicatedJobs/1/replicas";
    is_caught(
        &spot,
        "JobSet",
        set(replicas, json!("two")),
        "spec.replicatedJobs[1].replicas",
    );
    let policy = "/spec/preemption/withinClusterQueue";
    is_caught(
        &of_overlay("kueue"),
        "ClusterQueue",
        set(policy, json!("Lower")),
        "unknown variant `Lower`",
    );
    let port = "/spec/ports/0/port";
    is_caught(
        &spot,
        "Service",
        set(port, json!("grpc")),
        "spec.ports[0].port",
    );
}

/// The webhook of JobSet refuses other names of rules, and actions behind a feature gate that is
/// off by default.
#[test]
fn the_rules_of_a_failure_policy_are_those_that_jobset_accepts() {
    for overlay in overlays() {
        let documents = render(&overlay);
        let is_jobset = |it: &&Value| it["kind"] == "JobSet";
        for rule in documents
            .iter()
            .filter(is_jobset)
            .flat_map(|it| it["spec"]["failurePolicy"]["rules"].as_array().unwrap())
        {
            let (name, action) = (rule["name"].as_str(), rule["action"].as_str());
            let (name, action) = (name.unwrap_or_default(), action.unwrap_or_default());
            let is_part = |c: char| c.is_ascii_alphanumeric() || "_,:".contains(c);
            let is_accepted = name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.chars().all(is_part)
                && !name.ends_with([',', ':']);
            assert!(is_accepted, "{}: {name}", overlay.display());
            let is_gated = action.starts_with("RestartJob") && !action.starts_with("RestartJobSet");
            assert!(!is_gated, "{}: {action}", overlay.display());
        }
    }
}

#[test]
fn a_kind_without_a_schema_is_caught() {
    let unknown = json!({"apiVersion": "v9", "kind": "Thing", "metadata": {"name": "a"}});
    assert_eq!(faults(&unknown), ["Thing a: no schema for v9 Thing"]);
}

/// The pod from which results are copied, which belongs to no overlay.
#[test]
fn the_pod_that_fetches_results_fits_its_schema() {
    let path = root().join("deploy/kubernetes/fetch.yaml");
    let documents = documents(&std::fs::read_to_string(path).unwrap());
    assert_eq!(documents.len(), 1);
    assert_eq!(faults(&documents[0]), Vec::<String>::new());
}
