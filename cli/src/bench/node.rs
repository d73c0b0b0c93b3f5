//! The server that is measured: a child process of its own, so that its memory is its own.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// An env-node in a child process; it ends with this value.
pub(super) struct NodeProcess {
    child: Child,
    /// HOST:PORT.
    pub(super) address: String,
}

impl NodeProcess {
    /// Starts `sqlenv env-node` with these arguments on a free port.
    ///
    /// # Errors
    /// The program cannot be started, or ends before it serves.
    pub(super) fn start(arguments: &[String]) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let mut child = Command::new(program)
            .args(["env-node", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start an env-node")?;
        let said = child.stderr.take().context("the env-node has no stderr")?;
        let mut lines = BufReader::new(said).lines();
        let mut last = String::new();
        for line in lines.by_ref() {
            last = line?;
            if let Some((_, address)) = last.split_once("serves on ") {
                let address = address.trim().to_owned();
                // Whatever it says later must not fill the pipe.
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
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
