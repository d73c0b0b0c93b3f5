//! The `Learner` service: translates messages for the intake, holds claims until there is work.
//!
//! Nothing here decides what is handed out or accepted, and async code does no disk work. What an
//! actor does wrong is refused with INVALID_ARGUMENT and does not end the run. A group that cannot
//! be journaled ends the run and is refused with UNAVAILABLE, so that actors wait until the run is
//! resumed. A claim that finds no work has the outcome `Wait`. A request that names another run is
//! FAILED_PRECONDITION.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use proto::{
    CLAIM_WAIT, EncodedEvaluation, EncodedGroup, MAX_MESSAGE_BYTES, SharedResponses, TraceContext,
    chunks::CHUNK_BYTES,
    share,
    v1::{
        ClaimRequest, ClaimResponse, EvaluationClaim, GroupClaim, JoinRequest, JoinResponse,
        SubmitEvaluationResponse, SubmitResponse, SubmitVerdict, Wait, WeightsRequest,
        WeightsResponse, claim_response::Outcome, learner_server::LearnerServer,
        ranks_server::RanksServer,
    },
};
use tokio::{
    sync::mpsc,
    task,
    time::{Instant, sleep_until},
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::{
    Learner,
    call_limits::HeldByCall,
    driver::{RunContext, sampling_message},
    error::Result,
    evaluation::{LeasedPart, PART_QUESTIONS},
    evaluator::EvaluationLease,
    group::check_episode,
    intake::SubmitError,
    metrics,
    scheduler::{Admission, Claim, Lease},
    submission_size::{self, SizeLimits},
    weights_stream,
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
    async fn claim_or_wait(&self, policy_version: u64) -> Outcome {
        let context = &self.context;
        let deadline = Instant::now() + CLAIM_WAIT;
        let mut changes = context.intake.work_changes();
        let mut run_end = context.run_end.subscribe();
        loop {
            // Marked before the claim: a change between the claim and the wait below wakes the
            // wait.
            changes.mark_unchanged();
            let now = context.now();
            let evaluation_expiry = match self.lease_evaluation(now, policy_version) {
                EvaluationLease::Part(part) => return self.evaluation_claim(part),
                EvaluationLease::OtherVersion => return wait(RETRY_MILLISECONDS),
                EvaluationLease::None(expiry) => expiry,
            };
            let claimed = context.intake.claim(now, policy_version);
            context.intake.report(now);
            let expiry = match claimed {
                (Claim::Group(lease), _) => return Outcome::Group(self.group_claim(lease)),
                (Claim::OtherVersion, _) => return wait(RETRY_MILLISECONDS),
                // After the last step the claim waits for the checkpoint; the weights stream then
                // ends the actor.
                (Claim::Wait, expiry) => expiry,
            };
            let expiry = expiry.into_iter().chain(evaluation_expiry).min();
            let expiry = expiry.map(|expiry| Instant::now() + expiry.saturating_sub(now));
            let wake = expiry.map_or(deadline, |expiry| expiry.min(deadline));
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

    fn lease_evaluation(&self, now: Duration, policy_version: u64) -> EvaluationLease {
        let lease = Duration::from_secs(self.context.config.lease_seconds.into());
        self.context.evaluator.lease(now, lease, policy_version)
    }

    fn evaluation_claim(&self, part: LeasedPart) -> Outcome {
        Outcome::Evaluation(EvaluationClaim {
            part_id: part.part_id,
            lease_id: part.lease_id,
            policy_version: self.snapshot().policy_version,
            question_ids: part.question_ids,
            seed: part.seed,
            sampling: Some(sampling_message(&part.sampling)),
            lease_seconds: self.context.config.lease_seconds,
        })
    }

    fn group_claim(&self, lease: Lease) -> GroupClaim {
        let context = &self.context;
        metrics::group_claimed(context.intake.expired_leases());
        GroupClaim {
            group_index: lease.group_index,
            lease_id: lease.lease_id,
            question_id: context.question_id(lease.group_index),
            group_size: context.config.group_size as u32,
            min_policy_version: lease.min_policy_version,
            lease_seconds: context.config.lease_seconds,
        }
    }
}

impl RunContext {
    /// Refuses a request that names another run.
    fn check_run(&self, run_id: &str) -> Result<(), Status> {
        if run_id == self.run_id {
            return Ok(());
        }
        Err(Status::failed_precondition(format!(
            "this learner has the run {:?}, and the request names {run_id:?}; start the actor \
             again, so that it joins this run",
            self.run_id
        )))
    }

    /// Checks the episodes of a part of an evaluation, and takes them if they are needed.
    fn submit_evaluation(&self, encoded: &EncodedEvaluation) -> Result<(), Status> {
        let invalid = |fault: String| Status::invalid_argument(format!("the part: {fault}"));
        let limits = SizeLimits::new(&self.config, PART_QUESTIONS);
        let sized = limits.check(encoded.bytes(), submission_size::OF_EVALUATION);
        sized.map_err(invalid)?;
        let part = encoded
            .decode()
            .map_err(|fault| invalid(format!("cannot be decoded: {fault}")))?;
        self.check_run(&part.run_id)?;
        for (number, episode) in part.trajectories.iter().enumerate() {
            check_episode(episode, self.intake.rules()).map_err(|fault| {
                Status::invalid_argument(format!("trajectory {number}: {fault}"))
            })?;
        }
        self.actors().heard(self.now(), &part.actor_id);
        let submitted = self.evaluator.submit(part.part_id, part.trajectories);
        submitted.map_err(Status::invalid_argument)?;
        // A part that must be played again may be what a claim waits for.
        self.intake.wake_claims();
        Ok(())
    }
}

fn panicked() -> Status {
    Status::internal("the submission panicked: this is a bug")
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
        tracing::info!(actor_id = request.get_ref().actor_id, "actor joined");
        self.context.has_been_joined.store(true, Ordering::Relaxed);
        let now = self.context.now();
        self.context
            .actors()
            .heard(now, &request.get_ref().actor_id);
        let (sender, messages) = mpsc::channel(1);
        // Cannot fail: the channel has room for the message.
        let _ = sender.try_send(Ok(self.context.join_response().into()));
        Ok(share(messages, JoinResponse::default()))
    }

    async fn claim(
        &self,
        request: Request<ClaimRequest>,
    ) -> Result<Response<ClaimResponse>, Status> {
        let request = request.into_inner();
        let (context, id) = (&self.context, &request.actor_id);
        context.check_run(&request.run_id)?;
        let version = request.policy_version;
        context
            .actors()
            .claimed(context.now(), id, version, request.report);
        let outcome = self.claim_or_wait(version).await;
        if let Outcome::Group(claim) = &outcome {
            let lease = Duration::from_secs(claim.lease_seconds.into());
            context
                .actors()
                .leased(context.now(), id, claim.group_index, lease);
        }
        Ok(Response::new(ClaimResponse {
            outcome: Some(outcome),
        }))
    }

    async fn submit(
        &self,
        request: Request<EncodedGroup>,
    ) -> Result<Response<SubmitResponse>, Status> {
        let context = Arc::clone(&self.context);
        let submission = TraceContext::current();
        // An actor that leaves does not end the work.
        let held = request.extensions().get::<HeldByCall>().cloned();
        // Decoding, checking and the disk take milliseconds that would hold up other calls.
        let submit = move || {
            let _held = held;
            let encoded = request.into_inner();
            let limits = SizeLimits::new(&context.config, context.config.group_size);
            let sized = limits.check(encoded.bytes(), submission_size::OF_GROUP);
            sized.map_err(|fault| SubmitError::Invalid(format!("the group: {fault}")))?;
            let group = context.intake.check(encoded)?;
            context
                .check_run(&group.run_id)
                .map_err(SubmitError::OtherRun)?;
            let (id, index) = (group.actor_id.clone(), group.index);
            let shown = group.trajectories.first().cloned();
            let admission = context.intake.submit(group)?;
            if admission == Admission::Accept {
                context.traces.accepted(index, submission);
            }
            let accepted = shown.filter(|_| admission == Admission::Accept);
            context
                .actors()
                .submitted(context.now(), &id, index, accepted);
            Ok(admission)
        };
        let admission = match task::spawn_blocking(submit).await {
            Ok(Ok(admission)) => admission,
            Ok(Err(SubmitError::Invalid(fault))) => return Err(Status::invalid_argument(fault)),
            Ok(Err(SubmitError::OtherRun(status))) => return Err(status),
            Ok(Err(SubmitError::Journal(fault))) => {
                tracing::error!(%fault, "the run stops");
                self.context.evaluator.stop();
                return Err(Status::unavailable(fault));
            }
            Err(_) => return Err(panicked()),
        };
        let (verdict, name) = match admission {
            Admission::Accept => (SubmitVerdict::Accepted, "accepted"),
            Admission::Stale => (SubmitVerdict::Stale, "stale"),
            // An actor treats both alike: the group is not used, and the actor claims another.
            Admission::Unknown => (SubmitVerdict::Stale, "unknown"),
            Admission::Duplicate => (SubmitVerdict::Duplicate, "duplicate"),
        };
        metrics::group_submitted(name);
        self.context.intake.report(self.context.now());
        Ok(Response::new(SubmitResponse {
            verdict: verdict.into(),
        }))
    }

    async fn submit_evaluation(
        &self,
        request: Request<EncodedEvaluation>,
    ) -> Result<Response<SubmitEvaluationResponse>, Status> {
        let context = Arc::clone(&self.context);
        let held = request.extensions().get::<HeldByCall>().cloned();
        let submit = move || {
            let _held = held;
            context.submit_evaluation(&request.into_inner())
        };
        let submitted = task::spawn_blocking(submit).await;
        submitted.unwrap_or_else(|_| Err(panicked()))?;
        Ok(Response::new(SubmitEvaluationResponse {}))
    }

    async fn weights(
        &self,
        request: Request<WeightsRequest>,
    ) -> Result<Response<Self::WeightsStream>, Status> {
        let request = request.into_inner();
        self.context.check_run(&request.run_id)?;
        let messages = weights_stream::open(&self.context, request)?;
        Ok(share(messages, Box::pin(tokio_stream::empty())))
    }
}
