//! One address of several servers, as of a balancer: when a client leaves the server that it has.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

#[path = "support/servers.rs"]
mod servers;

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use proto::{
    Credentials, EnvClient, MAX_MESSAGE_BYTES, Transport,
    v1::{
        ListQuestionsRequest, ListQuestionsResponse, ResetRequest, StepRequest,
        env_server::EnvServer,
    },
};
use servers::{Echo, foreign, unauthenticated};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_stream::StreamExt as _;
use tonic::{Request, Status, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

/// The token that each server requires.
const TOKEN: &str = "a secret of some length";

/// Serves on a free port. The first `broken` connections lead to servers that refuse all calls
/// after their first one, and each other connection to a good one. Returns the address and the
/// number of connections.
async fn serve_balanced(broken: usize, refusal: Status) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let is_broken = counted.fetch_add(1, Ordering::Relaxed) < broken;
            let (refusal, calls) = (refusal.clone(), Arc::new(AtomicUsize::new(0)));
            let intercept = move |request: Request<()>| -> Result<Request<()>, Status> {
                let bearer = request.metadata().get("authorization");
                assert_eq!(bearer.unwrap(), format!("Bearer {TOKEN}").as_str());
                let is_later = calls.fetch_add(1, Ordering::Relaxed) > 0;
                match is_broken && is_later {
                    true => Err(refusal.clone()),
                    false => Ok(request),
                }
            };
            let connection = tokio_stream::once(Ok::<_, io::Error>(stream));
            tokio::spawn(
                tonic::transport::Server::builder()
                    .add_service(EnvServer::with_interceptor(Echo, intercept))
                    .serve_with_incoming(connection.chain(tokio_stream::pending())),
            );
        }
    });
    (address, connections)
}

/// Dials with the token. The folder has its file.
fn dial(address: &str) -> (TempDir, Transport) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, TOKEN).unwrap();
    let credentials = Credentials {
        bearer_token_file: Some(path),
        ..Credentials::default()
    };
    let transport = Transport::dial_with(address, &credentials).unwrap();
    (folder, transport)
}

#[tokio::test]
async fn a_server_that_cannot_serve_is_left_though_others_have_the_same_address() {
    for refusal in [
        Status::internal("no database"),
        Status::unavailable("no database"),
        foreign(),
        Status::unauthenticated("log in"),
    ] {
        let code = refusal.code();
        let (address, connections) = serve_balanced(1, refusal).await;
        let mut client = EnvClient::new(dial(&address).1);
        client.reset(ResetRequest::default()).await.unwrap();
        let status = client.reset(ResetRequest::default()).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        for _ in 0..2 {
            client.reset(ResetRequest::default()).await.unwrap();
        }
        assert_eq!(connections.load(Ordering::Relaxed), 2, "{code:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_full_or_refuses_a_call_is_not_left() {
    for refusal in [
        Status::resource_exhausted("too many calls"),
        unauthenticated("TOKEN_FORGED"),
    ] {
        let code = refusal.code();
        let (address, connections) = serve_balanced(1, refusal).await;
        let mut client = EnvClient::new(dial(&address).1);
        client.reset(ResetRequest::default()).await.unwrap();
        for _ in 0..2 {
            let status = client.step(StepRequest::default()).await.unwrap_err();
            assert_eq!(status.code(), code, "{status}");
        }
        assert_eq!(connections.load(Ordering::Relaxed), 1, "{code:?}");
    }
}

/// A learner streams weights for as long as a run lasts.
#[tokio::test]
async fn a_response_that_is_read_when_its_server_is_left_is_read_to_its_end() {
    // More than a server may send before it is read.
    const BYTES: usize = 32 << 20;
    let (address, connections) = serve_balanced(1, Status::internal("no database")).await;
    let (_files, transport) = dial(&address);
    let mut grpc = Grpc::new(transport.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    grpc.ready().await.unwrap();
    let request = Request::new(ListQuestionsRequest {
        page_size: BYTES as u32,
        ..ListQuestionsRequest::default()
    });
    let path = PathAndQuery::from_static("/sqlenv.v1.Env/ListQuestions");
    let codec = ProstCodec::<ListQuestionsRequest, ListQuestionsResponse>::default();
    let response = grpc.server_streaming(request, path, codec).await.unwrap();

    let mut client = EnvClient::new(transport);
    client.reset(ResetRequest::default()).await.unwrap_err();
    client.reset(ResetRequest::default()).await.unwrap();
    assert_eq!(connections.load(Ordering::Relaxed), 2);
    let page = response.into_inner().message().await.unwrap().unwrap();
    assert_eq!(page.questions[0].question_text.len(), BYTES);
}

#[tokio::test]
async fn a_server_is_left_with_the_credentials_that_cannot_be_read_again() {
    let (address, connections) = serve_balanced(1, Status::internal("no database")).await;
    let (files, transport) = dial(&address);
    drop(files);
    let mut client = EnvClient::new(transport);
    client.reset(ResetRequest::default()).await.unwrap();
    client.reset(ResetRequest::default()).await.unwrap_err();
    client.reset(ResetRequest::default()).await.unwrap();
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}

/// Clients of a service that is broken must not add connections to its troubles.
#[tokio::test]
async fn broken_servers_get_few_connections() {
    let (address, connections) = serve_balanced(usize::MAX, Status::internal("no database")).await;
    let mut client = EnvClient::new(dial(&address).1);
    for _ in 0..10 {
        let _ = client.reset(ResetRequest::default()).await;
    }
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}
