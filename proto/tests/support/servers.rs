//! Servers for tests of the transport: one that echoes, and some that refuse or count calls.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use proto::v1::{
    InfoRequest, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, Question,
    ReplayRequest, ReplayResponse, ResetRequest, ResetResponse, StepRequest, StepResponse,
    env_server::{Env, EnvServer},
};
use tokio::net::{TcpListener, TcpSocket};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Returns the question id as the token, refuses steps, lists one long question, whose bytes the
/// page size gives, and is slow to answer `Info`.
#[derive(Clone)]
pub(crate) struct Echo;

/// Bytes of the question, which are more than tonic reads by default.
pub(crate) const LONG: usize = 5 << 20;

#[tonic::async_trait]
impl Env for Echo {
    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        let question_id = request.into_inner().question_id;
        Ok(Response::new(ResetResponse {
            token: question_id.clone().into_bytes(),
            question_id,
            ..ResetResponse::default()
        }))
    }

    async fn step(&self, _: Request<StepRequest>) -> Result<Response<StepResponse>, Status> {
        Err(unauthenticated("TOKEN_FORGED"))
    }

    async fn replay(&self, _: Request<ReplayRequest>) -> Result<Response<ReplayResponse>, Status> {
        Err(Status::unimplemented("an older node"))
    }

    async fn list_questions(
        &self,
        request: Request<ListQuestionsRequest>,
    ) -> Result<Response<ListQuestionsResponse>, Status> {
        let length = match request.into_inner().page_size {
            0 => LONG,
            bytes => bytes as usize,
        };
        let question = Question {
            question_text: "x".repeat(length),
            ..Question::default()
        };
        Ok(Response::new(ListQuestionsResponse {
            questions: vec![question],
            ..ListQuestionsResponse::default()
        }))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(Response::new(InfoResponse::default()))
    }
}

pub(crate) fn server() -> EnvServer<Echo> {
    EnvServer::new(Echo).max_decoding_message_size(1 << 10)
}

/// Serves on a free port and returns the address.
pub(crate) async fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(server())
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    address
}

/// Returns an address that refuses connections.
pub(crate) async fn nobody() -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = format!("http://{}", socket.local_addr().unwrap());
    // The socket does not listen. It keeps its port until the process ends, so that no other test
    // serves there.
    std::mem::forget(socket);
    address
}

/// Serves on a free port, or refuses each call by a status. Returns the address and the number of
/// calls.
pub(crate) async fn serve_counted(refusal: Option<Status>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let intercept = move |request: Request<()>| -> Result<Request<()>, Status> {
        counted.fetch_add(1, Ordering::Relaxed);
        match &refusal {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(request),
        }
    };
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(EnvServer::with_interceptor(Echo, intercept))
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    (address, calls)
}

/// Serves on a free port and refuses each call, because it has too much work.
pub(crate) async fn serve_full() -> (String, Arc<AtomicUsize>) {
    serve_counted(Some(Status::resource_exhausted("too many calls"))).await
}

/// As an env-node refuses the token of a caller or of an episode.
pub(crate) fn unauthenticated(reason: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, "sqlenv", []);
    Status::with_error_details(Code::Unauthenticated, "forged token", details)
}

pub(crate) fn foreign() -> Status {
    let details = ErrorDetails::with_error_info("FOREIGN_ENVIRONMENT", "sqlenv", []);
    Status::with_error_details(Code::FailedPrecondition, "has changed", details)
}
