//! The subscription to the learner's weights: whole snapshots, newest only, over streams that may
//! break.

use proto::{
    LearnerClient, RareWarning, Snapshot, SnapshotAssembler,
    v1::{WeightsRequest, WeightsResponse, weights_response::Part},
};
use tonic::Streaming;

use crate::{
    error::ActorError,
    metrics,
    retry::{self, Retry},
};

/// Damaged snapshots in a row after which the subscription fails, because the connection is then
/// not the cause.
const MAX_DAMAGED: u32 = 3;

/// A subscription that outlives broken streams.
pub(crate) struct SnapshotStream {
    learner: LearnerClient,
    actor_id: String,
    run_id: String,
    retry: Retry,
    after_version: Option<u64>,
    stream: Option<Streaming<WeightsResponse>>,
    assembler: SnapshotAssembler,
    /// For streams that break within a snapshot, which they may do for ever.
    broken: RareWarning,
}

impl SnapshotStream {
    /// Subscribes, beginning with the newest snapshot.
    pub(crate) fn new(
        learner: LearnerClient,
        (actor_id, run_id): (&str, &str),
        retry: Retry,
    ) -> Self {
        Self {
            learner,
            actor_id: actor_id.to_owned(),
            run_id: run_id.to_owned(),
            retry,
            after_version: None,
            stream: None,
            assembler: SnapshotAssembler::default(),
            broken: RareWarning::default(),
        }
    }

    /// Waits for the next snapshot; none once the run is over. Subscribes again if the stream
    /// breaks. Not cancel safe.
    ///
    /// # Errors
    /// The learner cannot be reached, or it sends damaged snapshots again and again.
    pub(crate) async fn next(&mut self) -> Result<Option<Snapshot>, ActorError> {
        let mut damaged_left = MAX_DAMAGED;
        loop {
            let Some(message) = self.next_message().await? else {
                continue;
            };
            if matches!(message.part, Some(Part::Finished(_))) {
                return Ok(None);
            }
            match self.assembler.push(message) {
                Ok(None) => {}
                Ok(Some(snapshot)) => {
                    self.after_version = Some(snapshot.policy_version);
                    metrics::count_weights(snapshot.body().len());
                    return Ok(Some(snapshot));
                }
                Err(error) if damaged_left == 0 => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, "requesting the snapshot again");
                    damaged_left -= 1;
                    self.stream = None;
                    retry::pause().await;
                }
            }
        }
    }

    /// Returns the next message, or none if the stream broke.
    async fn next_message(&mut self) -> Result<Option<WeightsResponse>, ActorError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                // A new stream begins with a header, so chunks of the broken one are of no use.
                self.assembler.discard();
                let request = WeightsRequest {
                    actor_id: self.actor_id.clone(),
                    after_version: self.after_version,
                    run_id: self.run_id.clone(),
                };
                let subscribe = async || self.learner.clone().weights(request.clone()).await;
                none.insert(self.retry.call("Learner.Weights", subscribe).await?)
            }
        };
        match stream.message().await {
            Ok(Some(message)) => Ok(Some(message)),
            ended => {
                tracing::debug!(?ended, "the weights stream ended");
                if self.assembler.is_open()
                    && let Some(times) = self.broken.note()
                {
                    tracing::warn!(
                        times,
                        "the weights stream broke within a snapshot, which the learner sends again \
                         from its start; check the connection to the learner, and proxies that \
                         limit long calls"
                    );
                }
                self.stream = None;
                retry::pause().await;
                Ok(None)
            }
        }
    }
}
