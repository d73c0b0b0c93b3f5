//! Renders the overlays of `deploy/kubernetes`, and checks each document against its schema.
//!
//! An unknown field, a wrong type and a missing field are faults, reported with their path. Kinds
//! without a schema here are faults too, so that a document never passes unchecked.

pub mod mistakes;
pub mod policy;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::Job,
    core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, Service},
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
    scheduling::v1::PriorityClass,
};
use kcr_jobset_x_k8s_io::v1alpha2::jobsets::JobSet;
use kcr_kueue_x_k8s_io::v1beta2::{
    clusterqueues::ClusterQueue, localqueues::LocalQueue, resourceflavors::ResourceFlavor,
};
use kcr_monitoring_coreos_com::v1::{podmonitors::PodMonitor, prometheusrules::PrometheusRule};
use serde::{Deserialize as _, de::DeserializeOwned};
use serde_json::Value;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The version of the program, which tags the images.
pub fn version() -> String {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let line = manifest
        .lines()
        .find_map(|it| it.strip_prefix("version = "));
    line.unwrap_or_default().trim_matches('"').to_owned()
}

/// The folders of all overlays.
///
/// # Panics
/// The folder of overlays cannot be read.
pub fn overlays() -> Vec<PathBuf> {
    let folder = root().join("deploy/kubernetes/overlays");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut overlays: Vec<_> = entries.flatten().map(|it| it.path()).collect();
    overlays.sort();
    overlays
}

/// Returns the documents of an overlay.
///
/// # Panics
/// kubectl is missing, or rejects the overlay.
pub fn render(overlay: &Path) -> Vec<Value> {
    let output = Command::new("kubectl")
        .arg("kustomize")
        .arg(overlay)
        .output()
        .unwrap_or_else(|error| panic!("kubectl cannot be started ({error}); install it"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", overlay.display());
    documents(&String::from_utf8_lossy(&output.stdout))
}

/// Parses YAML of several documents, with merge keys applied.
///
/// # Panics
/// The text is not YAML.
pub fn documents(text: &str) -> Vec<Value> {
    let parse = |document| {
        let mut value = serde_yaml_ng::Value::deserialize(document)
            .unwrap_or_else(|error| panic!("not YAML: {error}"));
        value
            .apply_merge()
            .unwrap_or_else(|error| panic!("a merge key: {error}"));
        serde_json::to_value(value).unwrap_or_else(|error| panic!("not JSON: {error}"))
    };
    serde_yaml_ng::Deserializer::from_str(text)
        .map(parse)
        .collect()
}

/// Names a document for a message.
pub fn name(document: &Value) -> String {
    let text = |pointer| document.pointer(pointer).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or("?");
    format!("{kind} {}", text("/metadata/name").unwrap_or("?"))
}

/// Returns what is wrong with a document by the schema of its kind.
pub fn faults(document: &Value) -> Vec<String> {
    let text = |field: &str| document[field].as_str().unwrap_or_default().to_owned();
    let found = match (&*text("apiVersion"), &*text("kind")) {
        ("apps/v1", "Deployment") => strict::<Deployment>(document),
        ("autoscaling/v2", "HorizontalPodAutoscaler") => {
            strict::<HorizontalPodAutoscaler>(document)
        }
        ("batch/v1", "Job") => strict::<Job>(document),
        ("v1", "ConfigMap") => strict::<ConfigMap>(document),
        ("v1", "Namespace") => strict::<Namespace>(document),
        ("v1", "PersistentVolumeClaim") => strict::<PersistentVolumeClaim>(document),
        ("v1", "Pod") => strict::<Pod>(document),
        ("v1", "Secret") => strict::<Secret>(document),
        ("v1", "Service") => strict::<Service>(document),
        ("networking.k8s.io/v1", "NetworkPolicy") => strict::<NetworkPolicy>(document),
        ("policy/v1", "PodDisruptionBudget") => strict::<PodDisruptionBudget>(document),
        ("scheduling.k8s.io/v1", "PriorityClass") => strict::<PriorityClass>(document),
        ("jobset.x-k8s.io/v1alpha2", "JobSet") => strict::<JobSet>(document),
        ("kueue.x-k8s.io/v1beta2", "ClusterQueue") => strict::<ClusterQueue>(document),
        ("kueue.x-k8s.io/v1beta2", "LocalQueue") => strict::<LocalQueue>(document),
        ("kueue.x-k8s.io/v1beta2", "ResourceFlavor") => strict::<ResourceFlavor>(document),
        ("monitoring.coreos.com/v1", "PodMonitor") => strict::<PodMonitor>(document),
        ("monitoring.coreos.com/v1", "PrometheusRule") => strict::<PrometheusRule>(document),
        (version, kind) => vec![format!("no schema for {version} {kind}")],
    };
    let name = name(document);
    found
        .into_iter()
        .map(|it| format!("{name}: {it}"))
        .collect()
}

/// Returns the unknown fields, or the first error.
fn strict<T: DeserializeOwned>(document: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let parsed = {
        let mut note = |path: serde_ignored::Path<'_>| {
            let path = path.to_string().replace(".?", "");
            // The crates of resource definitions leave these to their callers.
            if path != "apiVersion" && path != "kind" {
                unknown.push(format!("unknown field {path}"));
            }
        };
        let strict = serde_ignored::Deserializer::new(document, &mut note);
        T::deserialize(serde_path_to_error::Deserializer::new(strict, &mut track))
    };
    if let Err(error) = parsed {
        unknown.push(format!("{}: {error}", track.path()));
    }
    unknown
}
