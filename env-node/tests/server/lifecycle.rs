//! Tests the graceful shutdown of connections and nodes.

use std::time::Duration;

use env::{EnvSettings, SqlLimits};
use env_node::{EnvNodeSettings, ServerConfig};
use futures::{SinkExt, StreamExt};
use proto::{EnvClient, Transport, v1::InfoRequest};
use tokio::{io::AsyncWriteExt, time::timeout};
use tokio_tungstenite::{
    connect_async,
    tungstenite::{Message, protocol::frame::coding::CloseCode},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_types::StatusExt;

use crate::{
    ENDLESS, Served,
    common::{
        http2::{GO_AWAY, HELLO, PATIENCE},
        step_request,
    },
    raw,
};

#[tokio::test]
async fn a_draining_node_says_so_and_still_serves() {
    let mut served = Served::with(ServerConfig {
        drain_seconds: 2.0,
        ..ServerConfig::default()
    })
    .await;
    let health = async |served: &Served| {
        let mut client = HealthClient::new(served.transport());
        let reply = client.check(HealthCheckRequest::default()).await;
        reply.map(|reply| reply.into_inner().status())
    };
    assert_eq!(health(&served).await.unwrap(), ServingStatus::Serving);
    served.tell_to_stop();
    while health(&served).await.unwrap() != ServingStatus::NotServing {}
    // Open connections and new ones.
    served.assert_well().await;
    let ended = timeout(PATIENCE, &mut served.server).await;
    ended.unwrap().unwrap();
    served.client().info(InfoRequest {}).await.unwrap_err();
}

/// Serves a node on which an endless query runs longer than the node drains.
async fn with_long_queries() -> Served {
    let env = EnvSettings {
        sql: SqlLimits {
            // Some two seconds.
            work_units: 200_000_000,
            wall_clock_seconds: 60.0,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    };
    let env_node = EnvNodeSettings {
        server: ServerConfig {
            // Time for the query to arrive.
            drain_seconds: 1.0,
            max_call_seconds: 150.0,
            connection_grace_seconds: 60.0,
            ..ServerConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    Served::start_with(env, env_node).await
}

#[tokio::test]
async fn a_call_in_flight_ends_before_the_node_does() {
    let mut served = with_long_queries().await;
    let token = served.fixture.reset("cars-1", "").await.token;
    let mut client = served.client();
    client.info(InfoRequest {}).await.unwrap();
    served.tell_to_stop();
    let reply = client.step(step_request(&token, "QUERY", ENDLESS)).await;
    let observation = reply.unwrap().into_inner().observation.unwrap();
    assert!(observation.error.contains("units of work"));
    let ended = timeout(PATIENCE, served.server).await;
    ended.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_that_does_not_end_is_cut_after_the_grace_period() {
    let mut served = Served::with(ServerConfig {
        connection_grace_seconds: 0.2,
        ..ServerConfig::default()
    })
    .await;
    let mut holder = raw::connect(served.address).await;
    let head = "POST /sqlenv.v1.Env/Info HTTP/1.1\r\nhost: node\r\ncontent-type: application/grpc-web\r\ncontent-length: 5\r\n\r\n";
    holder.write_all(head.as_bytes()).await.unwrap();
    served.client().info(InfoRequest {}).await.unwrap();
    served.tell_to_stop();
    timeout(PATIENCE, served.server).await.unwrap().unwrap();
    raw::read_to_end(&mut holder).await;
}

#[tokio::test]
async fn an_old_connection_is_replaced_and_no_call_is_lost() {
    let served = Served::with(ServerConfig {
        max_connection_age_seconds: 0.2,
        ..ServerConfig::default()
    })
    .await;
    let mut stream = raw::connect(served.address).await;
    stream.write_all(HELLO).await.unwrap();
    let go_away = raw::frame_of(&mut stream, GO_AWAY).await;
    assert_eq!(go_away[4..8], [0, 0, 0, 0], "no error");

    // Calls for a second over connections that each live for a fifth of it.
    let list = format!("{0},{0}", served.url());
    let client = EnvClient::new(Transport::dial(&list).unwrap());
    let calls = (0..8).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move {
            for _ in 0..200 {
                client.info(InfoRequest {}).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

/// A connection that reached its age lets its calls take as long as any call may.
#[tokio::test]
async fn a_call_on_an_old_connection_has_its_time() {
    let env = EnvSettings {
        sql: SqlLimits {
            work_units: 1 << 40,
            wall_clock_seconds: 1.0,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    };
    let env_node = EnvNodeSettings {
        server: ServerConfig {
            max_connection_age_seconds: 0.2,
            connection_grace_seconds: 0.1,
            ..ServerConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    let served = Served::start_with(env, env_node).await;
    let token = served.fixture.reset("cars-1", "").await.token;
    let step = step_request(&token, "QUERY", ENDLESS);
    let status = served.client().step(step).await.unwrap_err();
    let details = status.get_details_error_info().unwrap();
    assert_eq!(details.reason, "WALL_CLOCK", "{status}");
}

/// A step in flight is answered. Then the socket closes with "going away", and the server ends at
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_is_closed_when_the_server_stops() {
    let mut served = with_long_queries().await;
    let url = format!("ws://{}/ws", served.address);
    let (mut busy, _) = connect_async(&url).await.unwrap();
    let (mut quiet, _) = connect_async(&url).await.unwrap();
    let watched = format!("ws://{}/ws/ui", served.address);
    let (mut watcher, _) = connect_async(&watched).await.unwrap();
    watcher.next().await.unwrap().unwrap();
    let mut say = async |text: &str| {
        busy.send(Message::text(text)).await.unwrap();
    };
    say(r#"{"type": "reset", "data": {"question_id": "cars-1"}}"#).await;
    let step = format!(
        r#"{{"type": "step", "data": {{"action_type": "QUERY", "argument": "{ENDLESS}"}}}}"#
    );
    say(&step).await;
    let mut next = async || busy.next().await.unwrap().unwrap();
    assert!(next().await.to_string().contains("observation"));
    served.tell_to_stop();
    assert!(next().await.to_string().contains("units of work"));
    let quiet_end = quiet.next().await.unwrap().unwrap();
    let watcher_end = watcher.next().await.unwrap().unwrap();
    for end in [next().await, quiet_end, watcher_end] {
        let Message::Close(Some(end)) = end else {
            panic!("{end:?}");
        };
        assert_eq!(end.code, CloseCode::Away);
    }
    drop((busy, quiet, watcher));
    served.server.await.unwrap();
}
