//! Where ranks wait until all are there, and the service that lets them in.
//!
//! Invariant: a rank is let in at most once, before the run trains, and only if it is of this program's version. One that
//! goes away while it waits makes room for another. Of a finished run it is told that it is over.

use std::{
    pin::Pin,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use proto::v1::{
    Finished, TrainRequest, TrainResponse, ranks_server, train_request, train_response,
};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{
    RankSettings,
    link::{DEPTH, ToRank},
};
use crate::{
    Learner,
    error::{LearnerError, Result},
};

/// The program's version: ranks of different ones may compute differently.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How often those who wait look whether a rank went away.
const LOOK: Duration = Duration::from_millis(100);

/// The ranks that are there, until the run takes them.
pub(crate) struct Lobby {
    settings: RankSettings,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    waiting: Vec<ToRank>,
    is_closed: bool,
}

impl Lobby {
    pub(crate) fn new(settings: &RankSettings) -> Self {
        Self {
            settings: settings.clone(),
            inner: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Blocks until all ranks but this one are there; none if the lobby is closed before.
    ///
    /// # Errors
    /// [`LearnerError::RanksMissing`] after the timeout.
    pub(crate) fn wait(&self) -> Result<Option<Vec<ToRank>>> {
        let wanted = self.settings.count - 1;
        let mut left = self.settings.timeout();
        let mut inner = self.lock();
        loop {
            if inner.is_closed {
                return Ok(None);
            }
            inner.waiting.retain(|other| !other.is_gone());
            if inner.waiting.len() == wanted {
                inner.is_closed = true;
                return Ok(Some(std::mem::take(&mut inner.waiting)));
            }
            if left.is_zero() {
                return Err(LearnerError::RanksMissing {
                    there: 1 + inner.waiting.len(),
                    count: self.settings.count,
                    seconds: self.settings.timeout_seconds,
                });
            }
            let waited;
            (inner, waited) = self
                .changed
                .wait_timeout(inner, LOOK)
                .unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                left = left.saturating_sub(LOOK);
            }
        }
    }

    /// Lets nobody in any more and sends away those who wait.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        inner.waiting.clear();
        self.changed.notify_all();
    }

    /// Lets nobody in any more and tells those who wait that the run is over.
    pub(crate) fn finish(&self) {
        let waiting = {
            let mut inner = self.lock();
            inner.is_closed = true;
            std::mem::take(&mut inner.waiting)
        };
        for mut other in waiting {
            let told = other.say(train_response::Part::Finished(Finished {}));
            told.unwrap_or_else(|fault| tracing::debug!(%fault, "before its first step"));
        }
    }

    fn admit(&self, other: ToRank) -> Result<(), Status> {
        let count = self.settings.count;
        let mut inner = self.lock();
        inner.waiting.retain(|other| !other.is_gone());
        if count == 1 {
            return Err(Status::failed_precondition(
                "the run has one rank, the learner; give it more by --set learner.ranks.count=N",
            ));
        }
        if inner.is_closed || inner.waiting.len() + 1 == count {
            return Err(Status::resource_exhausted(format!(
                "the run has all of its {count} ranks (learner.ranks.count)"
            )));
        }
        inner.waiting.push(other);
        self.changed.notify_all();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
        let Some(train_request::Part::Hello(hello)) =
            incoming.message().await?.and_then(|first| first.part)
        else {
            return Err(Status::invalid_argument("a rank says hello first"));
        };
        if hello.version != VERSION {
            return Err(Status::failed_precondition(format!(
                "the rank is sqlenv {}, the learner {VERSION}; start the same program everywhere",
                hello.version
            )));
        }
        let (sender, outgoing) = mpsc::channel(DEPTH);
        if self.shared.is_finished() {
            let part = Some(train_response::Part::Finished(Finished {}));
            // The receiver is right here.
            let _ = sender.send(TrainResponse { part }).await;
        } else {
            let timeout = self.shared.lobby.settings.timeout();
            let other = ToRank::new(sender, Box::pin(incoming), timeout, Handle::current());
            self.shared.lobby.admit(other)?;
            tracing::info!("a rank joined");
        }
        let outgoing = ReceiverStream::new(outgoing).map(Ok);
        Ok(Response::new(Box::pin(outgoing)))
    }
}
