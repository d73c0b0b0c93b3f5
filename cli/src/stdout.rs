//! Writes to standard output. If its reader has closed it, as in `sqlenv eval | head`, the program
//! exits without an error.
//!
//! Invariant: no text of a file, a model or a peer controls the terminal. A file or another program
//! gets each text as it is.

use std::{
    fmt::Display,
    io::{self, ErrorKind, IsTerminal as _, StdoutLock, Write},
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
    let out = io::stdout().lock();
    LockedStdout {
        is_terminal: out.is_terminal(),
        out,
    }
}

/// Locked standard output. A write to a closed pipe ends the process.
pub(crate) struct LockedStdout {
    out: StdoutLock<'static>,
    is_terminal: bool,
}

impl Write for LockedStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.is_terminal {
            // Callers write whole texts, so that a character is never in two parts.
            true => {
                let text = report::safe_text(&String::from_utf8_lossy(bytes));
                self.out.write_all(text.as_bytes())
            }
            false => self.out.write_all(bytes),
        };
        exit_on_broken_pipe(written)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        exit_on_broken_pipe(self.out.flush())
    }
}

fn exit_on_broken_pipe<T>(written: io::Result<T>) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(0),
        other => other,
    }
}
