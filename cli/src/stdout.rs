//! Standard output. If its reader closes the pipe, as in `sqlenv eval | head`, the program ends
//! without an error.

use std::{
    fmt::Display,
    io::{self, ErrorKind, StdoutLock, Write},
    process,
};

use anyhow::{Context as _, Result};

/// Writes `text` as it is.
///
/// # Errors
/// Standard output cannot be written for another reason than a closed pipe.
pub fn print(text: impl Display) -> Result<()> {
    let mut out = lock();
    write!(out, "{text}")
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Locks standard output for this thread.
#[must_use]
pub fn lock() -> Output {
    Output(io::stdout().lock())
}

/// Locked standard output. A write to a closed pipe ends the process.
pub struct Output(StdoutLock<'static>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        exit_on_closed_pipe(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        exit_on_closed_pipe(self.0.flush())
    }
}

fn exit_on_closed_pipe<T>(written: io::Result<T>) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(0),
        other => other,
    }
}
