//! SIGINT (Ctrl-C) and SIGTERM: a command exits at once, or at a point from which it can be
//! resumed.
//!
//! Invariant: interrupted work is not recorded. A stage that waits on a token ends with
//! [`Interrupted`].

use std::{ffi::OsString, io::Write as _};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::shown_argument;

/// The exit code of an interrupted command: 128 + SIGINT, as in shells.
pub(crate) const EXIT_CODE: u8 = 130;

/// The error of work that a signal interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Waits for `work`. A signal drops the work and returns [`Interrupted`].
pub(crate) async fn unless_interrupted<T>(
    shutdown: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, Interrupted> {
    shutdown.run_until_cancelled(work).await.ok_or(Interrupted)
}

/// Runs `work`, which blocks, on a thread of its own, and waits for it. A signal ends the wait, and
/// the process then ends the work: it must be of a kind that may end anywhere, such as reading.
pub(crate) async fn read_unless_interrupted<T: Send + 'static>(
    shutdown: &CancellationToken,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let work = tokio::task::spawn_blocking(work);
    match unless_interrupted(shutdown, work).await? {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// Returns the command line of this process, for a shell, without a secret. Run folders keep it.
pub(crate) fn this_command() -> String {
    shown_command(std::env::args_os().skip(1))
}

fn shown_command(arguments: impl Iterator<Item = OsString>) -> String {
    arguments.fold("sqlenv".to_owned(), |line, argument| {
        line + " " + &shell_quoted(&shown_argument(&argument.to_string_lossy()))
    })
}

/// Returns a text as one word of a shell's command line.
pub(crate) fn shell_quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Returns a token that the first SIGINT or SIGTERM cancels. That signal also prints `message`, and
/// the second signal ends the process. Without a message, for commands that cannot be resumed, the
/// first signal ends it. Must be called inside a runtime.
pub(crate) fn token(message: Option<&'static str>) -> std::io::Result<CancellationToken> {
    let mut signals = Signals::listen()?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        signals.next().await;
        if let Some(message) = message {
            cancelled.cancel();
            print_line(&format!("{message}; press Ctrl-C again to stop at once"));
            signals.next().await;
        } else {
            print_line(&format!("\n{Interrupted}"));
        }
        std::process::exit(EXIT_CODE.into());
    });
    Ok(token)
}

/// `SIGXFSZ`, the same on Linux, macOS and the BSDs.
const FILE_TOO_LARGE: i32 = 25;

/// Lets a write beyond the limit of a file's size (`ulimit -f`) fail, so that its error names the
/// file. Without a handler the signal ends the process without a word. Must be called inside a
/// runtime, whose handlers stay.
pub(crate) fn survive_large_files() -> std::io::Result<()> {
    signal(SignalKind::from_raw(FILE_TOO_LARGE)).map(drop)
}

fn print_line(line: &str) {
    // A closed stderr must not keep the signal from taking effect.
    let _ = writeln!(std::io::stderr(), "{line}");
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Duration};

    #[test]
    fn words_of_a_command_line_are_quoted_where_a_shell_needs_it() {
        for (text, word) in [
            ("runs/run-001", "runs/run-001"),
            ("--set", "--set"),
            ("a=[1]", "'a=[1]'"),
            ("my run", "'my run'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(shell_quoted(text), word);
        }
    }

    #[test]
    fn a_command_line_is_shown_without_the_signing_key() {
        for (argument, shown) in [
            ("env.signing_key=0123", "'env.signing_key=…'"),
            ("--set=env.signing_key=0123", "'--set=env.signing_key=…'"),
            ("env.signing_key = \"0=1\"", "'env.signing_key =…'"),
            (
                "env={\"signing_key\" = \"01\"}",
                "'env={\"signing_key\" =…'",
            ),
            ("env.signing_key_file=key", "env.signing_key_file=key"),
            (
                "env={signing_key_file=1,signing_key=2}",
                "'env={signing_key_file=1,signing_key=…'",
            ),
        ] {
            let line = shown_command(["train", argument].map(OsString::from).into_iter());
            assert_eq!(line, format!("sqlenv train {shown}"));
        }
    }

    /// As when a model folder of many gigabytes is read.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_signal_does_not_wait_for_a_file_that_is_read() {
        let shutdown = CancellationToken::new();
        let (began, begun) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let cancel = shutdown.clone();
        thread::spawn(move || {
            begun.recv().unwrap();
            cancel.cancel();
        });
        let read = read_unless_interrupted(&shutdown, move || {
            began.send(()).unwrap();
            // Ends when the test has its result.
            let _ = ended.recv();
            Ok(())
        });
        let read = tokio::time::timeout(Duration::from_secs(60), read).await;
        drop(end);
        assert!(read.unwrap().unwrap_err().is::<Interrupted>());
    }
}
