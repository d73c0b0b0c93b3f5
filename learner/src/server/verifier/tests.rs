//! Tests replays without a server.

use proto::{
    EncodedGroup, Transport, env_client,
    v1::{
        InfoRequest, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, StepRequest,
        env_server::{Env, EnvServer},
    },
};
use tokio::sync::Notify;
use tonic::Request;

use super::*;
use crate::scheduler::GroupSummary;

/// Is away for member 0, and refuses the actions of member 2, and then those of member 1.
#[derive(Default)]
struct RefusingEnv {
    has_refused: Notify,
}

#[tonic::async_trait]
impl Env for RefusingEnv {
    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        // Names the member to `replay`.
        let token = request.into_inner().episode_id.into_bytes();
        Ok(Response::new(ResetResponse {
            token,
            ..ResetResponse::default()
        }))
    }

    async fn replay(
        &self,
        request: Request<ReplayRequest>,
    ) -> Result<Response<ReplayResponse>, Status> {
        match request.into_inner().token.last() {
            Some(b'0') => return Err(Status::internal("no database")),
            Some(b'1') => self.has_refused.notified().await,
            _ => self.has_refused.notify_one(),
        }
        Err(Status::invalid_argument("no such action"))
    }

    async fn step(&self, _: Request<StepRequest>) -> Result<Response<StepResponse>, Status> {
        Err(Status::unimplemented("nobody steps here"))
    }

    async fn list_questions(
        &self,
        _: Request<ListQuestionsRequest>,
    ) -> Result<Response<ListQuestionsResponse>, Status> {
        Err(Status::unimplemented("there are no questions here"))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        Err(Status::unimplemented("there is no information here"))
    }
}

/// If the other calls were dropped, the client would leave a healthy env-node for the next one. And
/// what one member proves holds while the env-node is away for another.
#[tokio::test]
async fn a_refusal_does_not_end_the_calls_of_other_members() {
    let env = env_client(Transport::in_process(
        EnvServer::new(RefusingEnv::default()),
    ));
    let config = LearnerConfig::default();
    let verifier = Verifier::new(env, ActorIdentity::default(), &config, 1);
    let trajectory = |member| Trajectory {
        member,
        scored: true,
        turns: vec![Turn::default()],
        ..Trajectory::default()
    };
    let group = Group {
        head: SubmissionHead::default(),
        encoded: EncodedGroup::default(),
        trajectories: (0..3).map(trajectory).collect(),
        rewards: Vec::new(),
        summary: GroupSummary {
            kept: true,
            oldest_version: 0,
        },
    };
    let Err(VerifyError::Differs(problem)) = verifier.verify(&group).await else {
        panic!("the group was not refused");
    };
    assert!(
        problem.starts_with("group 0, member 1: turn 0"),
        "{problem}"
    );
}
