//! Runs `deploy/kubernetes/overlays/podman` with `podman kube play` to the end of its run.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    rc::Rc,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    compose::{has_weights, root, settings_and_secrets, weights_of_one_process},
    podman::{Podman, succeeded},
};

const PATIENCE: Duration = Duration::from_secs(900);
const OVERLAY: &str = "deploy/kubernetes/overlays/podman";
const NETWORK: &str = "sqlenv-test-kube";

/// The pods, volumes and secrets of a document. Dropping it removes them.
struct Played<'a> {
    podman: &'a Podman,
    document: String,
}

impl<'a> Played<'a> {
    fn play(podman: &'a Podman, document: String) -> Self {
        podman.ask(&["network", "create", NETWORK]);
        let played = Self { podman, document };
        let options = ["--build=false", "--network", NETWORK];
        played.kube(&options);
        played
    }

    /// Gives the document to `podman kube play`.
    fn kube(&self, options: &[&str]) {
        let mut command = self.podman.command("podman", &["kube", "play"]);
        command.args(options).arg("-").stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let document = self.document.as_bytes();
        child.stdin.take().unwrap().write_all(document).unwrap();
        succeeded(&child.wait_with_output().unwrap());
    }

    /// Waits until a container has ended by itself with success.
    #[expect(clippy::disallowed_methods, reason = "a run that hangs fails the test")]
    fn wait(&self, container: &str) {
        let format = "--format={{.State.Status}} {{.State.ExitCode}}";
        let started = Instant::now();
        while self.podman.ask(&["inspect", format, container]) != "exited 0" {
            let log = || self.podman.log_of(container);
            assert!(started.elapsed() < PATIENCE, "{container}: {}", log());
            sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Played<'_> {
    fn drop(&mut self) {
        // This also runs if the test has failed.
        for pod in [
            "env-node-pod-0",
            "env-node-pod-1",
            "actor-0",
            "actor-1",
            "learner",
        ] {
            let remove = ["pod", "rm", "--force", "--time=0", pod];
            let _ = self.podman.command("podman", &remove).output();
        }
        for remove in [
            ["volume", "rm", "runs"],
            ["volume", "rm", "sqlenv"],
            ["secret", "rm", "sqlenv"],
            ["network", "rm", NETWORK],
        ] {
            let _ = self.podman.command("podman", &remove).output();
        }
    }
}

/// Returns what a program prints.
fn output(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    succeeded(
        &command
            .args(arguments)
            .current_dir(root())
            .output()
            .unwrap(),
    )
}

pub(crate) fn an_overlay_runs_to_the_end(podman: &Rc<Podman>) {
    let folder = tempfile::tempdir().unwrap();
    let (_, secrets) = settings_and_secrets(&folder);
    let settings = root().join("deploy/kubernetes/overlays/cpu-test/settings.toml");
    let expected = weights_of_one_process(folder.path(), &settings);

    let files = format!("--from-file={}", secrets.display());
    let secret = ["create", "secret", "generic", "sqlenv", &files];
    let secret = [&secret[..], &["--dry-run=client", "--output=yaml"]].concat();
    let secret = output("kubectl", &secret);
    let overlay = output("kubectl", &["kustomize", OVERLAY]);
    let played = Played::play(podman, format!("{secret}\n---\n{overlay}"));
    for container in ["learner-learner", "actor-0-actor", "actor-1-actor"] {
        played.wait(container);
    }
    let format = "--format={{.HostConfig.ReadonlyRootfs}} {{.HostConfig.Memory}}";
    let limits = podman.ask(&["inspect", format, "learner-learner"]);
    assert_eq!(limits, "true 2147483648");
    let runs = podman.ask(&["volume", "inspect", "--format={{.Mountpoint}}", "runs"]);
    has_weights(&Path::new(&runs).join("first"), &expected);
}
