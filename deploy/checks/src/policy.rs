//! Policies that schemas do not express: what a pod may do, and that names refer to something.

use std::collections::BTreeSet;

use regex_lite::Regex;
use serde_json::Value;

use crate::{name, version};

/// A pod of a document, or of its template.
pub struct PodOf<'a> {
    /// For messages.
    pub name: String,
    /// Its labels.
    pub labels: &'a Value,
    /// Its specification.
    pub spec: &'a Value,
}

impl<'a> PodOf<'a> {
    fn new(name: String, template: &'a Value) -> Self {
        Self {
            name,
            labels: &template["metadata"]["labels"],
            spec: &template["spec"],
        }
    }

    /// Its containers, sidecars included.
    pub fn containers(&self) -> impl Iterator<Item = &'a Value> {
        ["initContainers", "containers"]
            .into_iter()
            .flat_map(|field| items(&self.spec[field]))
    }
}

/// The elements of a list, or nothing.
pub fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The pods of all documents.
pub fn pods(documents: &[Value]) -> Vec<PodOf<'_>> {
    let mut pods = Vec::new();
    for document in documents {
        let name = name(document);
        match text(&document["kind"]) {
            "Pod" => pods.push(PodOf::new(name, document)),
            "Deployment" | "Job" => pods.push(PodOf::new(name, &document["spec"]["template"])),
            "JobSet" => pods.extend(items(&document["spec"]["replicatedJobs"]).map(|job| {
                let name = format!("{name}, job {}", text(&job["name"]));
                PodOf::new(name, &job["template"]["spec"]["template"])
            })),
            _ => {}
        }
    }
    pods
}

/// Returns what in the documents of an overlay is against a policy.
pub fn violations(documents: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    for pod in pods(documents) {
        let mut say = |what: String| found.push(format!("{}: {what}", pod.name));
        of_pod(pod.spec, &mut say);
        for container in pod.containers() {
            let name = text(&container["name"]);
            of_container(container, &mut |what| {
                say(format!("container {name}: {what}"))
            });
        }
        of_volumes(&pod, documents, &mut say);
    }
    of_services(documents, &mut found);
    of_budgets(documents, &mut found);
    of_job_sets(documents, &mut found);
    of_monitors(documents, &mut found);
    found
}

fn of_pod(spec: &Value, say: &mut impl FnMut(String)) {
    let security = &spec["securityContext"];
    if security["runAsNonRoot"] != true || security["runAsUser"] == 0 {
        say("it may run as root".to_owned());
    }
    if security["seccompProfile"]["type"] != "RuntimeDefault" {
        say("it has no seccomp profile".to_owned());
    }
    if spec["automountServiceAccountToken"] != false {
        say("it gets a token of the API server".to_owned());
    }
    if spec["terminationGracePeriodSeconds"].is_null() && spec["restartPolicy"] != "Always" {
        say("it does not say how long it takes to end".to_owned());
    }
}

fn of_container(container: &Value, say: &mut impl FnMut(String)) {
    let security = &container["securityContext"];
    if security["allowPrivilegeEscalation"] != false {
        say("it may gain privileges".to_owned());
    }
    if security["readOnlyRootFilesystem"] != true {
        say("its root can be written".to_owned());
    }
    if security["capabilities"]["drop"][0] != "ALL" {
        say("it keeps capabilities".to_owned());
    }
    for kind in ["requests", "limits"] {
        for resource in ["cpu", "memory"] {
            if container["resources"][kind][resource].is_null() {
                say(format!("it has no {kind} of {resource}"));
            }
        }
    }
    let gpus = |kind: &str| &container["resources"][kind]["nvidia.com/gpu"];
    if gpus("requests") != gpus("limits") {
        say("it requests other GPUs than it may use".to_owned());
    }
    if !gpus("limits").is_null() && !names_cuda(&container["args"]) {
        say("it may hold a GPU and compute on the CPU, without --set=device=cuda".to_owned());
    }
    let image = text(&container["image"]);
    if image.rsplit_once(':').map(|(_, tag)| tag) != Some(&*version()) {
        say(format!("image {image} is not of version {}", version()));
    }
    of_ports(container, say);
    for variable in items(&container["env"]) {
        let name = text(&variable["name"]);
        // Clients of object stores read their keys from nothing else.
        if !variable["valueFrom"]["secretKeyRef"].is_null() && !name.starts_with("AWS_") {
            say(format!("the secret in {name} belongs in a file"));
        }
    }
}

/// Whether a command line names the device `cuda` or `cuda:N`. By default a role that finds no
/// usable GPU computes on the CPU.
pub fn names_cuda(arguments: &Value) -> bool {
    items(arguments).any(|it| text(it).starts_with("--set=device=cuda"))
}

/// A container with ports is a server, and the probes ask its ports.
fn of_ports(container: &Value, say: &mut impl FnMut(String)) {
    let ports: Vec<&Value> = items(&container["ports"]).collect();
    for kind in ["livenessProbe", "readinessProbe"] {
        if !ports.is_empty() && container[kind].is_null() {
            say(format!("it has no {kind}"));
        }
    }
    for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
        for pointer in ["/httpGet/port", "/grpc/port"] {
            let Some(asked) = container[kind].pointer(pointer) else {
                continue;
            };
            if ports
                .iter()
                .all(|it| &it["name"] != asked && &it["containerPort"] != asked)
            {
                say(format!("its {kind} asks port {asked}, which it has not"));
            }
        }
    }
}

/// What volumes name exists, and secrets come from `deploy/secrets.sh`.
fn of_volumes(pod: &PodOf<'_>, documents: &[Value], say: &mut impl FnMut(String)) {
    let exists = |kind: &str, name: &Value| {
        let same = |it: &&Value| it["kind"] == kind && &it["metadata"]["name"] == name;
        documents.iter().any(|it| same(&it))
    };
    for volume in items(&pod.spec["volumes"]) {
        let config = &volume["configMap"]["name"];
        if !config.is_null() && !exists("ConfigMap", config) {
            say(format!("there is no ConfigMap {config}"));
        }
        let claim = &volume["persistentVolumeClaim"]["claimName"];
        if !claim.is_null() && !exists("PersistentVolumeClaim", claim) {
            say(format!("there is no PersistentVolumeClaim {claim}"));
        }
        for item in items(&volume["secret"]["items"]) {
            let known = ["signing-key", "env-token", "actor-token", "rank-token"];
            if !known.contains(&text(&item["key"])) {
                say(format!("no one makes a secret {}", item["key"]));
            }
        }
    }
    let volumes = || items(&pod.spec["volumes"]).map(|it| text(&it["name"]));
    for container in pod.containers() {
        for mount in items(&container["volumeMounts"]) {
            if volumes().all(|it| it != text(&mount["name"])) {
                say(format!("there is no volume {}", mount["name"]));
            }
        }
    }
}

/// Whether labels have all those of a selector.
fn selects(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object();
    selector.is_some_and(|it| it.iter().all(|(key, value)| labels.get(key) == Some(value)))
}

fn of_services(documents: &[Value], found: &mut Vec<String>) {
    for service in documents.iter().filter(|it| it["kind"] == "Service") {
        let selector = &service["spec"]["selector"];
        let pods = pods(documents);
        let pods: Vec<_> = pods
            .iter()
            .filter(|it| selects(selector, it.labels))
            .collect();
        let name = name(service);
        if pods.is_empty() {
            found.push(format!("{name}: it selects no pod"));
        }
        for port in items(&service["spec"]["ports"]) {
            let target = &port["targetPort"];
            let has =
                |container: &Value| items(&container["ports"]).any(|it| &it["name"] == target);
            if !pods.iter().all(|pod| pod.containers().any(has)) {
                found.push(format!("{name}: its pods have no port {target}"));
            }
        }
    }
}

/// Each Deployment that a cluster scales has a budget for evictions.
fn of_budgets(documents: &[Value], found: &mut Vec<String>) {
    for deployment in documents.iter().filter(|it| it["kind"] == "Deployment") {
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        let is_covered = |it: &Value| {
            it["kind"] == "PodDisruptionBudget"
                && selects(&it["spec"]["selector"]["matchLabels"], labels)
        };
        if !documents.iter().any(is_covered) {
            found.push(format!(
                "{}: it has no PodDisruptionBudget",
                name(deployment)
            ));
        }
    }
}

fn of_job_sets(documents: &[Value], found: &mut Vec<String>) {
    for set in documents.iter().filter(|it| it["kind"] == "JobSet") {
        let (spec, name) = (&set["spec"], name(set));
        let jobs: BTreeSet<&str> = items(&spec["replicatedJobs"])
            .map(|it| text(&it["name"]))
            .collect();
        let rules = items(&spec["failurePolicy"]["rules"]);
        let targets = rules.flat_map(|it| items(&it["targetReplicatedJobs"]));
        let ends = items(&spec["successPolicy"]["targetReplicatedJobs"]);
        let awaited = items(&spec["replicatedJobs"])
            .flat_map(|it| items(&it["dependsOn"]))
            .map(|it| &it["name"]);
        for target in targets.chain(ends).chain(awaited) {
            if !jobs.contains(text(target)) {
                found.push(format!("{name}: there is no job {target}"));
            }
        }
        of_ranks(spec, &mut |what| found.push(format!("{name}: {what}")));
        of_failures(spec, &mut |what| found.push(format!("{name}: {what}")));
        let host = format!(
            "http://{}-learner-0-0.{}:8001",
            text(&set["metadata"]["name"]),
            text(&spec["network"]["subdomain"])
        );
        let all = set.to_string();
        for part in all.split('"').filter(|it| it.contains("learner-0-0")) {
            if !part.ends_with(&host) {
                found.push(format!("{name}: {part} is not at {host}"));
            }
        }
    }
}

/// The learner expects as many ranks as there are.
fn of_ranks(spec: &Value, say: &mut impl FnMut(String)) {
    let (mut ranks, mut expected) = (1, 1);
    for job in items(&spec["replicatedJobs"]) {
        let pod = &job["template"]["spec"]["template"]["spec"];
        let containers = items(&pod["initContainers"]).chain(items(&pod["containers"]));
        for container in containers {
            let args: Vec<&str> = items(&container["args"]).map(text).collect();
            if args.first() == Some(&"rank") {
                ranks += job["replicas"].as_i64().unwrap_or(1);
            }
            let count = args
                .iter()
                .find_map(|it| it.strip_prefix("--set=learner.ranks.count="));
            expected = count.map_or(expected, |it| it.parse().unwrap_or_default());
        }
    }
    if ranks != expected {
        say(format!(
            "the learner expects {expected} ranks, and there are {ranks}"
        ));
    }
}

/// The restarts of a run are limited, and actors cause none. A learner fails whenever it loses a
/// rank, so its Job allows at least as many failures as that of a rank.
fn of_failures(spec: &Value, say: &mut impl FnMut(String)) {
    for rule in items(&spec["failurePolicy"]["rules"]) {
        if rule["action"] == "RestartJobSetAndIgnoreMaxRestarts" {
            say(format!("rule {} restarts without limit", rule["name"]));
        }
    }
    let limits = |wanted: &'static str| {
        items(&spec["replicatedJobs"]).filter_map(move |job| {
            let job = &job["template"]["spec"];
            let is_it = role(&job["template"]["spec"]["containers"][0]) == wanted;
            is_it.then(|| job["backoffLimit"].as_u64())
        })
    };
    if limits("actor").any(|limit| limit != Some(i32::MAX as u64)) {
        say("an actor that fails restarts the run".to_owned());
    }
    if limits("learner").min() < limits("rank").max() {
        say("a rank that fails uses up the failures of the learner".to_owned());
    }
}

/// If there is a PodMonitor, Prometheus finds each admin port, reaches it, and has the role as job.
fn of_monitors(documents: &[Value], found: &mut Vec<String>) {
    let of_kind = |kind: &'static str| documents.iter().filter(move |it| it["kind"] == kind);
    if of_kind("PodMonitor").next().is_none() {
        return;
    }
    for pod in pods(documents) {
        for container in pod.containers() {
            let Some(number) = admin_port(container) else {
                continue;
            };
            let mut say =
                |what: &str| found.push(format!("{}: admin port {number}: {what}", pod.name));
            let declared =
                items(&container["ports"]).find(|it| it["containerPort"].as_u64() == Some(number));
            let endpoint = declared.and_then(|port| {
                of_kind("PodMonitor")
                    .filter(|it| selects_by_expressions(&it["spec"]["selector"], pod.labels))
                    .flat_map(|it| items(&it["spec"]["podMetricsEndpoints"]))
                    .find(|it| it["port"] == port["name"])
            });
            let Some(endpoint) = endpoint else {
                say("no PodMonitor scrapes it");
                continue;
            };
            let job = job(endpoint, text(&container["name"]));
            if job.as_deref() != Some(role(container)) {
                say(&format!("its job is {job:?}"));
            }
            if !of_kind("NetworkPolicy").any(|it| admits_prometheus(it, number)) {
                say("no NetworkPolicy lets Prometheus in");
            }
        }
    }
}

/// The port of the argument `--admin=ADDRESS`.
fn admin_port(container: &Value) -> Option<u64> {
    let address = items(&container["args"]).find_map(|it| text(it).strip_prefix("--admin="))?;
    address.rsplit_once(':')?.1.parse().ok()
}

/// The command of a container. The image of env-node brings it.
fn role(container: &Value) -> &str {
    let command = text(&container["args"][0]);
    if command.starts_with("--") {
        "env-node"
    } else {
        command
    }
}

/// Whether labels have all that a selector lists by `In`, which is all that a PodMonitor here uses.
fn selects_by_expressions(selector: &Value, labels: &Value) -> bool {
    items(&selector["matchExpressions"]).all(|it| {
        let label = &labels[text(&it["key"])];
        it["operator"] == "In" && items(&it["values"]).any(|value| value == label)
    })
}

/// The label `job` that an endpoint's relabelings make of the name of a container.
fn job(endpoint: &Value, container: &str) -> Option<String> {
    let relabeling = items(&endpoint["relabelings"]).find(|it| it["targetLabel"] == "job")?;
    let sources = &relabeling["sourceLabels"];
    if sources != &serde_json::json!(["__meta_kubernetes_pod_container_name"]) {
        return None;
    }
    let regex = Regex::new(&format!("^(?:{})$", text(&relabeling["regex"]))).ok()?;
    Some(regex.captures(container)?.get(1)?.as_str().to_owned())
}

/// Whether a policy for all pods admits connections from the namespace `monitoring` to a port.
fn admits_prometheus(policy: &Value, number: u64) -> bool {
    let spec = &policy["spec"];
    let namespace = "/namespaceSelector/matchLabels/kubernetes.io~1metadata.name";
    let is_monitoring =
        |from: &Value| from.pointer(namespace).and_then(Value::as_str) == Some("monitoring");
    let has_number = |port: &Value| {
        let first = port["port"].as_u64().unwrap_or(u64::MAX);
        (first..=port["endPort"].as_u64().unwrap_or(first)).contains(&number)
    };
    let all_pods = spec["podSelector"]
        .as_object()
        .is_some_and(|it| it.is_empty());
    all_pods
        && items(&spec["ingress"]).any(|rule| {
            items(&rule["from"]).any(is_monitoring) && items(&rule["ports"]).any(has_number)
        })
}
