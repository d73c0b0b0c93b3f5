//! Weights streams: each sends an actor the newest snapshot whenever it does not have it.
//!
//! Invariant: a version that was overtaken before its first byte is never sent, and one that no
//! claim could use any more is not sent to its end, which is logged now and then. Streams share the
//! bytes of snapshots. The server ends the connection of an actor that does not read.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use proto::{
    RareWarning, SharedMessage, SharedMessages, Snapshot,
    v1::{Finished, WeightsRequest, WeightsResponse, weights_response::Part},
};
use tokio::{
    sync::{mpsc, watch},
    task,
};
use tonic::Status;

use crate::{
    metrics,
    run::context::{RunContext, RunEnd},
};

/// Messages of a snapshot that wait for a slow actor.
const STREAM_DEPTH: usize = 4;
/// An actor whose stream ended, and that has not called since, is gone after this time. An actor
/// that lost its connection calls earlier.
const GONE_AFTER: Duration = Duration::from_secs(15);

/// Opens a stream.
///
/// # Errors
/// There are as many as the settings allow.
pub(crate) fn open(
    context: &Arc<RunContext>,
    request: WeightsRequest,
) -> Result<SharedMessages, Status> {
    let permit = context.call_limits.weights_stream()?;
    let (sender, messages) = mpsc::channel(STREAM_DEPTH);
    let connected = ConnectedActor::new(Arc::clone(context), request.actor_id.clone());
    let streaming = stream_snapshots(
        context.snapshots.subscribe(),
        context.run_end.subscribe(),
        context.config.max_staleness,
        request.after_version,
        sender,
        UnfinishedSnapshots {
            actor_id: request.actor_id.clone(),
            warning: Arc::clone(&context.unfinished_snapshots),
        },
    );
    // Not kept from its end by an actor that may come back.
    let run = Arc::downgrade(context);
    task::spawn(async move {
        streaming.await;
        drop((connected, permit));
        end_leases_of_gone(&run, &request.actor_id).await;
    });
    Ok(messages)
}

/// Ends the leases of an actor whose stream has just ended, unless it comes back. Does nothing if
/// too many such actors are waited for.
async fn end_leases_of_gone(run: &Weak<RunContext>, actor_id: &str) {
    // A peer may open and end streams in a loop, and each would make a waiting task.
    let waiting = run.upgrade().and_then(|context| {
        let permit = context.call_limits.ended_weights_stream()?;
        Some((permit, context.now()))
    });
    let Some((_permit, ended)) = waiting else {
        return;
    };
    tokio::time::sleep(GONE_AFTER).await;
    let Some(context) = run.upgrade() else {
        return;
    };
    if context.run_end.borrow().is_some() || !context.actors.lock().is_silent_since(actor_id, ended)
    {
        return;
    }
    let now = context.now();
    let leases = context.intake.left(now, actor_id) + context.evaluator.left(now, actor_id);
    // There may be no other actor whose call would report it.
    context.intake.report(now);
    if leases > 0 {
        tracing::warn!(
            actor_id = ?actor_id,
            leases,
            "an actor has been gone for {} s; others get its work",
            GONE_AFTER.as_secs()
        );
        context.intake.wake_claims();
    }
}

/// An actor with an open weights stream.
struct ConnectedActor {
    context: Arc<RunContext>,
    actor_id: String,
}

impl ConnectedActor {
    fn new(context: Arc<RunContext>, actor_id: String) -> Self {
        let now = context.now();
        let mut actors = context.actors.lock();
        actors.connected(now, &actor_id);
        metrics::set_connected_actors(actors.count_connected());
        drop(actors);
        Self { context, actor_id }
    }
}

impl Drop for ConnectedActor {
    fn drop(&mut self) {
        let now = self.context.now();
        let mut actors = self.context.actors.lock();
        actors.disconnected(now, &self.actor_id);
        metrics::set_connected_actors(actors.count_connected());
    }
}

/// Warns of snapshots that are not sent to their end. An actor that never gets one to its end takes
/// part in no step, and nothing else shows why.
struct UnfinishedSnapshots {
    actor_id: String,
    /// Shared by all streams: one slow network has many actors.
    warning: Arc<Mutex<RareWarning>>,
}

impl UnfinishedSnapshots {
    fn note(&self, version: u64, newest: u64) {
        if let Some(snapshots) = self.warning.lock().note() {
            tracing::warn!(
                actor_id = ?self.actor_id,
                version,
                newest,
                snapshots,
                "an actor receives weights more slowly than steps are made, so it begins again \
                 with newer ones; give it a faster connection, or start a run with a larger \
                 learner.max_staleness"
            );
        }
    }
}

/// Sends the newest snapshot each time there is one that the actor does not have, until the actor
/// disconnects, the learner stops or the run is over.
///
/// The comparison is for another version and not for a newer one: a learner that was restored to an
/// older checkpoint replaces the weights of an actor that is ahead of it.
async fn stream_snapshots(
    mut snapshots: watch::Receiver<Snapshot>,
    mut run_end: watch::Receiver<Option<RunEnd>>,
    max_staleness: u64,
    mut sent: Option<u64>,
    sender: mpsc::Sender<Result<SharedMessage, Status>>,
    unfinished: UnfinishedSnapshots,
) {
    loop {
        let is_new = |snapshot: &Snapshot| sent != Some(snapshot.policy_version);
        let snapshot = tokio::select! {
            biased;
            Ok(snapshot) = snapshots.wait_for(is_new) => snapshot.clone(),
            Ok(_) = run_end.wait_for(Option::is_some) => break,
            () = sender.closed() => return,
            else => return,
        };
        let version = snapshot.policy_version;
        sent = Some(version);
        let mut has_begun = false;
        for message in snapshot.messages() {
            let bytes = chunk_bytes(&message);
            let is_overtaken = |newest: &Snapshot| version + max_staleness < newest.policy_version;
            tokio::select! {
                biased;
                // No claim could use the version, and a slow actor would keep it in memory. The
                // next header makes the actor drop what it has.
                Ok(newest) = snapshots.wait_for(is_overtaken) => {
                    if has_begun {
                        unfinished.note(version, newest.policy_version);
                    }
                    break;
                }
                sent = sender.send(Ok(message.into())) => match sent {
                    Ok(()) => {
                        has_begun = true;
                        metrics::weights_sent(bytes);
                    }
                    Err(_) => return,
                },
            }
        }
    }
    let run_end = *run_end.borrow();
    if run_end == Some(RunEnd::Finished) {
        let part = Some(Part::Finished(Finished {}));
        // An actor that has disconnected needs no message.
        let _ = sender.send(Ok(WeightsResponse { part }.into())).await;
    }
}

fn chunk_bytes(message: &WeightsResponse) -> usize {
    match &message.part {
        Some(Part::Chunk(chunk)) => chunk.data.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proto::chunks::CHUNK_BYTES;

    use super::*;

    /// Reads the first messages of a snapshot of several chunks, and publishes a newer one. Returns
    /// whether the stream has warned.
    async fn warns_after(messages_read: usize) -> bool {
        let snapshots = watch::Sender::new(Snapshot::new(0, vec![7_u8; 4 * CHUNK_BYTES]));
        let run_end = watch::Sender::new(None);
        let (sender, mut messages) = mpsc::channel(1);
        let warning = Arc::<Mutex<RareWarning>>::default();
        let unfinished = UnfinishedSnapshots {
            actor_id: "slow".to_owned(),
            warning: Arc::clone(&warning),
        };
        let (newest, ends) = (snapshots.subscribe(), run_end.subscribe());
        let streaming = stream_snapshots(newest, ends, 0, None, sender, unfinished);
        let streaming = tokio::spawn(streaming);
        for _ in 0..messages_read {
            messages.recv().await.unwrap().unwrap();
        }
        snapshots.send_replace(Snapshot::new(1, "newer"));
        run_end.send_replace(Some(RunEnd::Closed));
        while messages.recv().await.is_some() {}
        streaming.await.unwrap();
        // A second event within a minute is no line.
        warning.lock().note().is_none()
    }

    #[tokio::test]
    async fn a_snapshot_that_is_not_sent_to_its_end_is_warned_of() {
        assert!(warns_after(2).await);
        // Its header and its chunks.
        assert!(!warns_after(1 + 4).await);
    }
}
