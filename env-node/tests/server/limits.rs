//! Tests deadlines, and calls, bodies and connections beyond the limits.

use std::time::Duration;

use env::{EnvSettings, SqlLimits};
use env_node::{EnvNodeSettings, OpenEnvConfig, ServerConfig};
use prost::Message as _;
use proto::{
    EnvClient, Transport,
    v1::{InfoRequest, ResetRequest},
};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::connect_async;
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;

use crate::{ENDLESS, Served, common::step_request, process::Process, raw};

/// Returns settings under which queries may run for long.
fn patient() -> EnvSettings {
    EnvSettings {
        sql: SqlLimits {
            work_units: 1 << 40,
            wall_clock_seconds: 1.0,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    }
}

#[tokio::test]
async fn a_passed_deadline_is_deadline_exceeded_on_both_sides() {
    let served = Served::start(patient()).await;
    let token = served.fixture.reset("cars-1", "").await.token;
    let step = step_request(&token, "QUERY", ENDLESS);

    // The client's clock.
    let mut request = Request::new(step.clone());
    request.set_timeout(Duration::from_millis(100));
    let status = served.client().step(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");

    // The server's clock, for a client that enforces no deadline.
    let head = [
        "POST /sqlenv.v1.Env/Step HTTP/1.1",
        "content-type: application/grpc-web",
        "grpc-timeout: 100m",
    ];
    let body = raw::grpc_frame(&step.encode_to_vec());
    let response = raw::request(served.address, &head, &body).await;
    assert_eq!(
        response.header("grpc-status"),
        Some("4"),
        "{}",
        response.head
    );

    // The same token still works.
    let easy = step_request(&token, "QUERY", "SELECT count(*) FROM Cars");
    let reply = served.client().step(easy).await.unwrap().into_inner();
    assert_eq!(reply.observation.unwrap().result, "1. 40");
}

#[tokio::test]
async fn no_call_exceeds_the_limit_of_the_node() {
    let mut env = patient();
    (env.sql_threads, env.sql.wall_clock_seconds) = (1, 0.4);
    let env_node = EnvNodeSettings {
        server: ServerConfig {
            max_call_seconds: 0.9,
            ..ServerConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    let served = Served::start_with(env, env_node).await;
    let token = served.fixture.reset("cars-1", "").await.token;
    served.fixture.occupy_sql(4).await;
    let mut request = Request::new(step_request(&token, "QUERY", ENDLESS));
    request.set_timeout(Duration::from_secs(60));
    let status = served.client().step(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(
        status.get_details_error_info().unwrap().reason,
        "DEADLINE_EXCEEDED"
    );

    // A body that never arrives has the same limit, over gRPC and HTTP.
    for (path, kind, part) in [
        (
            "/sqlenv.v1.Env/Step",
            "application/grpc-web",
            "grpc-status: 4",
        ),
        ("/mcp", "application/json", "HTTP/1.1 408"),
        ("/reset", "application/json", "did not end within"),
    ] {
        let mut stream = raw::connect(served.address).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: node\r\ncontent-type: {kind}\r\ncontent-length: 9\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let response = raw::read_to_end(&mut stream).await;
        let response = String::from_utf8_lossy(&response).into_owned();
        assert!(response.contains(part), "{response}");
    }
}

#[tokio::test]
async fn calls_beyond_the_limit_are_refused_and_health_still_answers() {
    let served = Served::with(ServerConfig {
        max_calls_in_flight: 1,
        ..ServerConfig::default()
    })
    .await;
    // An open socket holds no permit.
    let url = format!("ws://{}/ws", served.address);
    let (_socket, _) = connect_async(&url).await.unwrap();
    // A call whose body does not arrive holds the one permit.
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

    let get = async |path: &str| {
        let line = format!("GET {path} HTTP/1.1");
        raw::request(served.address, &[&line], b"").await
    };
    let response = get("/schema").await;
    assert_eq!(response.status, 503);
    assert_eq!(response.header("retry-after"), Some("1"));
    let detail = response.json()["detail"].to_string();
    assert!(detail.contains("too many calls in flight"), "{detail}");
    assert_eq!(get("/health").await.status, 200);

    drop(holder);
    while client.info(InfoRequest {}).await.is_err() {}
    while get("/schema").await.status != 200 {}
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_a_permit_is_returned() {
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

/// One request holds most of the budget. A body beyond the rest is refused over gRPC and HTTP, and
/// one within the rest is served.
#[tokio::test]
async fn bodies_beyond_the_budget_are_refused() {
    const BUDGET: usize = 1 << 20;
    let env = EnvSettings {
        argument_bytes: BUDGET / 2,
        ..EnvSettings::default()
    };
    let env_node = EnvNodeSettings {
        server: ServerConfig {
            max_request_bytes: BUDGET,
            max_body_bytes_in_flight: BUDGET,
            ..ServerConfig::default()
        },
        openenv: OpenEnvConfig {
            message_bytes: BUDGET,
            ..OpenEnvConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    let served = Served::start_with(env, env_node).await;
    let begin = async |length: usize, sent: usize| {
        let mut stream = raw::connect(served.address).await;
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: node\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server may refuse before everything is sent.
        let _ = stream.write_all(&vec![b' '; sent]).await;
        stream
    };
    let holder = begin(BUDGET, BUDGET - 100_000).await;
    let refused = async || {
        let mut stream = begin(120_000, 120_000).await;
        let response = raw::read_to_end(&mut stream).await;
        response.starts_with(b"HTTP/1.1 503")
    };
    while !refused().await {}

    let mut client = served.client();
    let long = step_request(&vec![0; 120_000], "QUERY", "SELECT 1");
    let status = client.step(long.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    served.assert_well().await;

    drop(holder);
    while refused().await {}
    let status = client.step(long).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "no token: {status}");
}

/// A watch would hold memory until its peer ends it, and no balancer needs one.
#[tokio::test]
async fn a_watch_of_health_is_refused() {
    let served = Served::with(ServerConfig::default()).await;
    let mut client = HealthClient::new(served.transport());
    let watch = client.watch(HealthCheckRequest::default()).await;
    assert_eq!(watch.unwrap_err().code(), Code::Unimplemented);
}

/// Connections take all the files that the process may open. Its databases can be opened again
/// afterwards.
#[tokio::test]
async fn running_out_of_files_is_transient() {
    const FILES: u32 = 64;
    let node = Process::with_files(FILES);
    let mut client = EnvClient::new(Transport::dial(&node.url()).unwrap());
    let token = client.reset(ResetRequest::default()).await;
    let token = token.unwrap().into_inner().token;
    let mut connections = Vec::new();
    for _ in 0..FILES {
        connections.push(raw::connect(node.address.parse().unwrap()).await);
    }
    // Each query may run on a thread that has not opened the database yet.
    let mut step = async || {
        let step = step_request(&token, "QUERY", "SELECT count(*) FROM Cars");
        client.step(step).await
    };
    let status = step().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    for hint in ["ulimit -n", "lower connections_per_thread"] {
        assert!(status.message().contains(hint), "{status}");
    }
    drop(connections);
    while let Err(status) = step().await {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    }
}
