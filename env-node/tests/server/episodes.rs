//! Tests episodes, health and reflection over a port, and many episodes at once.

use std::time::Duration;

use env::{EnvSettings, SqlLimits};
use env_node::{EnvNodeSettings, ServerConfig};
use proto::v1::{Action, ReplayRequest, ResetRequest, StepRequest};
use tonic::{Code, Request};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1;

use crate::{
    ENDLESS, Served,
    common::{Fixture, step_request},
};

#[tokio::test]
async fn serves_and_stops() {
    let mut served = Served::start(EnvSettings::default()).await;
    served.assert_well().await;
    for service in ["", "sqlenv.v1.Env"] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let health = HealthClient::new(served.transport()).check(request).await;
        let status = health.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service:?}");
    }
    served.tell_to_stop();
    served.server.await.unwrap();
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let served = Served::start(EnvSettings::default()).await;
    let ask = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(
            String::new(),
        )),
    };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(served.transport());
    let asked = client.server_reflection_info(tokio_stream::once(ask)).await;
    let reply = asked
        .unwrap()
        .into_inner()
        .message()
        .await
        .unwrap()
        .unwrap();
    let listed = format!("{reply:?}");
    for name in ["grpc.health.v1.Health", "sqlenv.v1.Env"] {
        assert!(listed.contains(name), "{listed}");
    }
    assert!(!listed.contains("Learner"), "{listed}");
}

#[tokio::test]
async fn replayed_actions_give_the_results_of_their_steps() {
    let fixture = Fixture::new(EnvSettings::default());
    let mut client = fixture.client.clone();
    let begun = fixture.reset("cars-1", "").await.token;
    let requests = [
        ("DESCRIBE", "Cars"),
        ("QUERY", "SELECT nothing"),
        ("FLY", "away"),
        ("ANSWER", "1"),
        // Behind the end of the episode.
        ("DESCRIBE", "Cars"),
    ];
    let requests = requests.map(|(kind, argument)| step_request(&begun, kind, argument));
    let (mut token, mut expected) = (begun.clone(), Vec::new());
    for request in &requests[..4] {
        let request = StepRequest {
            token,
            ..request.clone()
        };
        let step = client.step(request).await.unwrap().into_inner();
        token = step.token.clone();
        expected.push(step);
    }
    let actions = requests
        .into_iter()
        .filter_map(|request| request.action)
        .collect();
    let known = ReplayRequest {
        token: begun.clone(),
        actions,
    };
    let replayed = client.replay(known.clone()).await.unwrap().into_inner();
    assert_eq!(replayed.steps, expected);

    // The call comes from this process, so nothing ends it at its deadline.
    let mut hurried = Request::new(known.clone());
    hurried.set_timeout(Duration::ZERO);
    let replayed = client.replay(hurried).await.unwrap().into_inner();
    assert_eq!(replayed.steps, expected[..1]);

    let none = ReplayRequest {
        actions: Vec::new(),
        ..known.clone()
    };
    let refused = client.replay(none).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("actions"), "{refused}");
    let many = ReplayRequest {
        actions: vec![Action::default(); 10_001],
        ..known.clone()
    };
    let refused = client.replay(many).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("at most 10000"), "{refused}");
    let forged = ReplayRequest {
        token: b"forged".to_vec(),
        ..known
    };
    let refused = client.replay(forged).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

/// Each result repeats the history, so that many long actions would fill a node's memory.
#[tokio::test]
async fn a_replay_of_long_actions_ends_early() {
    let fixture = Fixture::new(EnvSettings::default());
    let mut client = fixture.client.clone();
    let request = ResetRequest {
        question_id: "cars-1".to_owned(),
        step_budget: 1_000,
        ..ResetRequest::default()
    };
    let begun = client.reset(request).await.unwrap().into_inner().token;
    let action = step_request(&begun, "FLY", &"x".repeat(4_000))
        .action
        .unwrap();
    let actions = vec![action; 900];
    let mut rest = ReplayRequest {
        token: begun,
        actions,
    };
    let mut calls = 0;
    while !rest.actions.is_empty() && calls < 5 {
        let steps = client
            .replay(rest.clone())
            .await
            .unwrap()
            .into_inner()
            .steps;
        assert!((1..100).contains(&steps.len()), "{} results", steps.len());
        rest.token = steps.last().unwrap().token.clone();
        rest.actions.drain(..steps.len());
        calls += 1;
    }
    assert_eq!(calls, 5);
}

/// An action that fails is met by the call that begins with it, and repeated there.
#[tokio::test]
async fn a_replay_ends_before_an_action_that_fails() {
    let fixture = Fixture::new(EnvSettings {
        sql: SqlLimits {
            wall_clock_seconds: 0.05,
            work_units: 1 << 40,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    });
    let mut client = fixture.client.clone();
    let begun = fixture.reset("cars-1", "").await.token;
    let requests = [("DESCRIBE", "Cars"), ("QUERY", ENDLESS), ("ANSWER", "1")];
    let requests = requests.map(|(kind, argument)| step_request(&begun, kind, argument));
    let actions: Vec<_> = requests.into_iter().filter_map(|it| it.action).collect();
    let all = ReplayRequest {
        token: begun,
        actions: actions.clone(),
    };
    let first = client.replay(all).await.unwrap().into_inner().steps;
    assert_eq!(first.len(), 1);
    let rest = ReplayRequest {
        token: first[0].token.clone(),
        actions: actions[1..].to_vec(),
    };
    // The query has failed once from this token. Now its error is an observation.
    let rest = client.replay(rest).await.unwrap().into_inner().steps;
    assert_eq!(rest.len(), 2);
    assert!(!rest[0].observation.as_ref().unwrap().error.is_empty());
    assert!(rest[1].observation.as_ref().unwrap().done);
}

/// Else a node with much work would never respond, and each repetition would wait as long.
#[tokio::test]
async fn a_replay_ends_before_an_action_that_waits_for_long() {
    let env = EnvSettings {
        sql_threads: 1,
        sql: SqlLimits {
            wall_clock_seconds: 0.9,
            work_units: 1 << 40,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    };
    let env_node = EnvNodeSettings {
        server: ServerConfig {
            max_call_seconds: 2.0,
            ..ServerConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    let served = Served::start_with(env, env_node).await;
    let begun = served.fixture.reset("cars-1", "").await.token;
    // Longer than a call may take. These calls come from inside, where it has no limit.
    served.fixture.occupy_sql(3).await;
    let requests = [("DESCRIBE", "Cars"), ("QUERY", ENDLESS)];
    let requests = requests.map(|(kind, argument)| step_request(&begun, kind, argument));
    let actions = requests.into_iter().filter_map(|it| it.action).collect();
    let token = begun.clone();
    let mut client = served.client();
    let replayed = client.replay(ReplayRequest { token, actions });
    assert_eq!(replayed.await.unwrap().into_inner().steps.len(), 1);
}

/// One thread with a queue of one gets queries that run until their budget ends. Most of many are
/// refused at once.
#[tokio::test]
async fn overload_is_refused_and_the_refused_step_can_be_retried() {
    let fixture = Fixture::new(EnvSettings {
        sql_threads: 1,
        sql_queue: 1,
        sql: SqlLimits {
            work_units: 2_000_000,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
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
    let fixture = Fixture::new(EnvSettings::default());
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
