//! The env-node that is measured. It is a child process, so that its memory can be told apart.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// An env-node in a child process, which is killed when this value is dropped.
pub(super) struct NodeProcess {
    child: Child,
    /// HOST:PORT.
    pub(super) address: String,
}

impl NodeProcess {
    /// Starts `sqlenv env-node` with these arguments on a free port, and waits until it serves.
    pub(super) fn start(arguments: &[String]) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find the file of this program")?;
        let mut child = Command::new(program)
            .args(["env-node", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start an env-node")?;
        let stderr = child.stderr.take().context("the env-node has no stderr")?;
        let mut lines = BufReader::new(stderr).lines();
        let mut last = String::new();
        for line in lines.by_ref() {
            last = line?;
            if let Some((_, address)) = last.split_once("serves on ") {
                let address = address.trim().to_owned();
                // A full pipe would block the env-node, so its later output is read and dropped.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(Self { child, address });
            }
        }
        let _ = child.wait();
        bail!("the env-node ended before it served: {last}");
    }

    pub(super) fn process_id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // Both calls fail if the process ended before, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
