//! The `sqlenv.v1.Env` service.
//!
//! Invariant: what the agent does wrong is an observation. A status means that the step was not applied.
//! The clock is read here only; the core takes the time as an argument.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use proto::v1::{
    InfoRequest, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, ResetRequest,
    ResetResponse, StepRequest, StepResponse,
    env_server::{Env, EnvServer},
};
use tonic::{Request, Response, Status, async_trait};

use crate::{error::EnvError, metrics, node::EnvNode};

/// Largest response: a token and an observation with a full history, or a page of questions.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

#[async_trait]
impl Env for EnvNode {
    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        respond(Self::reset(self, request.into_inner(), now_unix_seconds()))
    }

    #[expect(clippy::disallowed_methods, reason = "times the call for a metric")]
    async fn step(&self, request: Request<StepRequest>) -> Result<Response<StepResponse>, Status> {
        let began = Instant::now();
        let StepRequest { token, action } = request.into_inner();
        let action = action.unwrap_or_default();
        let outcome = Self::step(self, token, &action, now_unix_seconds()).await;
        if let Ok(response) = &outcome {
            metrics::step_served(&action.action_type, response, began.elapsed());
        }
        respond(outcome)
    }

    async fn list_questions(
        &self,
        request: Request<ListQuestionsRequest>,
    ) -> Result<Response<ListQuestionsResponse>, Status> {
        respond(Self::list_questions(self, &request.into_inner()))
    }

    async fn info(&self, _request: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        respond(Ok(Self::info(self)))
    }
}

impl EnvNode {
    /// The generated server, for `proto::Transport::in_process` or a router.
    pub fn service(&self) -> EnvServer<Self> {
        EnvServer::new(self.clone())
            .max_decoding_message_size(self.server_config().max_request_bytes)
            .max_encoding_message_size(MAX_RESPONSE_BYTES)
    }
}

fn respond<T>(outcome: Result<T, EnvError>) -> Result<Response<T>, Status> {
    match outcome {
        Ok(message) => Ok(Response::new(message)),
        Err(error) => Err(error.into()),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "tokens expire by the clock; the node takes it as an argument"
)]
pub(crate) fn now_unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
