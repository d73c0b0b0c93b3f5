//! A role in a child process, so that its memory and time can be told apart.

use std::{
    io::{self, BufRead as _, BufReader, Lines},
    process::{Child, ChildStderr, Command, Stdio},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, bail};

/// What a role prints.
type Output = Lines<BufReader<ChildStderr>>;

/// A role of this program in a child process, which is killed when this value is dropped.
pub(crate) struct RoleProcess {
    role: String,
    child: Child,
    /// Reads the output, since a full pipe would block the process. Returns the last line.
    output: Option<JoinHandle<String>>,
}

impl RoleProcess {
    /// Starts `sqlenv` with these arguments.
    pub(crate) fn start(arguments: &[String]) -> Result<Self> {
        let (mut process, lines) = Self::spawn(arguments)?;
        process.drain(lines);
        Ok(process)
    }

    /// Starts a role that serves, and returns HOST:PORT too once it does. The process is killed if
    /// the future is dropped before.
    pub(crate) async fn serve(arguments: &[String]) -> Result<(Self, String)> {
        let (mut process, lines) = Self::spawn(arguments)?;
        let read = tokio::task::spawn_blocking(|| address_in(lines));
        match read.await.context("reading the output panicked")?? {
            Ok((address, lines)) => {
                process.drain(lines);
                Ok((process, address))
            }
            Err(last) => {
                let _ = process.child.wait();
                bail!("the {} ended before it served: {last}", process.role);
            }
        }
    }

    fn spawn(arguments: &[String]) -> Result<(Self, Output)> {
        let program = std::env::current_exe().context("cannot find the file of this program")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start sqlenv {}", arguments.join(" ")))?;
        let stderr = child.stderr.take().context("the process has no stderr")?;
        let process = Self {
            role: arguments.first().cloned().unwrap_or_default(),
            child,
            output: None,
        };
        Ok((process, BufReader::new(stderr).lines()))
    }

    fn drain(&mut self, lines: Output) {
        let last = || lines.fold(String::new(), |last, line| line.unwrap_or(last));
        self.output = Some(thread::spawn(last));
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the process has ended, with the last line that it printed.
    pub(crate) fn check_runs(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        let output = self.output.take().map(JoinHandle::join);
        let last = output.and_then(Result::ok).unwrap_or_default();
        bail!("the {} ended ({status}): {last}", self.role)
    }
}

/// Reads until the role says where it serves. Returns HOST:PORT and the rest of the output, or the
/// last line of a role that has ended.
fn address_in(mut lines: Output) -> io::Result<Result<(String, Output), String>> {
    let mut last = String::new();
    for line in lines.by_ref() {
        last = line?;
        if let Some((_, address)) = last.split_once("serves on ") {
            return Ok(Ok((address.trim().to_owned(), lines)));
        }
    }
    Ok(Err(last))
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        // Both calls fail if the process ended before, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
