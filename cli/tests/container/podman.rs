//! Runs podman and containers that end with the test.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use proto::{EnvClient, Transport, v1::InfoRequest};
use tempfile::TempDir;

const IMAGE: &str = "sqlenv-env-node";
/// The time limit until a container serves.
const START: Duration = Duration::from_secs(60);
/// runc and small limits also work if podman itself runs in an unprivileged container.
const SETTINGS: &str = "[containers]\n\
    default_ulimits = [\"nofile=20000:20000\", \"nproc=32768:32768\"]\n\
    [engine]\n\
    runtime = \"runc\"\n";

pub(crate) struct Podman {
    /// The folder of settings and secrets.
    folder: TempDir,
}

impl Podman {
    pub(crate) fn new() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("containers.conf"), SETTINGS).unwrap();
        Arc::new(Self { folder })
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env(
            "CONTAINERS_CONF",
            self.folder.path().join("containers.conf"),
        );
        command
    }

    /// Runs `podman`, which must succeed, and returns its output.
    fn ask(&self, arguments: &[&str]) -> String {
        let output = self.command("podman", arguments).output().unwrap();
        told(&output)
    }

    /// Runs `make image`.
    pub(crate) fn make_image(&self) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut make = self.command("make", &["image"]);
        let status = make
            .current_dir(root)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "make image: {status}");
    }

    /// Starts a container of the image with minimal privileges and a signing key.
    pub(crate) fn run(self: &Arc<Self>, key: &str) -> Container {
        let key_file = self.folder.path().join("key");
        fs::write(&key_file, key).unwrap();
        world_readable(self.folder.path());
        let volume = format!("{}:/run/key:ro", key_file.display());
        let id = self.ask(&[
            "run",
            "--detach",
            "--read-only",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            "--memory=512m",
            "--publish=127.0.0.1::8000",
            &format!("--volume={volume}"),
            IMAGE,
            "--set=env.signing_key_file=/run/key",
        ]);
        Container {
            podman: Arc::clone(self),
            id,
        }
    }
}

/// Makes a file readable for the user of the container.
fn world_readable(folder: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}

fn told(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A running container. Dropping it removes the container.
pub(crate) struct Container {
    podman: Arc<Podman>,
    id: String,
}

impl Container {
    /// The address of the container on this machine.
    pub(crate) fn address(&self) -> String {
        format!("http://{}", self.podman.ask(&["port", &self.id, "8000"]))
    }

    /// Inspects the container with a template of podman.
    pub(crate) fn inspect(&self, template: &str) -> String {
        let format = format!("--format={template}");
        self.podman.ask(&["inspect", &format, &self.id])
    }

    /// Waits until the container responds.
    #[expect(
        clippy::disallowed_methods,
        reason = "a container that never serves fails the test"
    )]
    pub(crate) async fn serves(&self) {
        let mut client = EnvClient::new(Transport::dial(&self.address()).unwrap());
        let started = Instant::now();
        while let Err(status) = client.info(InfoRequest {}).await {
            assert!(started.elapsed() < START, "{status}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills the container with SIGKILL.
    pub(crate) fn kill(&self) {
        self.podman.ask(&["kill", "--signal=KILL", &self.id]);
    }

    /// Stops the container like Kubernetes. Returns whether it ended by itself with success.
    pub(crate) fn stops(&self) -> bool {
        self.podman.ask(&["stop", "--time=30", &self.id]);
        self.inspect("{{.State.ExitCode}}") == "0"
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // This also runs if the test has failed.
        let remove = ["rm", "--force", &self.id];
        let _ = self.podman.command("podman", &remove).output();
    }
}
