//! Tests OpenEnv's web routes: the environment that all visitors share, and its watchers.

use std::{pin::pin, time::Duration};

use env::{EnvSettings, SqlLimits};
use env_node::{EnvNodeSettings, OpenEnvConfig, ServerConfig};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::{
    connect_async,
    tungstenite::{Message, protocol::frame::coding::CloseCode},
};

use crate::common::{http2::PATIENCE, served::Served};

async fn site() -> Served {
    Served::site(EnvNodeSettings::default()).await
}

#[tokio::test]
async fn visitors_share_one_environment() {
    let site = site().await;
    let metadata = site.get("/web/metadata").await.json();
    assert_eq!(metadata["name"], "sql_env");
    assert_eq!(metadata, site.get("/metadata").await.json());
    for reply in [
        site.get("/web/state").await,
        site.post("/web/step", &json!({"message": "SELECT 1"}))
            .await,
    ] {
        assert_eq!(reply.status, 409);
        assert!(reply.detail().contains("POST /web/reset first"));
    }

    let kwargs = json!({"question_id": "cars-1", "episode_id": "mine", "colour": "red"});
    let start = site.post("/web/reset", &kwargs).await.json();
    assert_eq!(
        (&start["reward"], &start["done"]),
        (&Value::Null, &json!(false))
    );
    assert_eq!(start["observation"]["question"], "How many cars are there?");
    assert!(start["observation"].get("done").is_none());

    let action =
        json!({"action": {"action_type": "QUERY", "argument": "SELECT 7", "metadata": {}}});
    let queried = site.post("/web/step", &action).await.json();
    assert_eq!(queried["observation"]["result"], "1. 7");
    let answered = site
        .post("/web/step", &json!({"message": "answer: 40"}))
        .await
        .json();
    assert_eq!(
        (&answered["reward"], &answered["done"]),
        (&json!(1.0), &json!(true))
    );
    let state = site.get("/web/state").await.json();
    assert_eq!(state, json!({"episode_id": "mine", "step_count": 2}));
}

#[tokio::test]
async fn a_reset_without_arguments_draws_a_question() {
    let site = site().await;
    let bare = site.send("POST /web/reset", &[], "").await;
    let null = site.post("/web/reset", &Value::Null).await;
    let empty = site.post("/web/reset", &json!({})).await;
    for reply in [bare, null, empty] {
        assert_eq!(reply.status, 200, "{}", reply.body());
        assert!(reply.json()["observation"]["question"].is_string());
    }
    let id = site.get("/web/state").await.json()["episode_id"].clone();
    assert_eq!(id.as_str().map(str::len), Some(36), "a UUID: {id}");
}

/// `/web/reset` reads the same arguments as `/reset`.
#[tokio::test]
async fn a_reset_selects_the_question_that_it_names() {
    let site = site().await;
    for (kwargs, question) in [
        (
            r#"{"split": "train", "index": 1}"#,
            "Which countries have makers?",
        ),
        (
            r#"{"database_name": "cars", "index": 2, "split": null}"#,
            "How many cars has each maker?",
        ),
        (
            r#"{"question_id": "cars-1", "seed": "7", "weight": NaN}"#,
            "How many cars are there?",
        ),
    ] {
        let reply = site.post_text("/web/reset", kwargs).await;
        assert_eq!(
            reply.json()["observation"]["question"],
            question,
            "{kwargs}"
        );
    }
    let refused = site
        .post("/web/reset", &json!({"split": 5, "index": -1}))
        .await;
    assert_eq!(refused.status, 422);
    let errors = &refused.json()["detail"];
    assert_eq!(errors[0]["loc"], json!(["body", "split"]));
    assert_eq!(errors[0]["type"], "value_error");
}

#[tokio::test]
async fn bad_requests_leave_the_environment_as_it_was() {
    let site = site().await;
    site.post(
        "/web/reset",
        &json!({"question_id": "cars-1", "episode_id": "kept"}),
    )
    .await;
    let deep = format!(
        r#"{{"action": {}1{}}}"#,
        "[".repeat(9_999),
        "]".repeat(9_999)
    );
    let long = "x".repeat((8 << 20) + 1);
    let openapi = site.get("/openapi.json").await.json();
    for (path, body, status) in [
        ("/web/step", deep.as_str(), 400),
        ("/web/step", long.as_str(), 413),
        ("/web/reset", long.as_str(), 413),
        ("/web/reset", r#"{"reward_profile": "none"}"#, 400),
        ("/web/reset", "nonsense", 422),
        ("/web/reset", r#"{"seed": "x"}"#, 422),
        ("/web/reset", r#"{"question_id": "cars-9"}"#, 404),
        ("/web/reset", r#"{"split": "none"}"#, 404),
        ("/web/reset", r#"{"split": "train", "index": 2}"#, 404),
        ("/web/step", "", 400),
        ("/web/step", "[]", 422),
        ("/web/step", "{}", 422),
        ("/web/step", r#"{"action": []}"#, 422),
        ("/web/step", r#"{"action": {"action_type": "QUERY"}}"#, 422),
        ("/web/step", r#"{"message": 3}"#, 422),
    ] {
        let reply = site.post_text(path, body).await;
        assert_eq!(reply.status, status, "{path} {body:.80}: {}", reply.body());
        assert!(!reply.json()["detail"].is_null());
        let declared = &openapi["paths"][path]["post"]["responses"];
        let status = reply.status.to_string();
        assert!(declared[&status].is_object(), "{path}: {status}");
    }
    let state = site.get("/web/state").await.json();
    assert_eq!(state, json!({"episode_id": "kept", "step_count": 0}));
}

/// A step may take long. Its visitors look at the state meanwhile.
#[tokio::test]
async fn the_state_can_be_read_while_a_step_runs() {
    let env = EnvSettings {
        sql: SqlLimits {
            work_units: 1 << 40,
            wall_clock_seconds: 4.0,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    };
    let site = Served::start_with(env, EnvNodeSettings::default()).await;
    let start = json!({"question_id": "cars-1", "episode_id": "mine"});
    site.post("/web/reset", &start).await;
    let endless = "SELECT count(*) FROM Cars a, Cars b, Cars c, Cars d, Cars e, Cars f";
    let step = json!({"message": endless});
    let state = async {
        // Time for the step to begin.
        sleep(Duration::from_millis(500)).await;
        site.get("/web/state").await.json()
    };
    let mut stepping = pin!(site.post("/web/step", &step));
    let state = tokio::select! {
        biased;
        _ = &mut stepping => panic!("the state waits for the step"),
        state = state => state,
    };
    let step = stepping.await;
    assert_eq!(state, json!({"episode_id": "mine", "step_count": 0}));
    // Its query ran twice: the first time at the limit counts as the fault of a busy machine.
    assert_eq!(step.status, 200, "{}", step.body());
}

#[tokio::test]
async fn watchers_see_each_state() {
    let site = site().await;
    let address = format!("ws://{}/ws/ui", site.address);
    let (mut watcher, _) = connect_async(&address).await.unwrap();
    let mut next = async || loop {
        if let Message::Text(text) = watcher.next().await.unwrap().unwrap() {
            let update: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(update["type"], "state_update");
            break update["episode_state"].clone();
        }
    };
    let first = next().await;
    assert_eq!(first["current_observation"], Value::Null);
    assert_eq!(first["is_reset"], true);

    site.post("/web/reset", &json!({"question_id": "cars-1"}))
        .await;
    let reset = next().await;
    assert_eq!(
        reset["current_observation"]["question"],
        "How many cars are there?"
    );
    assert_eq!(
        (&reset["is_reset"], &reset["action_logs"]),
        (&json!(true), &json!([]))
    );

    site.post(
        "/web/step",
        &json!({"action": {"action_type": "DESCRIBE", "argument": "Cars"}}),
    )
    .await;
    let stepped = next().await;
    assert_eq!(
        (&stepped["is_reset"], &stepped["step_count"]),
        (&json!(false), &json!(1))
    );
    let log = &stepped["action_logs"][0];
    assert_eq!(
        log["action"],
        json!({"action_type": "DESCRIBE", "argument": "Cars"})
    );
    assert_eq!(
        (&log["step_count"], &log["done"]),
        (&json!(1), &json!(false))
    );
    assert_eq!(log["observation"], stepped["current_observation"]);
    let timestamp = log["timestamp"].as_str().unwrap();
    assert!(
        timestamp.len() == 25 && timestamp.ends_with("+00:00"),
        "{timestamp}"
    );
}

/// With as many watchers as allowed and a growing log, each watcher gets the newest state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_watchers_see_the_newest_state() {
    const STEPS: usize = 30;
    let site = site().await;
    let address = format!("ws://{}/ws/ui", site.address);
    let mut newest = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let (mut watcher, _) = connect_async(&address).await.unwrap();
        newest.spawn(async move {
            loop {
                let Message::Text(text) = watcher.next().await.unwrap().unwrap() else {
                    continue;
                };
                let update: Value = serde_json::from_str(&text).unwrap();
                if update["episode_state"]["step_count"] == STEPS {
                    break text;
                }
            }
        });
    }
    let start = json!({"question_id": "cars-1", "step_budget": 200});
    site.post("/web/reset", &start).await;
    let wide = format!("SELECT '{}' AS wide FROM Cars", "x".repeat(400));
    // The log cuts a huge argument.
    let huge = json!({"message": "x".repeat(2 << 20)});
    assert_eq!(site.post("/web/step", &huge).await.status, 200);
    for _ in 1..STEPS {
        let step = site.post("/web/step", &json!({"message": &wide})).await;
        assert_eq!(step.status, 200);
    }
    let newest = newest.join_all().await;
    assert!(newest.iter().all(|text| *text == newest[0]));
    assert!(newest[0].len() < 2 << 20);
    let newest: Value = serde_json::from_str(&newest[0]).unwrap();
    let log = newest["episode_state"]["action_logs"].as_array().unwrap();
    assert_eq!(log[log.len() - 1]["step_count"], STEPS);
}

/// What is sent to watchers counts in the budget for what peers have not read.
#[tokio::test]
async fn a_watcher_beyond_the_budget_is_closed() {
    const BUDGET: usize = 1 << 20;
    let env = EnvSettings {
        argument_bytes: BUDGET / 2,
        step_budget: 200,
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
    let site = Served::start_with(env, env_node).await;
    let address = format!("ws://{}/ws/ui", site.address);
    let (mut watcher, _) = connect_async(&address).await.unwrap();
    site.post("/web/reset", &json!({"question_id": "cars-1"}))
        .await;
    // The log grows by a history at each step. With the newest history it exceeds the budget.
    let message = format!("x{}x", "\u{1}".repeat(300));
    let steps = async {
        for _ in 0..120 {
            site.post("/web/step", &json!({"message": message})).await;
        }
    };
    let end = async {
        loop {
            if let Message::Close(end) = watcher.next().await.unwrap().unwrap() {
                break end.unwrap();
            }
        }
    };
    let (end, ()) = tokio::join!(timeout(PATIENCE, end), steps);
    assert_eq!(end.unwrap().code, CloseCode::Again);
}

#[tokio::test]
async fn the_number_of_watchers_is_limited() {
    let site = site().await;
    let address = format!("ws://{}/ws/ui", site.address);
    let mut watchers = Vec::new();
    for _ in 0..64 {
        watchers.push(connect_async(&address).await.unwrap().0);
    }
    let refused = connect_async(&address).await.unwrap_err().to_string();
    assert!(refused.contains("503"), "{refused}");

    let mut gone = watchers.pop().unwrap();
    gone.send(Message::text("anything")).await.unwrap();
    gone.close(None).await.unwrap();
    while let Some(Ok(_)) = gone.next().await {}
    let mut again = connect_async(&address).await;
    while again.is_err() {
        tokio::task::yield_now().await;
        again = connect_async(&address).await;
    }
}
