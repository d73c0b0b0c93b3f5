//! Writes to standard output. If its reader has closed it, as in `sqlenv eval | head`, the program
//! exits without an error.
//!
//! Invariant: no text of a file, a model or a peer controls the terminal.

use std::{
    fmt::Display,
    io::{self, ErrorKind, StdoutLock, Write},
    process,
};

use anyhow::{Context as _, Result};

/// Writes `text` without a line break.
pub(crate) fn print(text: impl Display) -> Result<()> {
    let mut out = lock();
    write!(out, "{text}")
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Locks standard output for this thread.
pub(crate) fn lock() -> LockedStdout {
    LockedStdout(io::stdout().lock())
}

/// Locked standard output. A write to a closed pipe ends the process.
pub(crate) struct LockedStdout(StdoutLock<'static>);

impl Write for LockedStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Callers write whole texts, so that a character is never in two parts.
        let text = report::safe_text(&String::from_utf8_lossy(bytes));
        exit_on_broken_pipe(self.0.write_all(text.as_bytes()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        exit_on_broken_pipe(self.0.flush())
    }
}

fn exit_on_broken_pipe<T>(written: io::Result<T>) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(0),
        other => other,
    }
}
