//! Tests the container of env-node under podman: its privileges, and the loss of one of two
//! containers during 200 episodes.
//!
//! Enabled by `SQLENV_TEST_CONTAINERS=1`, because it builds the static binary. It needs what
//! `make image` needs.

#![expect(clippy::unwrap_used, reason = "what a test needs may fail it")]

mod episodes;
mod podman;

use std::{
    cell::Cell,
    env, fs,
    io::{Write as _, stderr},
    path::Path,
};

use ::env::{EnvSettings, Environment};
use env_node::{EnvNode, EnvNodeSettings};
use proto::{EnvClient, Transport};

use crate::{
    episodes::{EPISODES, STEPS, play_all},
    podman::{Container, Podman},
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_containers_serve_and_one_may_die() {
    if env::var_os("SQLENV_TEST_CONTAINERS").is_none() {
        // Written to stderr directly, because the harness hides what a passing test prints.
        let line =
            "SKIPPED: the container was not built; SQLENV_TEST_CONTAINERS=1 builds and runs it\n";
        let _ = stderr().write_all(line.as_bytes());
        return;
    }
    let podman = Podman::new();
    podman.make_image();
    let undisturbed = play_all(node_in_process(), || {}).await;

    let (doomed, other) = (podman.run(KEY), podman.run(KEY));
    is_confined(&doomed);
    let list = format!("{},{}", doomed.address(), other.address());
    other.serves().await;
    doomed.serves().await;
    let client = EnvClient::new(Transport::dial(&list).unwrap());
    let steps = Cell::new(0);
    let disturbed = play_all(client, || {
        steps.set(steps.get() + 1);
        if steps.get() == EPISODES * STEPS / 2 {
            doomed.kill();
        }
    })
    .await;
    assert_eq!(steps.get(), EPISODES * STEPS);
    assert_eq!(disturbed, undisturbed);
    assert!(other.stops(), "SIGTERM ends it with exit code 0");
}
