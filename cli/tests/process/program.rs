//! Starts the binary under test.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
};

/// Returns the root of the workspace, which contains the built data.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Variables of the machine that would change what the program does.
const VARIABLES: [&str; 8] = [
    "HOST",
    "PORT",
    "SQLENV_LISTEN",
    "SQLENV_LOG",
    "SQLENV_DATA",
    "SQLENV_ENV",
    "SQLENV_LEARNER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// Returns a command that runs the program in the root of the workspace.
pub(crate) fn sqlenv(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sqlenv"));
    command.args(args).current_dir(root());
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// A process that is killed when it is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a role on a free port, waits until it serves, and returns its address.
pub(crate) fn serve(args: &[&str]) -> (Running, String) {
    serve_with(&mut sqlenv(args))
}

/// Does the same with a command.
pub(crate) fn serve_with(command: &mut Command) -> (Running, String) {
    let (running, address, _) = serve_with_log(command);
    (running, address)
}

/// Does the same, and also returns what the role prints from then on.
pub(crate) fn serve_with_log(command: &mut Command) -> (Running, String, JoinHandle<String>) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = loop {
        let line = lines
            .next()
            .expect("the role ended before it served")
            .unwrap();
        if let Some((_, address)) = line.split_once("serves on ") {
            break format!("http://{}", address.trim());
        }
    };
    // A full pipe would block the role.
    let log = thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"));
    (Running(child), address, log)
}

/// Returns the arguments of a learner of a small run, which serves on a free port. The last
/// argument is the run folder.
pub(crate) fn smoke_learner<'a>(env: &'a str, run_dir: &'a str) -> Vec<&'a str> {
    let mut args = vec!["learner", "--preset", "smoke", "--listen", "127.0.0.1:0"];
    args.extend(["--env", env, "--run-dir", run_dir]);
    args
}

/// Starts an actor that prints nothing.
pub(crate) fn start_actor(env: &str, learner: &str, more: &[&str]) -> Running {
    let mut actor = sqlenv(&["actor", "--env", env, "--learner", learner]);
    Running(actor.args(more).stderr(Stdio::null()).spawn().unwrap())
}
