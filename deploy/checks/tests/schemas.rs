//! Every document of every overlay fits the schema of its kind, and mistakes are caught.

use deploy_checks::{documents, faults, overlays, render, root};
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

/// kubernetes-validate does not know JobSet, so only the schemas of this crate find such mistakes.
#[test]
fn mistakes_in_a_jobset_are_caught() {
    let documents = render(&root().join("deploy/kubernetes/overlays/spot"));
    let jobset = documents.into_iter().find(|it| it["kind"] == "JobSet");
    let mut jobset = jobset.unwrap();
    jobset["spec"]["failurePolicy"]["maxRestart"] = json!(3);
    jobset["spec"]["replicatedJobs"][1]["replicas"] = json!("two");
    let faults = faults(&jobset).join("\n");
    for fault in [
        "unknown field spec.failurePolicy.maxRestart",
        "spec.replicatedJobs[1].replicas",
    ] {
        assert!(faults.contains(fault), "{faults}");
    }
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
