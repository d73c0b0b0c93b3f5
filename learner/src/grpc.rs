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
        ActorIdentity, ClaimRequest, ClaimResponse, EvaluationClaim, GroupClaim, JoinRequest,
        JoinResponse, SubmitEvaluationResponse, SubmitResponse, SubmitVerdict, Wait,
        WeightsRequest, WeightsResponse, claim_response::Outcome, learner_server::LearnerServer,
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
    group::{self, Group, GroupHead},
    intake::SubmitError,
    metrics,
    refusals::RefusalReason,
    scheduler::{Admission, Claim, Lease},
    verifier::VerifyError,
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
            let evaluation_expiry = match self.lease_evaluation(now, policy_version) {
                EvaluationLease::Part(part) => return self.evaluation_claim(part),
                EvaluationLease::OtherVersion => return wait(RETRY_MILLISECONDS),
                EvaluationLease::None(expiry) => expiry,
            };
            let claimed = context.intake.claim(now, actor_id, policy_version);
            context.intake.report(now);
            let expiry = match claimed {
                (Claim::Group(lease), _) => return Outcome::Group(self.group_claim(now, lease)),
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

    fn group_claim(&self, now: Duration, lease: Lease) -> GroupClaim {
        let context = &self.context;
        metrics::group_claimed(context.intake.expired_leases());
        GroupClaim {
            group_index: lease.group_index,
            lease_id: lease.lease_id,
            question_id: context.question_id(lease.group_index),
            group_size: context.config.group_size as u32,
            min_policy_version: lease.min_policy_version,
            lease_seconds: (lease.expires - now).as_secs() as u32,
        }
    }
}

impl Learner {
    /// Checks a group, and journals it if it is needed. The work keeps what the call holds.
    async fn take_in(
        &self,
        encoded: EncodedGroup,
        held: Option<HeldByCall>,
    ) -> Result<Admission, SubmitError> {
        let submission = TraceContext::current();
        // Decoding, checking and the disk take milliseconds that would hold up other calls.
        let (context, held_by_check) = (Arc::clone(&self.context), held.clone());
        let check = move || {
            let _held = held_by_check;
            context.checked(encoded)
        };
        let group = match on_blocking_thread(check).await? {
            Ok(group) => group,
            Err(admission) => return Ok(admission),
        };
        self.verify(&group).await?;
        let context = Arc::clone(&self.context);
        on_blocking_thread(move || {
            let _held = held;
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
        })
        .await
    }

    /// Plays a group again, if the learner has an env-node.
    async fn verify(&self, group: &Group) -> Result<(), SubmitError> {
        let Some(verifier) = self.context.verifier() else {
            return Ok(());
        };
        verifier.verify(group).await.map_err(|fault| match fault {
            VerifyError::Differs(problem) => {
                SubmitError::Refused(group.head(), RefusalReason::Rewards, problem)
            }
            VerifyError::EnvAway(problem) => {
                let text = format!("the learner's env-node cannot play the group again: {problem}");
                tracing::warn!("{text}");
                SubmitError::EnvAway(Status::unavailable(text))
            }
        })
    }

    /// Refuses an actor of another identity, and counts it.
    fn check_identity(
        &self,
        actor_id: &str,
        identity: Option<&ActorIdentity>,
    ) -> Result<(), Status> {
        self.context.check_identity(identity).map_err(|problem| {
            self.context.refused(actor_id, &problem);
            Status::failed_precondition(problem)
        })
    }

    /// Counts a group that is refused, and hands it out again.
    fn refuse(&self, head: &GroupHead, reason: RefusalReason, problem: &str) {
        metrics::group_submitted("refused");
        metrics::groups_refused(reason, 1);
        self.context.refused(&head.actor_id, problem);
        self.context.intake.refuse(head);
    }
}

/// Runs `work` where it may block.
async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SubmitError> + Send + 'static,
) -> Result<T, SubmitError> {
    let panicked = |_| Status::internal("the submission panicked: this is a bug");
    let done = task::spawn_blocking(work).await.map_err(panicked);
    done.map_err(SubmitError::OtherRun)?
}

/// Refuses a name that is too long to be kept.
fn check_name(actor_id: &str) -> Result<(), Status> {
    group::check_name("actor_id", actor_id).map_err(Status::invalid_argument)
}

impl RunContext {
    /// Decodes and checks a group that this learner handed out to the actor. The second result is
    /// the verdict on a group that is not needed.
    fn checked(&self, encoded: EncodedGroup) -> Result<Result<Group, Admission>, SubmitError> {
        let head = GroupHead::of(&encoded).unwrap_or_default();
        let invalid = |fault| SubmitError::Refused(head.clone(), RefusalReason::Invalid, fault);
        let group = self.intake.check(encoded).map_err(invalid)?;
        let of_run = self.check_run(&group.run_id);
        of_run.map_err(SubmitError::OtherRun)?;
        match self.intake.judge(&group) {
            Admission::Accept => {}
            refused => return Ok(Err(refused)),
        }
        let question_id = self.question_id(group.index);
        group.check_question(&question_id).map_err(invalid)?;
        Ok(Ok(group))
    }

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
        let part = group::decode_evaluation(encoded, PART_QUESTIONS, self.intake.rules())
            .map_err(|fault| Status::invalid_argument(format!("the part: {fault}")))?;
        self.check_run(&part.run_id)?;
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
        let JoinRequest { actor_id, identity } = request.get_ref();
        check_name(actor_id)?;
        self.check_identity(actor_id, identity.as_ref())?;
        tracing::info!(actor_id, "actor joined");
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
        check_name(id)?;
        self.check_identity(id, request.identity.as_ref())?;
        let version = request.policy_version;
        context
            .actors()
            .claimed(context.now(), id, version, request.report);
        let outcome = self.claim_or_wait(id, version).await;
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
        // An actor that leaves does not end the work that holds its bytes.
        let held = request.extensions().get::<HeldByCall>().cloned();
        let admission = match self.take_in(request.into_inner(), held).await {
            Ok(admission) => admission,
            Err(SubmitError::Refused(head, reason, problem)) => {
                self.refuse(&head, reason, &problem);
                return Err(Status::invalid_argument(problem));
            }
            Err(SubmitError::OtherRun(status) | SubmitError::EnvAway(status)) => {
                return Err(status);
            }
            Err(SubmitError::Journal(fault)) => {
                tracing::error!(%fault, "the run stops");
                self.context.evaluator.stop();
                return Err(Status::unavailable(fault));
            }
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
