//! The learner's side of an actor: claims and submissions of a run that the actor has joined.
//!
//! Invariant: every call names the run, and every call is safe to repeat.

use proto::{
    CLAIM_WAIT, Encoded, LearnerClient, MAX_GROUP_BYTES,
    v1::{
        ActorIdentity, ActorReport, ClaimRequest, EvaluationClaim, GroupClaim,
        SubmitEvaluationRequest, SubmitRequest, SubmitVerdict, Trajectory, claim_response::Outcome,
    },
};

use crate::{error::ActorError, metrics, retry::Retry, rollout::failed_trajectory};

/// A run that an actor has joined.
pub(crate) struct LearnerSession {
    pub(crate) client: LearnerClient,
    pub(crate) actor_id: String,
    pub(crate) run_id: String,
    pub(crate) identity: ActorIdentity,
    pub(crate) retry: Retry,
    /// As in `JoinResponse`.
    pub(crate) replay_seconds: u32,
}

/// Returns a retry whose calls may last this much longer.
fn lasting(retry: Retry, seconds: u32) -> Retry {
    Retry {
        call_timeout_seconds: retry.call_timeout_seconds.saturating_add(seconds),
        ..retry
    }
}

impl LearnerSession {
    /// Claims a group for weights of `policy_version`. The learner holds the claim while there is
    /// no work. A claim is never cancelled: a group granted at that moment would be lost until its
    /// lease expires.
    pub(crate) async fn claim(
        &self,
        policy_version: u64,
        report: ActorReport,
    ) -> Result<Option<Outcome>, ActorError> {
        let retry = lasting(self.retry, CLAIM_WAIT.as_secs() as u32);
        let request = ClaimRequest {
            actor_id: self.actor_id.clone(),
            policy_version,
            run_id: self.run_id.clone(),
            report: Some(report),
            identity: Some(self.identity.clone()),
        };
        let claim = async || self.client.clone().claim(request.clone()).await;
        Ok(retry.call("Learner.Claim", claim).await?.outcome)
    }

    /// Submits a group under its newest lease, which is safe to repeat. The verdict matters to the
    /// learner only.
    pub(crate) async fn submit(
        &self,
        claim: &GroupClaim,
        lease_id: u64,
        trajectories: Vec<Trajectory>,
    ) -> Result<(), ActorError> {
        let request = SubmitRequest {
            actor_id: self.actor_id.clone(),
            group_index: claim.group_index,
            lease_id,
            trajectories,
            run_id: self.run_id.clone(),
        };
        let name = format!("group {}", claim.group_index);
        // Encoded once: each attempt shares the bytes.
        let group = within(
            request,
            |request| &mut request.trajectories,
            MAX_GROUP_BYTES,
            &name,
        );
        let submit = async || self.client.clone().submit(group.clone()).await;
        let retry = self.submitting(claim.lease_seconds);
        let response = retry.call("Learner.Submit", submit).await?;
        metrics::count_group(verdict_name(response.verdict()));
        Ok(())
    }

    /// Submits a part of an evaluation under its newest lease, which is safe to repeat.
    pub(crate) async fn submit_evaluation(
        &self,
        claim: &EvaluationClaim,
        lease_id: u64,
        trajectories: Vec<Trajectory>,
    ) -> Result<(), ActorError> {
        let request = SubmitEvaluationRequest {
            actor_id: self.actor_id.clone(),
            run_id: self.run_id.clone(),
            part_id: claim.part_id,
            lease_id,
            trajectories,
        };
        let name = format!("part {} of an evaluation", claim.part_id);
        let part = within(
            request,
            |request| &mut request.trajectories,
            MAX_GROUP_BYTES,
            &name,
        );
        let submit = async || self.client.clone().submit_evaluation(part.clone()).await;
        let retry = self.submitting(claim.lease_seconds);
        retry.call("Learner.SubmitEvaluation", submit).await?;
        Ok(())
    }

    /// Returns a retry whose calls last as long as the learner may replay what they submit. If a
    /// call ended earlier, the learner would finish its replays all the same, and play the work
    /// again for the next call.
    /// An older learner does not say how long that is; then the lease counts.
    fn submitting(&self, lease_seconds: u32) -> Retry {
        lasting(self.retry, self.replay_seconds.max(lease_seconds))
    }
}

/// Encodes a submission of at most `max_bytes`. The learner would refuse a larger one and hand the
/// work out again without end. Its trajectories become unscored instead, with the reason, so that
/// the run continues without it.
fn within<M>(
    mut request: M,
    trajectories: fn(&mut M) -> &mut Vec<Trajectory>,
    max_bytes: usize,
    name: &str,
) -> Encoded<M>
where
    Encoded<M>: for<'a> From<&'a M>,
{
    let submission = Encoded::<M>::from(&request);
    let size_bytes = submission.bytes().len();
    if size_bytes <= max_bytes {
        return submission;
    }
    let reason = format!(
        "{name} has {size_bytes} bytes, but a message may have {max_bytes}; lower \
         learner.rollout.max_context_tokens, or learner.group_size for groups"
    );
    tracing::error!("its episodes get no score: {reason}");
    fail(trajectories(&mut request), &reason);
    Encoded::from(&request)
}

/// Makes unscored trajectories of all of them.
fn fail(trajectories: &mut [Trajectory], reason: &str) {
    for trajectory in trajectories {
        let question_id = std::mem::take(&mut trajectory.question_id);
        *trajectory = Trajectory {
            question_id,
            failure_is_final: true,
            ..failed_trajectory(trajectory.member, reason.to_owned())
        };
    }
}

fn verdict_name(verdict: SubmitVerdict) -> &'static str {
    match verdict {
        SubmitVerdict::Unspecified => "unspecified",
        SubmitVerdict::Accepted => "accepted",
        SubmitVerdict::Duplicate => "duplicate",
        SubmitVerdict::Stale => "stale",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::stream::Empty;
    use proto::{
        EncodedEvaluation, EncodedGroup, Transport,
        v1::{
            ClaimResponse, JoinRequest, JoinResponse, SubmitEvaluationResponse, SubmitResponse,
            WeightsRequest, WeightsResponse,
            learner_server::{Learner, LearnerServer},
        },
    };
    use tonic::{Request, Response, Status};

    use super::*;

    /// Takes a moment to replay what is submitted.
    struct ReplayingLearner;

    #[tonic::async_trait]
    impl Learner for ReplayingLearner {
        type WeightsStream = Empty<Result<WeightsResponse, Status>>;

        async fn join(&self, _: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
            Err(Status::unimplemented("nobody joins here"))
        }

        async fn claim(&self, _: Request<ClaimRequest>) -> Result<Response<ClaimResponse>, Status> {
            Err(Status::unimplemented("nobody claims here"))
        }

        async fn submit(
            &self,
            _: Request<EncodedGroup>,
        ) -> Result<Response<SubmitResponse>, Status> {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(Response::new(SubmitResponse::default()))
        }

        async fn submit_evaluation(
            &self,
            _: Request<EncodedEvaluation>,
        ) -> Result<Response<SubmitEvaluationResponse>, Status> {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(Response::new(SubmitEvaluationResponse::default()))
        }

        async fn weights(
            &self,
            _: Request<WeightsRequest>,
        ) -> Result<Response<Self::WeightsStream>, Status> {
            Err(Status::unimplemented("nobody needs weights here"))
        }
    }

    /// On slow databases a replay takes longer than the first, short leases.
    #[tokio::test]
    async fn a_submission_waits_as_long_as_the_learner_may_replay_it() {
        let learner = Transport::in_process(LearnerServer::new(ReplayingLearner));
        let session = LearnerSession {
            client: LearnerClient::new(learner),
            actor_id: "a".to_owned(),
            run_id: "r".to_owned(),
            identity: ActorIdentity::default(),
            retry: Retry {
                call_timeout_seconds: 0,
                attempts: 0,
            },
            replay_seconds: 60,
        };
        let (group, part) = (GroupClaim::default(), EvaluationClaim::default());
        session.submit(&group, 1, Vec::new()).await.unwrap();
        session
            .submit_evaluation(&part, 1, Vec::new())
            .await
            .unwrap();
    }

    fn trajectory(member: u32) -> Trajectory {
        Trajectory {
            member,
            scored: true,
            question_id: "q".to_owned(),
            segments: vec![proto::v1::Segment {
                tokens: vec![7; 1_000],
                ..proto::v1::Segment::default()
            }],
            ..Trajectory::default()
        }
    }

    #[test]
    fn a_submission_over_the_limit_has_no_scores_and_says_why() {
        let request = SubmitRequest {
            actor_id: "a".to_owned(),
            group_index: 3,
            lease_id: 4,
            trajectories: (0..2).map(trajectory).collect(),
            run_id: "r".to_owned(),
        };
        let size = Encoded::<SubmitRequest>::from(&request).bytes().len();
        let encoded = |request: &SubmitRequest, max_bytes| {
            let request = request.clone();
            let group = within(request, |it| &mut it.trajectories, max_bytes, "group 3");
            group.decode().unwrap()
        };
        assert_eq!(encoded(&request, size), request);
        let reduced = encoded(&request, size - 1);
        assert_eq!((reduced.group_index, reduced.lease_id), (3, 4));
        for (member, trajectory) in reduced.trajectories.iter().enumerate() {
            assert_eq!(trajectory.member as usize, member);
            assert_eq!(trajectory.question_id, "q");
            assert!(!trajectory.scored && trajectory.segments.is_empty());
            assert!(trajectory.failure_is_final);
            let failure = &trajectory.failure;
            assert!(
                failure.starts_with("group 3 has") && failure.contains("learner.group_size"),
                "{failure}"
            );
        }
    }
}
