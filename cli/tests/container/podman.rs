//! Runs podman and containers that end with the test.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    rc::Rc,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use proto::{EnvClient, Transport, v1::InfoRequest};
use tempfile::TempDir;

/// The tag of the images.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
const IMAGE: &str = concat!("sqlenv-env-node:", env!("CARGO_PKG_VERSION"));
/// One test at a time builds the images and uses the machine.
static MACHINE: Mutex<bool> = Mutex::new(false);
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
    machine: MutexGuard<'static, bool>,
}

impl Podman {
    /// Builds the images, unless another test has, and waits until no other test runs containers.
    pub(crate) fn new() -> Rc<Self> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("containers.conf"), SETTINGS).unwrap();
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut podman = Self { folder, machine };
        if !*podman.machine {
            podman.make_images();
            *podman.machine = true;
        }
        Rc::new(podman)
    }

    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env(
            "CONTAINERS_CONF",
            self.folder.path().join("containers.conf"),
        );
        command
    }

    /// Runs `podman`, which must succeed, and returns its output.
    pub(crate) fn ask(&self, arguments: &[&str]) -> String {
        let output = self.command("podman", arguments).output().unwrap();
        succeeded(&output)
    }

    /// Returns what a container has printed.
    pub(crate) fn log_of(&self, container: &str) -> String {
        let output = self
            .command("podman", &["logs", container])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn make_images(&self) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut make = self.command("make", &["images"]);
        let status = make
            .current_dir(root)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "make images: {status}");
    }

    /// Starts a container of the image with minimal privileges and a signing key.
    pub(crate) fn run(self: &Rc<Self>, key: &str) -> Container {
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
            podman: Rc::clone(self),
            id,
        }
    }
}

/// Makes a file readable for the user of the container.
pub(crate) fn world_readable(folder: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the output of a program, which must have succeeded.
pub(crate) fn succeeded(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A running container. Dropping it removes the container.
pub(crate) struct Container {
    podman: Rc<Podman>,
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
