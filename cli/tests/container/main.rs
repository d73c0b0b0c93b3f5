//! Tests the containers under podman: the privileges of env-node, the loss of one of two env-nodes
//! during 200 episodes, and whole training runs of `deploy/`.
//!
//! Enabled by `SQLENV_TEST_CONTAINERS=1`, because it builds the static binary. It needs what
//! `make images` needs, and podman-compose, kubectl and Debian's package prometheus. podman runs as
//! root.

#![expect(clippy::unwrap_used, reason = "what a test needs may fail it")]

mod compose;
#[path = "../watching/expressions.rs"]
mod expressions;
#[path = "../watching/http.rs"]
mod http;
mod kube;
mod podman;
#[path = "../watching/queries.rs"]
mod queries;
#[path = "../../../env-node/tests/common/transcripts.rs"]
mod transcripts;

use std::{
    env, fs,
    io::{Write as _, stderr},
    path::Path,
};

use ::env::{EnvSettings, Environment};
use env_node::{EnvNode, EnvNodeSettings};
use proto::{EnvClient, Transport};

use crate::{
    podman::{Container, Podman},
    transcripts::play_all,
};

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Returns the reference node: it runs in this process, with the data of the image.
fn node_in_process() -> EnvClient {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/image/data");
    let config = EnvSettings {
        signing_key: Some(KEY.to_owned().into()),
        ..EnvSettings::default()
    };
    let dataset = data::Dataset::open(&data, None).unwrap();
    let environment = Environment::open(dataset, config).unwrap();
    let node = EnvNode::new(environment, EnvNodeSettings::default()).unwrap();
    EnvClient::new(Transport::in_process(node.service()))
}

/// Returns the content of a file of the repository.
fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The container has its own user, no capabilities, no new privileges, and a read-only root.
fn is_confined(container: &Container) {
    assert_eq!(container.inspect("{{.Config.User}}"), "65532:65532");
    let process = format!("/proc/{}", container.inspect("{{.State.Pid}}"));
    let status = fs::read_to_string(format!("{process}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(field("CapEff:"), "0000000000000000");
    assert_eq!(field("CapBnd:"), "0000000000000000");
    assert_eq!(field("NoNewPrivs:"), "1");
    let mounts = fs::read_to_string(format!("{process}/mountinfo")).unwrap();
    let root = mounts
        .lines()
        .find(|line| line.split(' ').nth(4) == Some("/"));
    let options = root.unwrap().split(' ').nth(5).unwrap();
    assert!(options.split(',').any(|option| option == "ro"), "{options}");
}

/// Whether the tests of containers are enabled. Says so if they are not.
fn is_enabled() -> bool {
    if env::var_os("SQLENV_TEST_CONTAINERS").is_some() {
        return true;
    }
    // Written to stderr directly, because the harness hides what a passing test prints.
    let line = "SKIPPED: no container was built; SQLENV_TEST_CONTAINERS=1 builds and runs them\n";
    let _ = stderr().write_all(line.as_bytes());
    false
}

#[test]
fn a_run_of_the_compose_file_survives_kills_and_gives_the_weights_of_one_process() {
    if is_enabled() {
        compose::a_cluster_survives(&Podman::new());
    }
}

#[test]
fn podman_runs_the_kubernetes_overlay_to_the_end() {
    if is_enabled() {
        kube::an_overlay_runs_to_the_end(&Podman::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_containers_serve_and_one_may_die() {
    if !is_enabled() {
        return;
    }
    let podman = Podman::new();
    let undisturbed = play_all(node_in_process(), || {}).await;

    let (doomed, other) = (podman.run(KEY), podman.run(KEY));
    is_confined(&doomed);
    let list = format!("{},{}", doomed.address(), other.address());
    other.serves().await;
    doomed.serves().await;
    let client = EnvClient::new(Transport::dial(&list).unwrap());
    let disturbed = play_all(client, || doomed.kill()).await;
    assert_eq!(disturbed, undisturbed);
    assert!(other.stops(), "SIGTERM ends it with exit code 0");
}
