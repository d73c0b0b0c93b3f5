//! The server, and the `Learner` service: translates between messages and the intake, and streams snapshots.
//!
//! Invariant: nothing here decides anything; async code does no disk work. An actor's faults are answered with
//! INVALID_ARGUMENT and do not end the run. A group that cannot be journalled does, and is answered with UNAVAILABLE: an
//! actor waits until the run is resumed.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use proto::v1::{
    ClaimRequest, ClaimResponse, Finished, GroupClaim, JoinRequest, JoinResponse, SubmitRequest,
    SubmitResponse, SubmitVerdict, Wait, WeightsRequest, WeightsResponse, claim_response::Outcome,
    learner_server::LearnerServer, ranks_server::RanksServer, weights_response::Part,
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task,
};
use tokio_stream::{
    Stream,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{Request, Response, Status, transport::Server};

use crate::{
    Learner,
    driver::Ending,
    error::Result,
    intake::Refusal,
    metrics,
    scheduler::{Claim, Lease, Verdict},
    weights::Snapshot,
};

/// A group of long trajectories with their texts may be this large.
pub(crate) const MAX_SUBMIT_BYTES: usize = 64 << 20;
/// How long an actor waits before it claims again.
const RETRY_MILLISECONDS: u32 = 20;
/// Messages of a snapshot that may wait for a slow actor.
const STREAM_DEPTH: usize = 4;
/// How long open calls may last after a shutdown.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves `learner` with health and reflection until `shutdown`, then lets open calls end.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    learner: Learner,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<LearnerServer<Learner>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the embedded descriptors are well-formed: this is a bug");
    let (closing, mut closed) = watch::channel(false);
    let stop = {
        let learner = learner.clone();
        async move {
            shutdown.await;
            learner.close_streams();
            closing.send_replace(true);
        }
    };
    let server = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .tcp_nodelay(true)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .add_service(health_service)
        .add_service(reflection)
        .add_service(learner.service())
        .add_service(learner.rank_service())
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop);
    let deadline = async {
        // An error means that the server is gone, and with it the need for a deadline.
        if closed.wait_for(|closed| *closed).await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        served = server => Ok(served?),
        () = deadline => Ok(()),
    }
}

impl Learner {
    /// The service, for a server or for `proto::Transport::in_process`.
    #[must_use]
    pub fn service(&self) -> LearnerServer<Self> {
        LearnerServer::new(self.clone()).max_decoding_message_size(MAX_SUBMIT_BYTES)
    }

    /// The service of the run's other ranks, likewise.
    #[must_use]
    pub fn rank_service(&self) -> RanksServer<Self> {
        RanksServer::new(self.clone())
    }

    fn claim_outcome(&self, request: &ClaimRequest) -> Outcome {
        match self
            .shared
            .intake
            .claim(self.shared.now(), request.policy_version)
        {
            Claim::Finished if self.shared.is_finished() => Outcome::Finished(Finished {}),
            Claim::Finished | Claim::Wait => Outcome::Wait(Wait {
                retry_after_milliseconds: RETRY_MILLISECONDS,
            }),
            Claim::Group(Lease {
                group_index,
                lease_id,
                min_policy_version,
            }) => {
                metrics::group_claimed(self.shared.intake.expired_leases());
                Outcome::Group(GroupClaim {
                    group_index,
                    lease_id,
                    question_id: self.shared.question_id(group_index),
                    group_size: self.shared.config.group_size as u32,
                    min_policy_version,
                    lease_seconds: self.shared.config.lease_seconds,
                })
            }
        }
    }
}

#[tonic::async_trait]
impl proto::v1::learner_server::Learner for Learner {
    type WeightsStream = Pin<Box<dyn Stream<Item = Result<WeightsResponse, Status>> + Send>>;

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        tracing::info!(actor_id = request.get_ref().actor_id, "actor joined");
        Ok(Response::new(self.shared.join_response()))
    }

    async fn claim(
        &self,
        request: Request<ClaimRequest>,
    ) -> Result<Response<ClaimResponse>, Status> {
        let outcome = Some(self.claim_outcome(request.get_ref()));
        Ok(Response::new(ClaimResponse { outcome }))
    }

    async fn submit(
        &self,
        request: Request<SubmitRequest>,
    ) -> Result<Response<SubmitResponse>, Status> {
        let shared = Arc::clone(&self.shared);
        let submit = move || shared.intake.submit(request.get_ref());
        let verdict = match task::spawn_blocking(submit).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(Refusal::Invalid(fault))) => return Err(Status::invalid_argument(fault)),
            Ok(Err(Refusal::Failed(fault))) => {
                tracing::error!(%fault, "the run stops");
                return Err(Status::unavailable(fault));
            }
            Err(_) => return Err(Status::internal("the submission was broken off")),
        };
        let (verdict, name) = match verdict {
            Verdict::Accept => (SubmitVerdict::Accepted, "accepted"),
            Verdict::Stale => (SubmitVerdict::Stale, "stale"),
            // To the actor the same: the group is not needed as it is.
            Verdict::Unknown => (SubmitVerdict::Stale, "unknown"),
            Verdict::Duplicate => (SubmitVerdict::Duplicate, "duplicate"),
        };
        metrics::group_submitted(name);
        Ok(Response::new(SubmitResponse {
            verdict: verdict.into(),
        }))
    }

    async fn weights(
        &self,
        request: Request<WeightsRequest>,
    ) -> Result<Response<Self::WeightsStream>, Status> {
        let (sender, receiver) = mpsc::channel(STREAM_DEPTH);
        let snapshots = self.shared.snapshots.subscribe();
        let ending = self.shared.ending.subscribe();
        task::spawn(stream_snapshots(
            snapshots,
            ending,
            request.into_inner().after_version,
            sender,
        ));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// Sends the newest snapshot each time there is one that the actor does not have, until it or the learner goes away or the
/// run is over.
///
/// An actor ahead of the learner (whose newest steps a lost disk took) is sent the newest snapshot too.
async fn stream_snapshots(
    mut snapshots: watch::Receiver<Snapshot>,
    mut ending: watch::Receiver<Option<Ending>>,
    mut held: Option<u64>,
    sender: mpsc::Sender<Result<WeightsResponse, Status>>,
) {
    loop {
        let is_news = |snapshot: &Snapshot| held != Some(snapshot.policy_version);
        let snapshot = tokio::select! {
            biased;
            Ok(snapshot) = snapshots.wait_for(is_news) => snapshot.clone(),
            Ok(_) = ending.wait_for(Option::is_some) => break,
            () = sender.closed() => return,
            else => return,
        };
        held = Some(snapshot.policy_version);
        for number in 0..snapshot.messages() {
            if sender.send(Ok(snapshot.message(number))).await.is_err() {
                return;
            }
        }
    }
    let ending = *ending.borrow();
    if ending == Some(Ending::Finished) {
        let part = Some(Part::Finished(Finished {}));
        // An actor that is gone need not hear it.
        let _ = sender.send(Ok(WeightsResponse { part })).await;
    }
}
