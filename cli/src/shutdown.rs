//! Ctrl-C and SIGTERM as one token that every long task watches.
//!
//! The first signal asks the run to stop where it can be resumed; the second ends the process at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that the first SIGINT or SIGTERM cancels. Must be called inside a runtime.
///
/// # Errors
/// The signal handlers cannot be installed.
pub fn token() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let cancelled = token.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        next().await;
        cancelled.cancel();
        eprintln!("stopping where the run can be resumed; press Ctrl-C again to stop at once");
        next().await;
        std::process::exit(130);
    });
    Ok(token)
}
