//! Standard output, whose reader may leave: after `sqlenv eval | head` nobody reads on, and the program ends quietly.

use std::{
    fmt::Display,
    io::{self, ErrorKind, StdoutLock, Write},
    process,
};

use anyhow::{Context as _, Result};

/// Writes `text` as it is.
///
/// # Errors
/// Standard output cannot be written, other than for want of a reader.
pub fn print(text: impl Display) -> Result<()> {
    let mut out = lock();
    write!(out, "{text}")
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Standard output for this thread alone.
#[must_use]
pub fn lock() -> Output {
    Output(io::stdout().lock())
}

/// Standard output; a write after its reader left ends the process.
pub struct Output(StdoutLock<'static>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_left(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_left(self.0.flush())
    }
}

fn unless_left<T>(written: io::Result<T>) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(0),
        other => other,
    }
}
