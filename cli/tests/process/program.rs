//! The binary under test as processes.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
};

/// The workspace's root, where the project's own data is built.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The program with these arguments, run from the workspace's root.
pub(crate) fn sqlenv(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sqlenv"));
    command.args(args).current_dir(root());
    command
}

/// A process that is killed when the test ends.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a role on a free port and waits until it says where it serves.
pub(crate) fn serve(args: &[&str]) -> (Running, String) {
    serve_with(&mut sqlenv(args))
}

/// The same of a command.
pub(crate) fn serve_with(command: &mut Command) -> (Running, String) {
    let (running, address, _) = serve_and_hear(command);
    (running, address)
}

/// The same, with what the role says from then on to its end.
pub(crate) fn serve_and_hear(command: &mut Command) -> (Running, String, JoinHandle<String>) {
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
    // The pipe must not fill up.
    let said = thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"));
    (Running(child), address, said)
}
