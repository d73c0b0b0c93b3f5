//! One client type, two ways to the server: answers, status codes and size limits are alike in process and over TCP.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

use proto::{
    EnvClient, Transport,
    v1::{
        InfoRequest, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, ResetRequest,
        ResetResponse, StepRequest, StepResponse,
        env_server::{Env, EnvServer},
    },
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status};

/// Echoes the question id as the token; refuses steps.
#[derive(Clone)]
struct Echo;

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
        Err(Status::unauthenticated("forged token"))
    }

    async fn list_questions(
        &self,
        _: Request<ListQuestionsRequest>,
    ) -> Result<Response<ListQuestionsResponse>, Status> {
        Ok(Response::new(ListQuestionsResponse::default()))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        Ok(Response::new(InfoResponse::default()))
    }
}

fn server() -> EnvServer<Echo> {
    EnvServer::new(Echo).max_decoding_message_size(1 << 10)
}

/// A transport into this process, and one over a real port.
async fn both() -> [Transport; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(server())
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    [
        Transport::in_process(server()),
        Transport::dial(&address).unwrap(),
    ]
}

#[tokio::test]
async fn answers_alike() {
    for transport in both().await {
        let request = ResetRequest {
            question_id: "shop_train_0001".into(),
            ..ResetRequest::default()
        };
        let reply = EnvClient::new(transport).reset(request).await.unwrap();
        assert_eq!(reply.into_inner().token, b"shop_train_0001");
    }
}

#[tokio::test]
async fn refuses_alike() {
    for transport in both().await {
        let status = EnvClient::new(transport)
            .step(StepRequest::default())
            .await
            .unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unauthenticated, "forged token")
        );
    }
}

#[tokio::test]
async fn limits_alike() {
    for transport in both().await {
        let request = ResetRequest {
            question_id: "x".repeat(2 << 10),
            ..ResetRequest::default()
        };
        let status = EnvClient::new(transport).reset(request).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange);
    }
}

#[tokio::test]
async fn an_address_names_a_host_by_http() {
    for address in [
        "http://localhost:9",
        "http://[::1]:9/",
        "http://env.example",
        "http://localhost:9,http://localhost:10",
        "http://localhost:9, http://localhost:10",
    ] {
        assert!(Transport::dial(address).is_ok(), "{address}");
    }
    for (address, reason) in [
        ("not a uri", "invalid uri"),
        ("", "empty"),
        ("localhost", "no scheme"),
        ("localhost:9", "no scheme"),
        ("127.0.0.1:9", "no scheme"),
        ("/run/env.sock", "no scheme"),
        ("ftp://localhost:9", "its scheme is ftp"),
        ("http://:9", "no host"),
    ] {
        let message = Transport::dial(address).unwrap_err().to_string();
        assert!(
            message.contains(&format!("{address:?}")) && message.contains(reason),
            "{message}"
        );
        assert!(
            message.ends_with("give it as http://HOST:PORT or https://HOST:PORT"),
            "{message}"
        );
    }
    let message = Transport::dial("http://localhost:9,localhost")
        .unwrap_err()
        .to_string();
    assert!(
        message.contains(r#"address "localhost": it has no scheme"#),
        "{message}"
    );
}
