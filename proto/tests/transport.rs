//! One client type and three transports: responses, status codes and size limits are the same in
//! process, over TCP and with a list of addresses.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

use std::{
    io::{self, Seek as _},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use proto::{
    EnvClient, MAX_MESSAGE_BYTES, Transport, env_client,
    v1::{
        InfoRequest, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, Question,
        ReplayRequest, ReplayResponse, ResetRequest, ResetResponse, StepRequest, StepResponse,
        env_server::{Env, EnvServer},
    },
};
use tokio::{net::TcpListener, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    codegen::http::{self, StatusCode},
};
use tonic_types::{ErrorDetails, StatusExt as _};
use tower::util::MapResponseLayer;

/// Returns the question id as the token, refuses steps, lists one long question, whose bytes the
/// page size gives, and is slow to answer `Info`.
#[derive(Clone)]
struct Echo;

/// Bytes of the question, which are more than tonic reads by default.
const LONG: usize = 5 << 20;

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

fn server() -> EnvServer<Echo> {
    EnvServer::new(Echo).max_decoding_message_size(1 << 10)
}

/// Serves on a free port and returns the address.
async fn serve() -> String {
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
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Returns a transport within the process, one over TCP, and one over two addresses of which the
/// first refuses connections.
async fn all() -> [Transport; 3] {
    let address = serve().await;
    let list = format!("{},{}", nobody().await, address);
    [
        Transport::in_process(server()),
        Transport::dial(&address).unwrap(),
        Transport::dial(&list).unwrap(),
    ]
}

#[tokio::test]
async fn responses_are_the_same() {
    for transport in all().await {
        let request = ResetRequest {
            question_id: "shop_train_0001".into(),
            ..ResetRequest::default()
        };
        let reply = EnvClient::new(transport).reset(request).await.unwrap();
        assert_eq!(reply.into_inner().token, b"shop_train_0001");
    }
}

#[tokio::test]
async fn refusals_are_the_same() {
    for transport in all().await {
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
async fn size_limits_are_the_same() {
    for transport in all().await {
        let request = ResetRequest {
            question_id: "x".repeat(2 << 10),
            ..ResetRequest::default()
        };
        let status = EnvClient::new(transport).reset(request).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange);
    }
}

#[tokio::test]
async fn a_long_page_of_questions_is_read() {
    for transport in all().await {
        let request = ListQuestionsRequest::default();
        let page = env_client(transport).list_questions(request).await.unwrap();
        assert_eq!(page.into_inner().questions[0].question_text.len(), LONG);
    }
}

/// The text of the question alone is as long as a message may be.
#[tokio::test]
async fn a_response_that_is_too_long_is_refused_and_no_other_server_is_asked() {
    let request = ListQuestionsRequest {
        page_size: MAX_MESSAGE_BYTES as u32,
        ..ListQuestionsRequest::default()
    };
    for transport in all().await {
        let mut client = env_client(transport);
        let status = client.list_questions(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
    }
    let (one, calls) = serve_counted(None).await;
    let (other, more_calls) = serve_counted(None).await;
    let mut client = env_client(Transport::dial(&format!("{one},{other}")).unwrap());
    let status = client.list_questions(request).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let made = [calls, more_calls].map(|calls| calls.load(Ordering::Relaxed));
    assert_eq!(made, [1, 0]);
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

#[tokio::test]
async fn a_list_of_dead_servers_is_unavailable() {
    let list = format!("{},{}", nobody().await, nobody().await);
    let mut client = EnvClient::new(Transport::dial(&list).unwrap());
    let status = client.reset(ResetRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

/// Serves on a free port, or refuses each call by a status. Returns the address and the number of
/// calls.
async fn serve_counted(refusal: Option<Status>) -> (String, Arc<AtomicUsize>) {
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

/// Serves on a free port behind a proxy that answers each call itself, by HTTP alone. Returns the
/// address and the number of calls.
async fn serve_proxy(answer: StatusCode) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let replace = move |_: http::Response<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let mut response = http::Response::new(Body::empty());
        *response.status_mut() = answer;
        response
    };
    tokio::spawn(
        tonic::transport::Server::builder()
            .layer(MapResponseLayer::new(replace))
            .add_service(server())
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    (address, calls)
}

/// Serves on a free port and refuses each call, because it has too much work.
async fn serve_full() -> (String, Arc<AtomicUsize>) {
    serve_counted(Some(Status::resource_exhausted("too many calls"))).await
}

/// A server that has too much work is not asked again for the same call.
#[tokio::test]
async fn a_call_that_a_full_server_refuses_goes_to_the_next() {
    let ((full, calls), other) = (serve_full().await, serve().await);
    let list = format!("{full},{other}");
    let mut client = EnvClient::new(Transport::dial(&list).unwrap());
    client.reset(ResetRequest::default()).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    drop(client);

    let (full_too, more_calls) = serve_full().await;
    let list = format!("{full},{full_too}");
    let mut client = EnvClient::new(Transport::dial(&list).unwrap());
    let status = client.reset(ResetRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let made = || [&calls, &more_calls].map(|calls| calls.load(Ordering::Relaxed));
    assert_eq!(made(), [2, 1]);

    // A server that is away is asked once more, as its connection may just have been closed.
    let list = format!("{full},{}", nobody().await);
    let mut client = EnvClient::new(Transport::dial(&list).unwrap());
    let status = client.reset(ResetRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(made(), [3, 1]);
}

#[tokio::test]
async fn a_passed_deadline_differs_from_a_lost_server() {
    let address = serve().await;
    let list = format!("{address},{address}");
    for addresses in [&address, &list] {
        let mut client = EnvClient::new(Transport::dial(addresses).unwrap());
        let mut request = Request::new(InfoRequest {});
        request.set_timeout(Duration::from_millis(50));
        let status = client.info(request).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    }
}

/// A server that takes a call and does not respond is left by the calls that follow, whether its
/// caller gives up or has a deadline.
#[tokio::test]
async fn a_server_that_does_not_respond_is_not_asked_again() {
    for has_deadline in [false, true] {
        let (silent, silent_calls) = serve_counted(None).await;
        let (other, calls) = serve_counted(None).await;
        let list = format!("{silent},{other}");
        let mut client = EnvClient::new(Transport::dial(&list).unwrap());
        client.reset(ResetRequest::default()).await.unwrap();

        // Info takes 20 s. A call that is given up within a second does not count.
        let limit = Duration::from_millis(if has_deadline { 300 } else { 1_200 });
        let mut request = Request::new(InfoRequest {});
        if has_deadline {
            request.set_timeout(limit);
            let status = client.info(request).await.unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        } else {
            timeout(limit, client.info(request)).await.unwrap_err();
        }
        client.reset(ResetRequest::default()).await.unwrap();
        let made = [silent_calls, calls].map(|calls| calls.load(Ordering::Relaxed));
        assert_eq!(made[1], 1, "{made:?}");
    }
}

fn foreign() -> Status {
    let details = ErrorDetails::with_error_info("FOREIGN_ENVIRONMENT", "sqlenv", []);
    Status::with_error_details(Code::FailedPrecondition, "has changed", details)
}

/// As an env-node refuses the bearer token of a caller.
fn refused() -> Status {
    let details = ErrorDetails::with_error_info("BEARER_TOKEN_REFUSED", "sqlenv", []);
    Status::with_error_details(Code::Unauthenticated, "send the token", details)
}

/// Checks that calls leave a server for the next one. If that is no better, they end by its code.
async fn check_is_left(broken: &str, calls: &AtomicUsize, code: Code) {
    let list = format!("{broken},{}", serve().await);
    let mut client = EnvClient::new(Transport::dial(&list).unwrap());
    for _ in 0..2 {
        client.reset(ResetRequest::default()).await.unwrap();
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1, "{code:?}");

    let list = format!("{broken},{broken}");
    let mut client = EnvClient::new(Transport::dial(&list).unwrap());
    let status = client.reset(ResetRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
}

#[tokio::test]
async fn a_call_that_one_server_cannot_serve_goes_to_the_next() {
    for refusal in [
        Status::internal("no database"),
        foreign(),
        refused(),
        Status::permission_denied("not from here"),
    ] {
        let code = refusal.code();
        let (broken, calls) = serve_counted(Some(refusal)).await;
        check_is_left(&broken, &calls, code).await;
    }
}

/// A proxy checks the callers of its server, or does not reach it.
#[tokio::test]
async fn a_call_that_a_proxy_answers_goes_to_the_next_server() {
    for (answer, code) in [
        (StatusCode::UNAUTHORIZED, Code::Unauthenticated),
        (StatusCode::FORBIDDEN, Code::PermissionDenied),
        (StatusCode::NOT_FOUND, Code::Unimplemented),
        (StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
    ] {
        let (proxy, calls) = serve_proxy(answer).await;
        check_is_left(&proxy, &calls, code).await;
    }
}

/// The other server may serve a retry. However many calls the first one refuses, they are worth one
/// line.
#[tokio::test]
async fn a_server_of_another_environment_ends_no_call_while_another_is_away_or_full() {
    let mut log = tempfile::tempfile().unwrap();
    let logging = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(log.try_clone().unwrap())
        .finish();
    let _logging = tracing::subscriber::set_default(logging);
    let (full, _) = serve_full().await;
    for (other, expected) in [
        (nobody().await, Code::Unavailable),
        (full, Code::ResourceExhausted),
    ] {
        let (changed, calls) = serve_counted(Some(foreign())).await;
        for list in [format!("{changed},{other}"), format!("{other},{changed}")] {
            calls.store(0, Ordering::Relaxed);
            let mut client = EnvClient::new(Transport::dial(&list).unwrap());
            for _ in 0..2 {
                let status = client.reset(ResetRequest::default()).await.unwrap_err();
                assert_eq!(status.code(), expected, "{status}");
            }
            assert_eq!(calls.load(Ordering::Relaxed), 2);
        }
    }
    log.rewind().unwrap();
    let lines = io::read_to_string(log).unwrap();
    let found = lines.matches("is of no use to this run").count();
    assert_eq!(found, 4, "one for each list: {lines}");
}

/// Only the node on which a query was too slow once answers its retry.
#[tokio::test]
async fn a_slow_query_is_retried_at_its_server() {
    for (reason, expected) in [("WALL_CLOCK", [2, 0]), ("NODE_FAULT", [1, 2])] {
        let details = ErrorDetails::with_error_info(reason, "sqlenv", []);
        let refusal = Status::with_error_details(Code::Unavailable, "slow", details);
        let (slow, slow_calls) = serve_counted(Some(refusal)).await;
        let (other, calls) = serve_counted(None).await;
        let list = format!("{slow},{other}");
        let mut client = EnvClient::new(Transport::dial(&list).unwrap());
        for _ in 0..2 {
            let outcome = client.reset(ResetRequest::default()).await;
            assert_eq!(outcome.is_ok(), reason == "NODE_FAULT", "{outcome:?}");
        }
        let made = [slow_calls, calls].map(|calls| calls.load(Ordering::Relaxed));
        assert_eq!(made, expected, "{reason}");
    }
}
