//! Ctrl-C and SIGTERM: a command ends at once, or where its work can be resumed.
//!
//! Invariant: what a signal breaks off is not recorded; a stage that waits on a token ends with [`Interrupted`].

use std::io::Write as _;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code of an interrupted command, as shells have it for SIGINT.
pub const EXIT_CODE: u8 = 130;

/// A signal broke the work off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Waits for `work`, unless a signal comes first.
///
/// # Errors
/// [`Interrupted`] where it does; the work is dropped.
pub async fn unless_interrupted<T>(
    shutdown: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, Interrupted> {
    shutdown.run_until_cancelled(work).await.ok_or(Interrupted)
}

/// A token that the first SIGINT or SIGTERM cancels, which is answered by `farewell`; the second ends the process. Must be
/// called inside a runtime.
///
/// # Errors
/// The signal handlers cannot be installed.
pub fn token(farewell: &'static str) -> std::io::Result<CancellationToken> {
    let mut signals = Signals::listen()?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        signals.next().await;
        cancelled.cancel();
        say(&format!("{farewell}; press Ctrl-C again to stop at once"));
        signals.next().await;
        std::process::exit(EXIT_CODE.into());
    });
    Ok(token)
}

/// Has the first SIGINT or SIGTERM end the process: for commands that leave nothing to resume. Must be called inside a
/// runtime.
///
/// # Errors
/// The signal handlers cannot be installed.
pub fn end_at_once() -> std::io::Result<()> {
    let mut signals = Signals::listen()?;
    tokio::spawn(async move {
        signals.next().await;
        say(&format!("\n{Interrupted}"));
        std::process::exit(EXIT_CODE.into());
    });
    Ok(())
}

fn say(line: &str) {
    // The signal counts even if nobody reads.
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
