//! The `Learner` service: translates messages for the intake, holds claims until there is work.
//!
//! Nothing here decides what is handed out or accepted, and async code does no disk work. What an
//! actor does wrong is refused with INVALID_ARGUMENT and does not end the run. A group that cannot
//! be journaled ends the run and is refused with UNAVAILABLE, so that actors wait until the run is
//! resumed. A claim that finds no work has the outcome `Wait`. A request that names another run is
//! FAILED_PRECONDITION.

use std::{pin::Pin, sync::atomic::Ordering, time::Duration};

use proto::{
    CLAIM_WAIT, EncodedEvaluation, EncodedGroup, MAX_MESSAGE_BYTES, SharedResponses,
    chunks::CHUNK_BYTES,
    share,
    v1::{
        ActorIdentity, ClaimRequest, ClaimResponse, GroupClaim, JoinRequest, JoinResponse,
        SubmitEvaluationResponse, SubmitResponse, Wait, WeightsRequest, WeightsResponse,
        claim_response::Outcome, learner_server::LearnerServer, ranks_server::RanksServer,
    },
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tracing::Instrument as _;

use crate::{
    Learner,
    error::Result,
    evaluation_queue::EvaluationLease,
    group, metrics,
    run::context::RunContext,
    scheduler::{Claim, Lease},
    server::{call_limits::HeldByCall, identity, weights_stream},
};

/// How long an actor pauses before its next claim where new weights or the end of the run are on
/// their way to it.
const RETRY_MILLISECONDS: u32 = 100;
/// The most bytes of a message of a rank: a chunk of its gradient with its name, or the statistics
/// of its micro-batches.
const MAX_RANK_MESSAGE_BYTES: usize = 2 * CHUNK_BYTES;

impl Learner {
    /// Returns the `Learner` service, for a server or for `proto::Transport::in_process`.
    pub fn service(&self) -> SharedResponses<LearnerServer<Self>> {
        let service = LearnerServer::new(self.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        SharedResponses(service)
    }

    /// Returns the `Ranks` service, which the run's other ranks call.
    pub fn rank_service(&self) -> RanksServer<Self> {
        RanksServer::new(self.clone())
            .max_decoding_message_size(MAX_RANK_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Waits for a group that an actor with the weights of `policy_version` may sample, for
    /// [`CLAIM_WAIT`] at most.
    async fn claim_or_wait(&self, actor_id: &str, policy_version: u64) -> Outcome {
        let context = &self.context;
        let deadline = Instant::now() + CLAIM_WAIT;
        let mut changes = context.intake.work_changes();
        let mut run_end = context.run_end.subscribe();
        loop {
            // Marked before the claim: a change between the claim and the wait below wakes the
            // wait.
            changes.mark_unchanged();
            let now = context.now();
            let chance_of_part = match context.evaluator.lease(now, actor_id, policy_version) {
                EvaluationLease::Part(part) => return Outcome::Evaluation(part),
                EvaluationLease::OtherVersion => return wait(RETRY_MILLISECONDS),
                EvaluationLease::None(chance) => chance,
            };
            let actors = context.actors.lock().count_connected();
            let claimed = context
                .intake
                .claim(now, (actor_id, actors), policy_version);
            context.intake.report(now);
            let chance = match claimed {
                (Claim::Group(lease), Some(question_id)) => {
                    return Outcome::Group(self.group_claim(now, lease, question_id));
                }
                (Claim::Group(_), None) | (Claim::OtherVersion, _) => {
                    return wait(RETRY_MILLISECONDS);
                }
                // After the last step the claim waits for the checkpoint; the weights stream then
                // ends the actor.
                (Claim::Wait(chance), _) => chance,
            };
            let chance = chance.into_iter().chain(chance_of_part).min();
            let chance = chance.map(|chance| Instant::now() + chance.saturating_sub(now));
            let wake = chance.map_or(deadline, |chance| chance.min(deadline));
            tokio::select! {
                biased;
                _ = run_end.wait_for(Option::is_some) => return wait(RETRY_MILLISECONDS),
                _ = changes.changed() => {}
                () = sleep_until(wake) => {}
            }
            if Instant::now() >= deadline {
                return wait(0);
            }
        }
    }

    fn group_claim(&self, now: Duration, lease: Lease, question_id: String) -> GroupClaim {
        let context = &self.context;
        metrics::group_claimed();
        GroupClaim {
            group_index: lease.group_index,
            lease_id: lease.lease_id,
            question_id,
            group_size: context.config.group_size as u32,
            min_policy_version: lease.min_policy_version,
            lease_seconds: (lease.expires - now).as_secs() as u32,
        }
    }
}

/// Refuses a name that is too long to be kept.
fn check_name(actor_id: &str) -> Result<(), Status> {
    group::check_name("actor_id", actor_id).map_err(Status::invalid_argument)
}

impl RunContext {
    /// Refuses a request that names another run.
    pub(crate) fn check_run(&self, run_id: &str) -> Result<(), Status> {
        if run_id == self.run_id {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "this learner has the run {:?}, and the request names {run_id:?}; start the actor \
             again, so that it joins this run",
            self.run_id
        )))
    }

    /// Refuses an actor of another identity than the run's, and counts it.
    fn check_identity(&self, actor_id: &str, found: Option<&ActorIdentity>) -> Result<(), Status> {
        let Some(verifier) = self.verifier.get() else {
            return Ok(());
        };
        identity::compare(found, &verifier.expected).map_err(|problem| {
            self.refused(actor_id, &problem);
            Status::failed_precondition(problem)
        })
    }
}

/// Returns what a call holds of the limits.
fn held<T>(request: &Request<T>) -> Option<HeldByCall> {
    request.extensions().get().cloned()
}

fn wait(retry_after_milliseconds: u32) -> Outcome {
    Outcome::Wait(Wait {
        retry_after_milliseconds,
    })
}

#[tonic::async_trait]
impl proto::v1::learner_server::Learner for Learner {
    type WeightsStream = Pin<Box<dyn Stream<Item = Result<WeightsResponse, Status>> + Send>>;

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let JoinRequest { actor_id, identity } = request.get_ref();
        check_name(actor_id)?;
        self.context.check_identity(actor_id, identity.as_ref())?;
        tracing::info!(actor_id, "actor joined");
        self.context.has_been_joined.store(true, Ordering::Relaxed);
        let now = self.context.now();
        let is_alone = !self.context.actors.lock().is_connected(actor_id);
        self.context.evaluator.joined(now, actor_id, is_alone);
        self.context.intake.joined(now, actor_id, is_alone);
        self.context.actors.lock().called(now, actor_id);
        let (sender, messages) = mpsc::channel(1);
        // Cannot fail: the channel has room for the message.
        let _ = sender.try_send(Ok(self.context.join_response().into()));
        Ok(share(messages, JoinResponse::default()))
    }

    async fn claim(
        &self,
        request: Request<ClaimRequest>,
    ) -> Result<Response<ClaimResponse>, Status> {
        // A claim that waits counts among the calls in flight.
        let _held = held(&request);
        let request = request.into_inner();
        let (context, id) = (&self.context, &request.actor_id);
        context.check_run(&request.run_id)?;
        check_name(id)?;
        context.check_identity(id, request.identity.as_ref())?;
        let version = request.policy_version;
        context
            .actors
            .lock()
            .claimed(context.now(), id, version, request.report);
        let outcome = self.claim_or_wait(id, version).await;
        if matches!(outcome, Outcome::Group(_)) {
            // The claim may have waited.
            context.actors.lock().called(context.now(), id);
        }
        Ok(Response::new(ClaimResponse {
            outcome: Some(outcome),
        }))
    }

    async fn submit(
        &self,
        request: Request<EncodedGroup>,
    ) -> Result<Response<SubmitResponse>, Status> {
        let (learner, held) = (self.clone(), held(&request));
        let group = request.into_inner();
        let submission = async move { learner.submit_group(group, held).await };
        Ok(Response::new(SubmitResponse {
            verdict: to_its_end(submission).await?.into(),
        }))
    }

    async fn submit_evaluation(
        &self,
        request: Request<EncodedEvaluation>,
    ) -> Result<Response<SubmitEvaluationResponse>, Status> {
        let (learner, held) = (self.clone(), held(&request));
        let part = request.into_inner();
        to_its_end(async move { learner.submit_part(part, held).await }).await?;
        Ok(Response::new(SubmitEvaluationResponse {}))
    }

    async fn weights(
        &self,
        request: Request<WeightsRequest>,
    ) -> Result<Response<Self::WeightsStream>, Status> {
        let request = request.into_inner();
        self.context.check_run(&request.run_id)?;
        check_name(&request.actor_id)?;
        let messages = weights_stream::open(&self.context, request)?;
        Ok(share(messages, Box::pin(tokio_stream::empty())))
    }
}

/// Takes in a submission to its end, also if the actor leaves meanwhile: the work is complete, and
/// a replay that is dropped would count against its env-node.
async fn to_its_end<T: Send + 'static>(
    submission: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    tokio::spawn(submission.in_current_span())
        .await
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

#[cfg(test)]
mod tests {
    use tokio::{sync::oneshot, task::yield_now};

    use super::*;

    #[tokio::test]
    async fn a_submission_is_taken_in_although_its_actor_leaves() {
        let (replayed, replay) = oneshot::channel::<()>();
        let (taken, is_taken) = oneshot::channel();
        let call = to_its_end(async {
            replay.await.unwrap();
            taken.send(()).unwrap();
            Ok(())
        });
        tokio::select! {
            biased;
            _ = call => unreachable!("it waits for the replay"),
            () = yield_now() => {}
        }
        replayed.send(()).unwrap();
        is_taken.await.unwrap();
    }
}
