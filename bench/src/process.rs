//! A role in a child process, so that its memory and time can be told apart.

use std::{
    io::{BufRead as _, BufReader, Lines},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// A role of this program in a child process, which is killed when this value is dropped.
pub(crate) struct RoleProcess {
    child: Child,
}

impl RoleProcess {
    /// Starts `sqlenv` with these arguments.
    pub(crate) fn start(arguments: &[String]) -> Result<Self> {
        let (process, lines) = Self::spawn(arguments)?;
        drain(lines);
        Ok(process)
    }

    /// Starts a role that serves, and returns HOST:PORT too once it does.
    pub(crate) fn serve(arguments: &[String]) -> Result<(Self, String)> {
        let (mut process, mut lines) = Self::spawn(arguments)?;
        let mut last = String::new();
        for line in lines.by_ref() {
            last = line?;
            if let Some((_, address)) = last.split_once("serves on ") {
                let address = address.trim().to_owned();
                drain(lines);
                return Ok((process, address));
            }
        }
        let _ = process.child.wait();
        let role = arguments.first().map_or("", String::as_str);
        bail!("the {role} ended before it served: {last}");
    }

    fn spawn(arguments: &[String]) -> Result<(Self, Lines<BufReader<ChildStderr>>)> {
        let program = std::env::current_exe().context("cannot find the file of this program")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start sqlenv {}", arguments.join(" ")))?;
        let stderr = child.stderr.take().context("the process has no stderr")?;
        Ok((Self { child }, BufReader::new(stderr).lines()))
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Returns how the process ended; none while it runs.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }
}

/// Reads and drops the output, since a full pipe would block the process.
fn drain(lines: Lines<BufReader<ChildStderr>>) {
    std::thread::spawn(move || lines.for_each(drop));
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        // Both calls fail if the process ended before, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
