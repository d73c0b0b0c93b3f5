//! The `sqlenv.v1.Env` service.
//!
//! Invariant: what the agent does wrong is an observation. A status means that the step was not
//! applied.

use env::EnvError;
use proto::{
    MAX_MESSAGE_BYTES, MAX_REPLAYED_ACTIONS,
    v1::{
        InfoRequest, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, ReplayRequest,
        ReplayResponse, ResetRequest, ResetResponse, StepRequest, StepResponse,
        env_server::{Env, EnvServer},
    },
};
use tonic::{Request, Response, Status, async_trait};

use crate::{node::EnvNode, serve::call_limits::grpc_timeout, status, wire};

#[async_trait]
impl Env for EnvNode {
    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        let request = request.into_inner();
        self.check_expected(&request)?;
        let spec = wire::episode_spec(request);
        respond(Self::reset(self, spec).map(wire::reset_response))
    }

    async fn step(&self, request: Request<StepRequest>) -> Result<Response<StepResponse>, Status> {
        let StepRequest { token, action } = request.into_inner();
        // A step of the episode would be spent on what no agent did.
        let Some(action) = action else {
            return respond(Err(EnvError::Request {
                field: "action",
                message: "action: give one".to_owned(),
            }));
        };
        let action = wire::action(action);
        let result = Self::step(self, token, &action).await;
        respond(result.map(wire::step_response))
    }

    async fn replay(
        &self,
        request: Request<ReplayRequest>,
    ) -> Result<Response<ReplayResponse>, Status> {
        let requested = grpc_timeout(request.metadata().as_ref());
        let ReplayRequest { token, actions } = request.into_inner();
        if actions.is_empty() {
            return respond(Err(EnvError::Request {
                field: "actions",
                message: "actions: give at least one".to_owned(),
            }));
        }
        if actions.len() > MAX_REPLAYED_ACTIONS {
            return respond(Err(EnvError::Request {
                field: "actions",
                message: format!("actions: give at most {MAX_REPLAYED_ACTIONS}"),
            }));
        }
        let actions = actions.into_iter().map(wire::action);
        let result = Self::replay(self, token, actions, requested).await;
        respond(result.map(|steps| ReplayResponse {
            steps: steps.into_iter().map(wire::step_response).collect(),
        }))
    }

    async fn list_questions(
        &self,
        request: Request<ListQuestionsRequest>,
    ) -> Result<Response<ListQuestionsResponse>, Status> {
        respond(wire::list_questions(
            self.environment(),
            &request.into_inner(),
        ))
    }

    async fn info(&self, _request: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        Ok(Response::new(wire::info(self.environment())))
    }
}

impl EnvNode {
    /// The generated server, for `proto::Transport::in_process` or a router.
    pub fn service(&self) -> EnvServer<Self> {
        EnvServer::new(self.clone())
            .max_decoding_message_size(self.settings().server.max_request_bytes)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Refuses a Reset whose caller expects another environment than this node's.
    fn check_expected(&self, request: &ResetRequest) -> Result<(), Status> {
        let own = self.environment();
        let rows = [
            (
                "data",
                &*request.data_sha256,
                own.data_sha256(),
                "--data and --databases",
            ),
            (
                "the environment version",
                &*request.environment_version,
                own.version(),
                "version of the program and the same [env] settings",
            ),
        ];
        let differs =
            |(_, expected, own, _): &&(_, &str, &str, _)| !expected.is_empty() && expected != own;
        rows.iter().find(differs).map_or(Ok(()), |row| {
            let (what, expected, own, remedy) = row;
            let message = format!(
                "this node serves {what} {own:?}, and the caller expects {expected:?}; start it \
                 with the same {remedy}"
            );
            Err(status::foreign_environment(&message))
        })
    }
}

fn respond<T>(result: Result<T, EnvError>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(status::of)
}
