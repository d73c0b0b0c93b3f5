//! A list of addresses: which calls go to the next server, and which end at the first.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

#[path = "support/servers.rs"]
mod servers;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use proto::{
    EnvClient, Transport,
    v1::{InfoRequest, ResetRequest, StepRequest},
};
use servers::{foreign, nobody, serve, serve_counted, serve_full, server, unauthenticated};
use tokio::{net::TcpListener, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Code, Request, Status,
    body::Body,
    codegen::http::{self, StatusCode},
};
use tonic_types::{ErrorDetails, StatusExt as _};
use tower::util::MapResponseLayer;

#[tokio::test]
async fn a_list_of_dead_servers_is_unavailable() {
    let list = format!("{},{}", nobody().await, nobody().await);
    let mut client = EnvClient::new(Transport::dial(&list).unwrap());
    let status = client.reset(ResetRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
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
        unauthenticated("BEARER_TOKEN_REFUSED"),
        // A proxy gives no reason.
        Status::unauthenticated("log in"),
        Status::permission_denied("not from here"),
    ] {
        let code = refusal.code();
        let (broken, calls) = serve_counted(Some(refusal)).await;
        check_is_left(&broken, &calls, code).await;
    }
}

/// A forged token is not tried at each server.
#[tokio::test]
async fn a_refused_episode_token_goes_to_no_other_server() {
    let (first, calls) = serve_counted(Some(unauthenticated("TOKEN_FORGED"))).await;
    let (other, more_calls) = serve_counted(None).await;
    let mut client = EnvClient::new(Transport::dial(&format!("{first},{other}")).unwrap());
    let status = client.step(StepRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    let made = [calls, more_calls].map(|calls| calls.load(Ordering::Relaxed));
    assert_eq!(made, [1, 0]);
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
