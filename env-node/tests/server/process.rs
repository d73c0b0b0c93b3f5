//! Starts nodes as processes of their own.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use ::env::EnvSettings;
use env_node::Server;
use tokio::net::TcpListener;

use crate::common::Fixture;

/// Set in a process that is a node, to any value.
const NODE: &str = "SQLENV_TEST_NODE";
const LISTENS: &str = "listens on ";

/// Not a test: the entry point of this program when it is started as a node.
#[tokio::test]
async fn node() {
    if env::var_os(NODE).is_none() {
        return;
    }
    let fixture = Fixture::new(EnvSettings {
        signing_key: Some("0123456789abcdef0123456789abcdef".to_owned().into()),
        ..EnvSettings::default()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{LISTENS}{}", listener.local_addr().unwrap());
    let server = Server::open(&fixture.node).unwrap();
    server.serve(listener, std::future::pending()).await;
}

/// A node that shares its key with the others. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    /// The address on which it listens.
    pub(crate) address: String,
}

impl Process {
    pub(crate) fn start() -> Self {
        Self::of(Command::new(env::current_exe().unwrap()))
    }

    /// Starts a node that may open at most this many files.
    pub(crate) fn with_files(limit: u32) -> Self {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")])
            .arg(env::current_exe().unwrap());
        Self::of(shell)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command
            .args(["--exact", "process::node", "--nocapture"])
            .env(NODE, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .map(Result::unwrap)
            .find_map(|line| Some(line.split_once(LISTENS)?.1.to_owned()))
            .expect("the node says where it listens");
        Self { child, address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
