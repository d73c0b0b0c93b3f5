//! An end of a stream between two ranks, for a thread that may block.
//!
//! Invariant: with patience, all waits of a step together end, whatever the other side sends: its
//! messages do not begin the time again. Only the bytes of weights and gradients, whose number this
//! side knows, add to it.

use std::{pin::Pin, time::Duration};

use tokio::{runtime::Handle, sync::mpsc, time};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use crate::clock::now;

/// How long a rank that gives up waits for its reason to arrive, and how long rank 0 looks for such
/// a reason.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// The rate at which a rank must send and receive weights and gradients, at least.
const MIN_BYTES_PER_SECOND: f64 = (16 << 20) as f64;

pub(super) type Incoming<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How long rank 0 waits for another rank.
struct Patience {
    limit: Duration,
    left: Duration,
}

/// An end of the stream: sends `Out`, receives `In`.
pub(super) struct Duplex<Out, In> {
    pub(super) sender: mpsc::Sender<Out>,
    incoming: Incoming<In>,
    runtime: Handle,
    /// None: waits as long as the connection lives.
    patience: Option<Patience>,
}

impl<Out, In> Duplex<Out, In> {
    pub(super) fn new(
        sender: mpsc::Sender<Out>,
        incoming: Incoming<In>,
        runtime: Handle,
        limit: Option<Duration>,
    ) -> Self {
        Self {
            sender,
            incoming,
            runtime,
            patience: limit.map(|limit| Patience { limit, left: limit }),
        }
    }

    /// Begins a step, for all of which the other side has its time.
    pub(super) fn begin_step(&mut self) {
        if let Some(patience) = &mut self.patience {
            patience.left = patience.limit;
        }
    }

    /// Adds the time that so many bytes may take.
    pub(super) fn allow(&mut self, bytes: usize) {
        if let Some(patience) = &mut self.patience {
            let time = Duration::from_secs_f64(bytes as f64 / MIN_BYTES_PER_SECOND);
            patience.left = patience.left.saturating_add(time);
        }
    }

    pub(super) fn send(&mut self, message: Out) -> Result<(), String> {
        let sent = self.sender.send(message);
        match within(&self.runtime, &mut self.patience, sent) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err("is gone".to_owned()),
            None => Err(self.timed_out("reads nothing")),
        }
    }

    pub(super) fn receive(&mut self) -> Result<In, String> {
        match within(&self.runtime, &mut self.patience, self.incoming.next()) {
            Some(next) => received(next),
            None => Err(self.timed_out("is silent")),
        }
    }

    /// Receives what comes within `limit`, if anything does.
    pub(super) fn receive_within(&mut self, limit: Duration) -> Option<Result<In, String>> {
        let next = self.incoming.next();
        let next = self
            .runtime
            .block_on(async { time::timeout(limit, next).await });
        next.ok().map(received)
    }

    /// Waits for the other side to end the connection, which means that it has read what was sent.
    pub(super) fn linger(&mut self) {
        let incoming = &mut self.incoming;
        let ended = async { while let Some(Ok(_)) = incoming.next().await {} };
        let ended = self
            .runtime
            .block_on(async { time::timeout(LINGER, ended).await });
        if ended.is_err() {
            tracing::debug!("the other side has not ended the connection");
        }
    }

    fn timed_out(&self, what: &str) -> String {
        let limit = self.patience.as_ref().map(|patience| patience.limit);
        let seconds = limit.unwrap_or_default().as_secs();
        format!(
            "{what}: rank 0 has waited {seconds} s in this step (learner.ranks.timeout_seconds)"
        )
    }
}

/// Returns the message that a stream gave, or what is wrong with the other side.
fn received<In>(next: Option<Result<In, Status>>) -> Result<In, String> {
    match next {
        Some(Ok(message)) => Ok(message),
        Some(Err(status)) => Err(format!("is gone: {}", status.message())),
        None => Err("is gone: its connection ended".to_owned()),
    }
}

/// Blocks on `work`; none if it takes longer than what is left, from which it takes the time.
fn within<T>(
    runtime: &Handle,
    patience: &mut Option<Patience>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let Some(patience) = patience else {
        return Some(runtime.block_on(work));
    };
    let began = now();
    // A timer must be created inside the runtime that drives it.
    let done = runtime.block_on(async { time::timeout(patience.left, work).await });
    patience.left = patience.left.saturating_sub(now() - began);
    done.ok()
}
