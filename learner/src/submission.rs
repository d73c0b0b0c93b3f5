//! Takes in what actors submit: groups, and parts of evaluations.
//!
//! Invariant: a group is checked, then played again, then journaled. A group that fails names its
//! actor and is handed out again. Work keeps what its call holds of the limits, even if the actor
//! leaves.

use std::sync::Arc;

use proto::{EncodedEvaluation, EncodedGroup, TraceContext, v1::SubmitVerdict};
use tokio::task;
use tonic::Status;

use crate::{
    Learner,
    call_limits::HeldByCall,
    evaluation::PART_QUESTIONS,
    group::{self, Group, GroupHead},
    intake::SubmitError,
    metrics::{self, CHECKING, JOURNALING, REPLAYING, Stopwatch},
    refusals::RefusalReason,
    run_context::RunContext,
    scheduler::Admission,
    verifier::VerifyError,
};

impl Learner {
    /// Takes in a group, and returns the verdict for its actor.
    pub(crate) async fn submit_group(
        &self,
        encoded: EncodedGroup,
        held: Option<HeldByCall>,
    ) -> Result<SubmitVerdict, Status> {
        let admission = match self.take_in(encoded, held).await {
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
        Ok(verdict)
    }

    /// Takes in a part of an evaluation.
    pub(crate) async fn submit_part(
        &self,
        encoded: EncodedEvaluation,
        held: Option<HeldByCall>,
    ) -> Result<(), Status> {
        let context = Arc::clone(&self.context);
        on_blocking_thread(held, move || context.take_part(&encoded)).await?
    }

    /// Checks a group, and journals it if it is needed.
    async fn take_in(
        &self,
        encoded: EncodedGroup,
        held: Option<HeldByCall>,
    ) -> Result<Admission, SubmitError> {
        let submission = TraceContext::current();
        let mut stopwatch = Stopwatch::start();
        let context = Arc::clone(&self.context);
        let checked = on_blocking_thread(held.clone(), move || context.check(encoded)).await;
        stopwatch.lap(&CHECKING);
        let group = match checked.map_err(SubmitError::OtherRun)?? {
            Ok(group) => group,
            Err(admission) => return Ok(admission),
        };
        let verified = self.verify(&group).await;
        stopwatch.lap(&REPLAYING);
        verified?;
        let context = Arc::clone(&self.context);
        let journal = move || context.journal(group, submission);
        let journaled = on_blocking_thread(held, journal).await;
        stopwatch.lap(&JOURNALING);
        journaled.map_err(SubmitError::OtherRun)?
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

    /// Counts a group that is refused, and hands it out again.
    fn refuse(&self, head: &GroupHead, reason: RefusalReason, problem: &str) {
        metrics::group_submitted("refused");
        metrics::groups_refused(reason, 1);
        self.context.refused(&head.actor_id, problem);
        self.context.intake.refuse(head);
    }
}

impl RunContext {
    /// Decodes and checks a group that this learner handed out to the actor. The second result is
    /// the verdict on a group that is not needed.
    fn check(&self, encoded: EncodedGroup) -> Result<Result<Group, Admission>, SubmitError> {
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

    fn journal(&self, group: Group, submission: TraceContext) -> Result<Admission, SubmitError> {
        let (id, index) = (group.actor_id.clone(), group.index);
        let shown = group.trajectories.first().cloned();
        let admission = self.intake.submit(group)?;
        if admission == Admission::Accept {
            self.traces.accepted(index, submission);
        }
        let accepted = shown.filter(|_| admission == Admission::Accept);
        let now = self.now();
        self.actors().submitted(now, &id, index, accepted);
        Ok(admission)
    }

    /// Checks the episodes of a part of an evaluation, and takes them if they are needed.
    fn take_part(&self, encoded: &EncodedEvaluation) -> Result<(), Status> {
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

/// Runs `work` on another thread: decoding, checking and the disk take milliseconds that would hold
/// up other calls.
async fn on_blocking_thread<T: Send + 'static>(
    held: Option<HeldByCall>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let work = move || {
        let _held = held;
        work()
    };
    let panicked = |_| Status::internal("the submission panicked: this is a bug");
    task::spawn_blocking(work).await.map_err(panicked)
}
