//! Deadlines, calls and connections beyond the limits.

use std::time::Duration;

use env_node::{EnvConfig, ServerConfig, SqlLimits};
use proto::v1::InfoRequest;
use tokio::io::AsyncWriteExt;
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;

use crate::{ENDLESS, Served, common::step_request, raw};

/// Queries may run for long.
fn patient() -> EnvConfig {
    EnvConfig {
        sql: SqlLimits {
            vm_steps: 1 << 40,
            wall_clock_seconds: 1.0,
            ..SqlLimits::default()
        },
        ..EnvConfig::default()
    }
}

#[tokio::test]
async fn a_passed_deadline_is_deadline_exceeded_on_both_sides() {
    let served = Served::start(patient()).await;
    let token = served.fixture.reset("cars-1", "").await.token;
    let step = step_request(&token, "QUERY", ENDLESS);

    // The client's own clock.
    let mut request = Request::new(step.clone());
    request.set_timeout(Duration::from_millis(100));
    let status = served.client().step(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");

    // The server's, for a client that has none.
    let head = [
        "POST /sqlenv.v1.Env/Step HTTP/1.1",
        "content-type: application/grpc-web",
        "grpc-timeout: 100m",
    ];
    let answer = raw::request(served.address, &head, &raw::grpc_frame(&step)).await;
    assert_eq!(answer.header("grpc-status"), Some("4"), "{}", answer.head);

    // The same step from the same token, for a caller who has time.
    let easy = step_request(&token, "QUERY", "SELECT count(*) FROM Cars");
    let reply = served.client().step(easy).await.unwrap().into_inner();
    assert_eq!(reply.observation.unwrap().result, "1. 40");
}

#[tokio::test]
async fn no_call_outlasts_the_nodes_own_limit() {
    let served = Served::start(EnvConfig {
        server: ServerConfig {
            max_call_seconds: 0.2,
            ..ServerConfig::default()
        },
        ..patient()
    })
    .await;
    let token = served.fixture.reset("cars-1", "").await.token;
    let mut request = Request::new(step_request(&token, "QUERY", ENDLESS));
    request.set_timeout(Duration::from_secs(60));
    let status = served.client().step(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(
        status.get_details_error_info().unwrap().reason,
        "DEADLINE_EXCEEDED"
    );

    // A body that never comes is bounded alike, on either face.
    for (path, kind, status) in [
        (
            "/sqlenv.v1.Env/Step",
            "application/grpc-web",
            "grpc-status: 4",
        ),
        ("/sqlenv.v1.Env/Step", "text/plain", "HTTP/1.1 415"),
    ] {
        let mut stream = raw::connect(served.address).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: node\r\ncontent-type: {kind}\r\ncontent-length: 9\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = raw::read_to_end(&mut stream).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains(status), "{answer}");
    }
}

#[tokio::test]
async fn calls_beyond_the_limit_are_refused_and_health_still_answers() {
    let served = Served::with(ServerConfig {
        max_calls_in_flight: 1,
        ..ServerConfig::default()
    })
    .await;
    // Holds the one place: a call whose body does not come.
    let mut holder = raw::connect(served.address).await;
    let head = "POST /sqlenv.v1.Env/Info HTTP/1.1\r\nhost: node\r\ncontent-type: application/grpc-web\r\ncontent-length: 5\r\n\r\n";
    holder.write_all(head.as_bytes()).await.unwrap();

    let mut client = served.client();
    let status = loop {
        if let Err(status) = client.info(InfoRequest {}).await {
            break status;
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert_eq!(
        status.get_details_error_info().unwrap().reason,
        "OVERLOADED"
    );
    let retry = status.get_details_retry_info().unwrap();
    assert!(
        retry
            .retry_delay
            .is_some_and(|pause| pause > Duration::ZERO)
    );
    HealthClient::new(served.transport())
        .check(HealthCheckRequest::default())
        .await
        .unwrap();

    drop(holder);
    while client.info(InfoRequest {}).await.is_err() {}
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_a_place_is_given_back() {
    let served = Served::with(ServerConfig {
        max_connections: 2,
        ..ServerConfig::default()
    })
    .await;
    let (first, _second) = (
        raw::connect(served.address).await,
        raw::connect(served.address).await,
    );
    let mut third = raw::connect(served.address).await;
    assert_eq!(raw::read_to_end(&mut third).await, b"");
    drop(first);
    let mut client = served.client();
    while client.info(InfoRequest {}).await.is_err() {}
}
