//! Runs `deploy/compose.yaml` with podman-compose: a training run of six containers, in which one
//! of each kind is killed, gives the weights of `sqlenv train`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    rc::Rc,
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    http::free_address,
    podman::{Podman, VERSION, succeeded, world_readable},
    queries::Prometheus,
};

/// Containers on a busy machine of two cores need about two minutes for the run.
const PATIENCE: Duration = Duration::from_secs(900);
/// Enough steps for Prometheus to find and scrape all services on a fast machine, too, and every
/// part of the loss, so that each has data.
pub(crate) const SETTINGS: &str = "seed = 3\n\
    [learner]\nsteps = 24\ngroups_per_step = 2\nlease_seconds = 10\n\
    [learner.loss]\nkl_coef = 0.01\nentropy_coef = 0.01\n\
    [learner.checkpoint]\nevery_steps = 1\n\
    [evaluation]\nevery_steps = 12\nquestions = 20\nunseen_questions = 20\ncurve_questions = 20\n\
    [imitation]\nenabled = false\n";

/// A project of podman-compose. Dropping it removes its containers and volumes.
struct Compose {
    podman: Rc<Podman>,
    project: String,
    environment: Vec<(&'static str, String)>,
}

impl Compose {
    /// Starts all services with these settings.
    fn up(podman: Rc<Podman>, settings: &Path, secrets: &Path) -> Self {
        let environment = vec![
            ("SQLENV_VERSION", VERSION.to_owned()),
            ("SQLENV_SETTINGS", settings.display().to_string()),
            ("SQLENV_SECRETS", secrets.display().to_string()),
            ("SQLENV_ADMIN_PORT", free_port()),
            ("SQLENV_PROMETHEUS_PORT", free_port()),
        ];
        let compose = Self {
            podman,
            project: format!("sqlenv-test-{}", std::process::id()),
            environment,
        };
        compose.run(&["up", "--detach"]);
        compose
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.podman.command("podman-compose", &[]);
        let deploy = root().join("deploy");
        command.current_dir(deploy).args(["-p", &self.project]);
        command.args(["-f", "compose.yaml", "-f", "compose.test.yaml"]);
        let variables = self.environment.iter().map(|(name, value)| (*name, value));
        command.args(arguments).envs(variables);
        command
    }

    fn run(&self, arguments: &[&str]) {
        let output = self.command(arguments).output();
        succeeded(&output.expect("podman-compose is missing; install it with pip"));
    }

    /// The name of a replica of a service.
    fn container(&self, service: &str, replica: u32) -> String {
        format!("{}_{service}_{replica}", self.project)
    }

    fn inspect(&self, container: &str, template: &str) -> String {
        let format = format!("--format={template}");
        self.podman.ask(&["inspect", &format, container])
    }

    /// Kills the process of a container, as a crash does. The restart policy starts it again.
    /// Returns when the killed process was started.
    fn kill(&self, container: &str) -> String {
        let started = self.started(container);
        let pid = self.inspect(container, "{{.State.Pid}}");
        let status = Command::new("kill").args(["-KILL", &pid]).status().unwrap();
        assert!(status.success());
        started
    }

    fn started(&self, container: &str) -> String {
        self.inspect(container, "{{.State.StartedAt}}")
    }

    /// The folder of the run in the volume.
    fn run_folder(&self) -> PathBuf {
        let volume = format!("{}_runs", self.project);
        let format = "--format={{.Mountpoint}}";
        let runs = self.podman.ask(&["volume", "inspect", format, &volume]);
        Path::new(&runs).join("first")
    }

    fn variable(&self, name: &str) -> &str {
        let found = self.environment.iter().find(|(it, _)| *it == name);
        &found.unwrap().1
    }

    /// Waits until the learner satisfies `is_reached`.
    #[expect(clippy::disallowed_methods, reason = "a run that hangs fails the test")]
    fn wait(&self, what: &str, is_reached: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_reached() {
            let learner = self.container("learner", 1);
            let log = || self.podman.log_of(&learner);
            assert!(started.elapsed() < PATIENCE, "{what}: {}", log());
            sleep(Duration::from_millis(200));
        }
    }

    /// Whether a container has ended by itself with success.
    fn has_finished(&self, container: &str) -> bool {
        self.inspect(container, "{{.State.Status}} {{.State.ExitCode}}") == "exited 0"
    }
}

impl Drop for Compose {
    fn drop(&mut self) {
        // This also runs if the test has failed.
        let _ = self.command(&["down", "--volumes"]).output();
    }
}

fn free_port() -> String {
    free_address().split(':').nth(1).unwrap().to_owned()
}

pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The number of learner steps in the folder of a run.
fn steps(run: &Path) -> usize {
    let text = fs::read_to_string(run.join("metrics.jsonl"));
    text.map_or(0, |text| text.lines().count())
}

pub(crate) fn weights(run: &Path) -> Vec<u8> {
    let path = run.join("model/model.safetensors");
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Fails, and keeps the run for a look at it, if it has other weights.
pub(crate) fn has_weights(run: &Path, expected: &[u8]) {
    if weights(run) == expected {
        return;
    }
    let kept = root().join("target/differing-run");
    let _ = fs::remove_dir_all(&kept);
    succeeded(
        &Command::new("cp")
            .arg("-r")
            .args([run, &kept])
            .output()
            .unwrap(),
    );
    panic!("other weights than those of one process; the run is kept in {kept:?}");
}

/// Writes the settings and secrets of a test to a folder that containers can read.
pub(crate) fn settings_and_secrets(folder: &TempDir) -> (PathBuf, PathBuf) {
    world_readable(folder.path());
    let settings = folder.path().join("settings.toml");
    fs::write(&settings, SETTINGS).unwrap();
    let secrets = folder.path().join("secrets");
    let mut script = Command::new(root().join("deploy/secrets.sh"));
    succeeded(&script.arg(&secrets).output().unwrap());
    (settings, secrets)
}

/// Trains in one process with the data of the images, and returns the weights.
pub(crate) fn weights_of_one_process(folder: &Path, settings: &Path) -> Vec<u8> {
    let mut train = Command::new(env!("CARGO_BIN_EXE_sqlenv"));
    train
        .args(["train", "--name", "one", "--runs-dir"])
        .arg(folder);
    train.arg("--config").arg(settings).arg("--data");
    train
        .arg(root().join("target/image/data"))
        .stdout(Stdio::null());
    succeeded(&train.output().unwrap());
    weights(&folder.join("one"))
}

/// Runs the compose file. One env-node, one actor and Prometheus are killed after the first step,
/// and the learner after the third.
pub(crate) fn a_cluster_survives(podman: &Rc<Podman>) {
    let folder = tempfile::tempdir().unwrap();
    let (settings, secrets) = settings_and_secrets(&folder);
    succeeded(
        &Command::new(root().join("deploy/test/prometheus.sh"))
            .output()
            .unwrap(),
    );
    let expected = weights_of_one_process(folder.path(), &settings);

    let compose = Compose::up(Rc::clone(podman), &settings, &secrets);
    let port = compose.variable("SQLENV_PROMETHEUS_PORT");
    let prometheus = Prometheus::ready(&format!("127.0.0.1:{port}"));
    let run = compose.run_folder();
    let container = |service| compose.container(service, 1);
    compose.wait("the first step", || steps(&run) >= 1);
    let mut killed = vec![];
    for service in ["env-node", "actor", "prometheus"] {
        killed.push((service, compose.kill(&container(service))));
    }
    compose.wait("the third step", || steps(&run) >= 3);
    let learner = container("learner");
    killed.push(("learner", compose.kill(&learner)));
    compose.wait("the end of the run", || compose.has_finished(&learner));
    for (service, started) in killed {
        let restarted = compose.started(&container(service));
        assert_ne!(restarted, started, "{service} was not started again");
    }
    for replica in [1, 2] {
        let actor = compose.container("actor", replica);
        compose.wait("the end of the actors", || compose.has_finished(&actor));
    }
    has_weights(&run, &expected);
    let report = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(!report.contains("Nothing has been evaluated"));

    has_watched(&prometheus);
}

/// Each process was scraped, and none twice, and the dashboard and the alerts have data.
fn has_watched(prometheus: &Prometheus) {
    for (job, replicas) in [("env-node", 2.0), ("actor", 2.0), ("learner", 1.0)] {
        let series = prometheus.series(&format!("count(up{{job=\"{job}\"}} == 1)"));
        let most = series
            .iter()
            .flat_map(|it| &it.1)
            .fold(0.0, |a, b| b.max(a));
        assert_eq!(
            most, replicas,
            "instances of {job} that Prometheus scraped at once"
        );
    }
    let mut empty = prometheus.without_data();
    // These are of runs with several ranks.
    empty.retain(|query| !query.contains("learner_rank"));
    assert!(empty.is_empty(), "without data: {empty:#?}");
    let firing = prometheus.firing();
    assert!(firing.is_empty(), "{firing:?}");
}
