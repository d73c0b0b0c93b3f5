//! Takes in what actors submit: groups, and parts of evaluations.
//!
//! Invariant: a group is checked, then played again, then journaled. A group that fails names its
//! actor and is handed out again. Work keeps what its call holds of the limits, even if the actor
//! leaves.

use std::sync::Arc;

use proto::{
    EncodedEvaluation, EncodedGroup, TraceContext,
    v1::{SubmitVerdict, Trajectory},
};
use tokio::task;
use tonic::Status;

use crate::{
    Learner,
    evaluation_queue::PART_QUESTIONS,
    group::{self, Group, RefusalReason, SubmissionHead},
    metrics::{self, CHECKING, JOURNALING, REPLAYING, Stopwatch},
    run::context::RunContext,
    scheduler::Admission,
    server::{call_limits::HeldByCall, verifier::VerifyError},
};

/// Why submitted work is not taken.
enum SubmitFault {
    /// Its content is refused, for a reason and the same in words; submitting it again is useless.
    Refused(SubmissionHead, RefusalReason, String),
    /// It names another run, or the learner cannot check or journal it now.
    Status(Status),
}

impl From<Status> for SubmitFault {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl SubmitFault {
    /// Returns why work is not taken whose episodes were played again.
    fn of_replay(fault: VerifyError, head: SubmissionHead) -> Self {
        match fault {
            VerifyError::Differs(problem) => Self::Refused(head, RefusalReason::Rewards, problem),
            VerifyError::EnvAway(problem) => Self::Status(Status::unavailable(problem)),
        }
    }
}

impl Learner {
    /// Takes in a group, and returns the verdict for its actor.
    pub(crate) async fn submit_group(
        &self,
        encoded: EncodedGroup,
        held: Option<HeldByCall>,
    ) -> Result<SubmitVerdict, Status> {
        let admission = match self.take_in(encoded, held).await {
            Ok(admission) => admission,
            Err(SubmitFault::Refused(head, reason, problem)) => {
                self.refuse(&head, reason, &problem);
                return Err(Status::invalid_argument(problem));
            }
            Err(SubmitFault::Status(status)) => return Err(status),
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
        match self.take_in_part(encoded, held).await {
            Ok(()) => Ok(()),
            Err(SubmitFault::Status(status)) => Err(status),
            Err(SubmitFault::Refused(head, _, problem)) => {
                let context = &self.context;
                metrics::evaluation_part_refused();
                let was_given = context.evaluator.refuse(context.now(), &head);
                context.refused_work(&head.actor_id, was_given, &problem);
                context.intake.wake_claims();
                Err(Status::invalid_argument(problem))
            }
        }
    }

    /// Checks a part of an evaluation, plays it again, and takes it if it is needed.
    async fn take_in_part(
        &self,
        encoded: EncodedEvaluation,
        held: Option<HeldByCall>,
    ) -> Result<(), SubmitFault> {
        let context = Arc::clone(&self.context);
        let checked = on_blocking_thread(held.clone(), move || context.check_part(&encoded)).await;
        let Some((head, seed, trajectories)) = checked?? else {
            return Ok(());
        };
        if let Some(verifier) = self.context.verifier.get() {
            let verified = verifier.verify_part(&head, seed, &trajectories).await;
            verified.map_err(|fault| SubmitFault::of_replay(fault, head.clone()))?;
        }
        drop(held);
        let context = &self.context;
        context.evaluator.submit(context.now(), &head, trajectories);
        // A part that must be played again may be what a claim waits for.
        context.intake.wake_claims();
        Ok(())
    }

    /// Checks a group, and journals it if it is needed.
    async fn take_in(
        &self,
        encoded: EncodedGroup,
        held: Option<HeldByCall>,
    ) -> Result<Admission, SubmitFault> {
        let submission = TraceContext::current();
        let mut stopwatch = Stopwatch::start();
        let context = Arc::clone(&self.context);
        let checked = on_blocking_thread(held.clone(), move || context.check(encoded)).await;
        stopwatch.lap(&CHECKING);
        let group = match checked?? {
            Ok(group) => group,
            Err(admission) => return Ok(admission),
        };
        let verified = self.verify(&group).await;
        stopwatch.lap(&REPLAYING);
        verified?;
        let context = Arc::clone(&self.context);
        let permit = Arc::clone(&context.journal_permits).acquire_owned().await;
        let journal = move || {
            let _permit = permit;
            context.journal(group, submission)
        };
        let journaled = on_blocking_thread(held, journal).await;
        stopwatch.lap(&JOURNALING);
        journaled?
    }

    /// Plays a group again, if the learner has an env-node.
    async fn verify(&self, group: &Group) -> Result<(), SubmitFault> {
        let Some(verifier) = self.context.verifier.get() else {
            return Ok(());
        };
        let verified = verifier.verify(group).await;
        verified.map_err(|fault| SubmitFault::of_replay(fault, group.head.clone()))
    }

    /// Counts a group that is refused, and hands it out again.
    fn refuse(&self, head: &SubmissionHead, reason: RefusalReason, problem: &str) {
        metrics::group_submitted("refused");
        metrics::groups_refused(reason, 1);
        let was_given = self.context.intake.refuse(self.context.now(), head);
        self.context
            .refused_work(&head.actor_id, was_given, problem);
    }
}

impl RunContext {
    /// Decodes and checks a group that this learner handed out to the actor. The second result is
    /// the verdict on a group that is not needed.
    fn check(&self, encoded: EncodedGroup) -> Result<Result<Group, Admission>, SubmitFault> {
        let head = SubmissionHead::of_group(&encoded).unwrap_or_default();
        // Before the rules of this run, which may differ from those of the run that it names.
        if let Some(run_id) = head.run_id.as_deref() {
            self.check_run(run_id)?;
        }
        let invalid = |fault| SubmitFault::Refused(head.clone(), RefusalReason::Invalid, fault);
        let group = Group::new(encoded, self.intake.rules()).map_err(invalid)?;
        self.check_run(group.head.run_id.as_deref().unwrap_or_default())?;
        match self.intake.judge(&group).map_err(invalid)? {
            Admission::Accept => Ok(Ok(group)),
            refused => Ok(Err(refused)),
        }
    }

    fn journal(&self, group: Group, submission: TraceContext) -> Result<Admission, SubmitFault> {
        let (id, index) = (group.head.actor_id.clone(), group.head.number);
        let shown = group.trajectories.first().cloned();
        let admission = self.intake.submit(group).map_err(|fault| {
            tracing::error!(%fault, "the run stops");
            // Here, because the call may be gone.
            self.evaluator.stop();
            Status::unavailable(fault)
        })?;
        if admission == Admission::Accept {
            self.traces.accepted(index, submission);
        }
        let accepted = shown.filter(|_| admission == Admission::Accept);
        let now = self.now();
        self.actors.lock().submitted(now, &id, index, accepted);
        Ok(admission)
    }

    /// Decodes and checks a part of an evaluation. Returns the episodes and their seed if they are
    /// needed.
    fn check_part(
        &self,
        encoded: &EncodedEvaluation,
    ) -> Result<Option<(SubmissionHead, u64, Vec<Trajectory>)>, SubmitFault> {
        let head = SubmissionHead::of_part(encoded).unwrap_or_default();
        if let Some(run_id) = head.run_id.as_deref() {
            self.check_run(run_id)?;
        }
        let invalid = |fault| SubmitFault::Refused(head.clone(), RefusalReason::Invalid, fault);
        let part = group::decode_evaluation(encoded, PART_QUESTIONS, self.intake.rules())
            .map_err(|fault| invalid(format!("the part: {fault}")))?;
        self.check_run(&part.run_id)?;
        self.actors.lock().called(self.now(), &part.actor_id);
        let checked = self.evaluator.check(&head, &part.trajectories);
        let seed = checked.map_err(invalid)?;
        Ok(seed.map(|seed| (head, seed, part.trajectories)))
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
