//! The server over a real port: episodes, health, reflection, overload, shutdown.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Fixture, rewards, step_request};
use env_node::{EnvConfig, SqlLimits};
use proto::{EnvClient, Transport, v1::ResetRequest};
use tokio::{net::TcpListener, sync::oneshot};
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

#[tokio::test]
async fn serves_and_stops() {
    let fixture = Fixture::new(EnvConfig::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(env_node::serve(listener, fixture.node.clone(), async {
        let _ = stopped.await;
    }));
    let transport = Transport::dial(&address).unwrap();

    let over_tcp = Fixture {
        client: EnvClient::new(transport.clone()),
        folder: fixture.folder,
        node: fixture.node,
    };
    let actions = [
        ("DESCRIBE", "Cars"),
        ("QUERY", "SELECT count(*) FROM Cars"),
        ("ANSWER", "40"),
    ];
    let replies = over_tcp.play("cars-1", "sqlenv-final", &actions).await;
    assert_eq!(rewards(&replies), [0.0, 0.15, 1.0]);

    let health = HealthClient::new(transport.clone())
        .check(HealthCheckRequest {
            service: "sqlenv.v1.Env".to_owned(),
        })
        .await
        .unwrap();
    assert_eq!(health.into_inner().status(), ServingStatus::Serving);

    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut services = ServerReflectionClient::new(transport)
        .server_reflection_info(tokio_stream::once(list))
        .await
        .unwrap()
        .into_inner();
    let message = services.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(listed)) = message.message_response else {
        panic!("{message:?}");
    };
    assert!(
        listed
            .service
            .iter()
            .any(|service| service.name == "sqlenv.v1.Env")
    );
    drop(services);

    stop.send(()).unwrap();
    drop(over_tcp);
    server.await.unwrap().unwrap();
}

/// One thread, one place in the queue, and queries that run until their budget ends: most of many are refused, at once.
#[tokio::test]
async fn overload_is_refused_and_the_refused_step_can_be_retried() {
    let fixture = Fixture::new(EnvConfig {
        sql_threads: 1,
        sql_queue: 1,
        sql: SqlLimits {
            work_units: 2_000_000,
            ..SqlLimits::default()
        },
        ..EnvConfig::default()
    });
    let slow = "SELECT count(*) FROM Cars a, Cars b, Cars c, Cars d, Cars e";
    let token = fixture.reset("cars-1", "").await.token;
    let calls = (0..8).map(|_| {
        let mut client = fixture.client.clone();
        let request = step_request(&token, "QUERY", slow);
        tokio::spawn(async move { client.step(request).await })
    });
    let calls: Vec<_> = calls.collect();
    let mut refused = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(reply) => assert!(
                reply
                    .into_inner()
                    .observation
                    .unwrap()
                    .error
                    .contains("units of work")
            ),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                refused += 1;
            }
        }
    }
    assert!((5..8).contains(&refused), "{refused}");
    let again = fixture
        .step(&token, "QUERY", "SELECT count(*) FROM Cars")
        .await;
    assert_eq!(again.observation.unwrap().result, "1. 40");
}

#[tokio::test]
async fn thousands_of_episodes_at_once_do_not_mix() {
    let fixture = Fixture::new(EnvConfig::default());
    let mut client = fixture.client.clone();
    let episodes = (1..=1_000_u32).map(|number| {
        let mut client = fixture.client.clone();
        tokio::spawn(async move {
            let reset = ResetRequest {
                question_id: "cars-1".to_owned(),
                episode_id: number.to_string(),
                ..ResetRequest::default()
            };
            let token = client.reset(reset).await.unwrap().into_inner().token;
            let sql = format!("SELECT {number}, count(*) FROM Cars WHERE Id <= {number}");
            let reply = client
                .step(step_request(&token, "QUERY", &sql))
                .await
                .unwrap()
                .into_inner();
            assert_eq!(
                reply.observation.unwrap().result,
                format!("1. {number} | {}", number.min(40))
            );
        })
    });
    for episode in episodes.collect::<Vec<_>>() {
        episode.await.unwrap();
    }
    client.info(proto::v1::InfoRequest {}).await.unwrap();
}
