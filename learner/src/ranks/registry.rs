//! The registry of ranks that wait for the run to begin, and the service that admits them.
//!
//! Invariant: a rank is admitted at most once, before the run trains, and only if it runs this
//! program's version. A rank that disconnects while it waits makes room for another. A rank that
//! joins a finished run receives `Finished`.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use policy::Model;
use proto::{
    WaitReminder,
    serve::ExemptFromUnreadLimit,
    v1::{
        Finished, ModelFile, TrainRequest, TrainResponse, ranks_server, train_request,
        train_response,
    },
};
use tokio::{runtime::Handle, sync::mpsc, time::timeout};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{
    RankSettings,
    connection::{DEPTH, RankConnection},
};
use crate::{
    Learner,
    clock::now,
    error::{LearnerError, Result},
    server::identity::VERSION,
};

/// How often the learner checks whether a waiting rank has disconnected. The check is a poll,
/// because a closed stream does not wake the condition variable.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// After how long the learner says that it waits for ranks, for the first time and again.
const NO_RANK: Duration = Duration::from_secs(60);
const NO_RANK_AGAIN: Duration = Duration::from_secs(300);

/// Returns the files of a model as messages.
pub(crate) fn model_files(model: &Model) -> Vec<ModelFile> {
    let file = |(name, content): &(String, Vec<u8>)| ModelFile {
        name: name.clone(),
        content: Bytes::copy_from_slice(content),
    };
    model.files.iter().map(file).collect()
}

/// The ranks that have joined, until the run begins.
pub(crate) struct RankRegistry {
    settings: RankSettings,
    state: Mutex<RegistryState>,
    changed: Condvar,
}

#[derive(Default)]
struct RegistryState {
    waiting: Vec<RankConnection>,
    is_closed: bool,
}

impl RankRegistry {
    pub(crate) fn new(settings: &RankSettings) -> Self {
        Self {
            settings: settings.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Blocks until all ranks but this one have joined; none if the registry is closed before.
    ///
    /// # Errors
    /// [`LearnerError::RanksMissing`] after the timeout.
    pub(crate) fn wait(&self) -> Result<Option<Vec<RankConnection>>> {
        let wanted = self.settings.count - 1;
        let began = now();
        let mut reminder = WaitReminder::new(began, NO_RANK, NO_RANK_AGAIN);
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return Ok(None);
            }
            state.waiting.retain(|other| !other.is_gone());
            if state.waiting.len() == wanted {
                state.is_closed = true;
                return Ok(Some(std::mem::take(&mut state.waiting)));
            }
            if now() - began >= self.settings.timeout() {
                return Err(LearnerError::RanksMissing {
                    joined: 1 + state.waiting.len(),
                    count: self.settings.count,
                    seconds: self.settings.timeout_seconds,
                });
            }
            self.changed.wait_for(&mut state, CHECK_INTERVAL);
            if let Some(waited) = reminder.due(now()) {
                let (joined, waited) = (state.waiting.len(), waited.as_secs());
                tracing::warn!("{joined} of {wanted} other ranks have joined after {waited} s");
            }
        }
    }

    /// Admits no more ranks and closes the streams of those that wait.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.waiting.clear();
        self.changed.notify_all();
    }

    /// Admits no more ranks and sends the waiting ones the end of the run.
    pub(crate) fn finish(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.waiting)
        };
        for mut other in waiting {
            let sent = other.send(train_response::Part::Finished(Finished {}));
            sent.unwrap_or_else(|fault| tracing::debug!(%fault, "a rank was gone before the end"));
        }
    }

    fn admit(&self, other: RankConnection) -> Result<(), Status> {
        let count = self.settings.count;
        let mut state = self.state.lock();
        state.waiting.retain(|other| !other.is_gone());
        if count == 1 {
            return Err(Status::failed_precondition(
                "the run has one rank, the learner; give it more by --set learner.ranks.count=N",
            ));
        }
        if state.is_closed || state.waiting.len() + 1 == count {
            return Err(Status::resource_exhausted(format!(
                "the run has all of its {count} ranks (learner.ranks.count)"
            )));
        }
        state.waiting.push(other);
        self.changed.notify_all();
        Ok(())
    }
}

#[tonic::async_trait]
impl ranks_server::Ranks for Learner {
    type TrainStream = Pin<Box<dyn Stream<Item = Result<TrainResponse, Status>> + Send>>;

    async fn train(
        &self,
        request: Request<Streaming<TrainRequest>>,
    ) -> Result<Response<Self::TrainStream>, Status> {
        let mut incoming = request.into_inner();
        let limit = Duration::from_secs_f64(self.context.config.server.header_seconds);
        let first = timeout(limit, incoming.message()).await.map_err(|_| {
            Status::deadline_exceeded(
                "the rank sent no hello in time (learner.server.header_seconds)",
            )
        })?;
        let Some(train_request::Part::Hello(hello)) = first?.and_then(|first| first.part) else {
            return Err(Status::invalid_argument(
                "the first message of a rank must be its hello",
            ));
        };
        // Ranks of different versions may compute different bits.
        if hello.version != VERSION {
            return Err(Status::failed_precondition(format!(
                "the rank is sqlenv {}, the learner {VERSION}; start the same program everywhere",
                hello.version
            )));
        }
        let (sender, outgoing) = mpsc::channel(DEPTH);
        if self.context.is_finished() {
            let part = Some(train_response::Part::Finished(Finished {}));
            // Cannot fail: the receiver is still in this function.
            let _ = sender.send(TrainResponse { part }).await;
        } else {
            let timeout = self.context.registry.settings.timeout();
            let other = RankConnection::new(sender, Box::pin(incoming), timeout, Handle::current());
            self.context.registry.admit(other)?;
            tracing::info!("a rank joined");
        }
        let outgoing = ReceiverStream::new(outgoing).map(Ok);
        let mut response: Response<Self::TrainStream> = Response::new(Box::pin(outgoing));
        // Rank 0 itself limits how long a rank may read nothing.
        response.extensions_mut().insert(ExemptFromUnreadLimit);
        Ok(response)
    }
}
