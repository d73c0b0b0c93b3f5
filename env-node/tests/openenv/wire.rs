//! Tests every row of the tables `*.json` over a real port. Statuses, codes and the form of replies
//! are those of openenv 0.10.0's own server to the same bytes. The texts of errors are ours.
//!
//! In a reply `<uuid>` stands for any UUID, `<token>` for any base64 and `<any>` for anything. A
//! number instead of a reply is the code with which the server closes. A body or frame that is a
//! string is sent as it is.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use env_node::{Mode, OpenEnvConfig};
use futures::{SinkExt, StreamExt};
use proptest::{
    prelude::*,
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, time::timeout};
use tokio_tungstenite::tungstenite::Message;
use uuid::Uuid;

use crate::{
    common::served::{Served, request},
    server::Received,
};

fn sent(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns whether `actual` is what the table says, including the order of the keys.
fn matches(expected: &Value, actual: &Value) -> bool {
    match (expected, actual) {
        (Value::String(pattern), _) if pattern == "<any>" => true,
        (Value::String(pattern), Value::String(text)) if pattern == "<uuid>" => {
            Uuid::parse_str(text).is_ok()
        }
        (Value::String(pattern), Value::String(text)) if pattern == "<token>" => {
            BASE64.decode(text).is_ok()
        }
        (Value::Array(expected), Value::Array(actual)) => {
            expected.len() == actual.len()
                && expected
                    .iter()
                    .zip(actual)
                    .all(|(one, two)| matches(one, two))
        }
        (Value::Object(expected), Value::Object(actual)) => {
            expected.keys().eq(actual.keys())
                && expected
                    .iter()
                    .all(|(key, value)| matches(value, &actual[key]))
        }
        _ => expected == actual,
    }
}

/// Returns whether the document declares this status of a route, or does not have the route.
fn is_declared(openapi: &Value, method: &str, path: &str, status: u16) -> bool {
    let template = match path.rsplit_once('/') {
        Some((environment, name)) if !environment.is_empty() => format!("/{{environment}}/{name}"),
        _ => path.to_owned(),
    };
    let operation = &openapi["paths"][template][method.to_lowercase()];
    operation.is_null() || operation["responses"].get(status.to_string()).is_some()
}

#[tokio::test]
async fn http_as_the_table_says() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let openapi = server.get("/openapi.json").await.json();
    let rows: Vec<Value> = serde_json::from_str(include_str!("http.json")).unwrap();
    for row in &rows {
        let body = row.get("body").map(sent);
        let (method, path) = (
            row["method"].as_str().unwrap(),
            row["path"].as_str().unwrap(),
        );
        let response = server.http(method, path, body.as_deref()).await;
        let kind = response.header("content-type");
        assert_eq!(kind, Some("application/json"), "{row}");
        let reply = response.json();
        assert_eq!(json!(response.status), row["status"], "{row}: {reply}");
        assert!(matches(&row["reply"], &reply), "{row}\nsays {reply}");
        let declared = is_declared(&openapi, method, path, response.status);
        assert!(declared, "openapi.json lacks the status of {row}");
    }
}

#[tokio::test]
async fn sockets_as_the_table_says() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let rows: Vec<Value> = serde_json::from_str(include_str!("sockets.json")).unwrap();
    for row in &rows {
        let mut socket = server.socket(row["path"].as_str().unwrap()).await;
        let mut frames = row["frames"].as_array().unwrap().iter();
        for expected in row["replies"].as_array().unwrap() {
            if let Some(frame) = frames.next() {
                socket.send(&sent(frame)).await;
            }
            let is_expected = match (socket.next().await, expected.as_u64()) {
                (Received::Json(reply), None) => matches(expected, &reply),
                (Received::Closed(code), Some(expected)) => u64::from(code) == expected,
                _ => false,
            };
            assert!(is_expected, "{}: {expected}", row["case"]);
        }
        assert!(frames.next().is_none(), "{}", row["case"]);
    }
}

#[tokio::test]
async fn a_server_pushes_nothing() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    for path in ["/ws", "/mcp"] {
        let mut socket = server.socket(path).await;
        let pushed = timeout(Duration::from_millis(300), socket.0.next()).await;
        assert!(pushed.is_err(), "{path}: {pushed:?}");
    }
}

/// Sends frames that are nearly right and texts that are not JSON. Each gets one reply from the
/// same session.
#[tokio::test]
async fn any_text_gets_one_reply() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let mut socket = server.socket("/ws").await;
    let reset = json!({"type": "reset", "data": {"question_id": "cars-1", "episode_id": "E"}});
    socket.ask(&reset).await;
    let kind = prop_oneof!["reset", "step", "state", "mcp", "wat"];
    let data = prop_oneof![
        Just("null".to_owned()),
        Just(r#"{"action_type":"SAMPLE","argument":"Cars"}"#.to_owned()),
        Just(r#"{"type":"call_tool","tool_name":"describe"}"#.to_owned()),
        Just(r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":[]}}"#.to_owned()),
        r#"\{"(seed|index|metadata|id)":(-?[0-9]{0,30}|"[a-z]{0,3}"|\[\])\}"#,
    ];
    let frame =
        (kind, data).prop_map(|(kind, data)| format!(r#"{{"type":"{kind}","data":{data}}}"#));
    // A text that is JSON but no object ends the session, so these begin as one.
    let texts = prop_oneof![frame, r#"\{[\[\]{}:,"\\ue0-9+.tn \n\u{e9}-]{0,30}"#];
    let mut runner = TestRunner::deterministic();
    for _ in 0..500 {
        let text = texts.new_tree(&mut runner).unwrap().current();
        socket.send(&text).await;
        let Received::Json(reply) = socket.next().await else {
            panic!("{text} ends the session");
        };
        let kind = reply["type"].as_str().unwrap();
        let kinds = ["observation", "state", "mcp", "error"];
        assert!(kinds.contains(&kind), "{text}: {reply}");
    }
    socket.ask(&reset).await;
    let state = socket.ask(&json!({"type": "state"})).await;
    assert_eq!(state["data"], json!({"episode_id": "E", "step_count": 0}));
}

#[tokio::test]
async fn frames_sent_ahead_are_answered_in_order() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let mut socket = server.socket("/ws").await;
    socket
        .send(r#"{"type":"reset","data":{"question_id":"cars-1"}}"#)
        .await;
    for number in 1..=14 {
        let step = json!({"type": "step", "data": {"action_type": "QUERY", "argument": format!("SELECT {number}")}});
        socket.send(&step.to_string()).await;
    }
    for number in 0..=14 {
        let Received::Json(reply) = socket.next().await else {
            panic!("closed");
        };
        assert_eq!(reply["data"]["observation"]["step_count"], number);
    }
}

/// The reply to a reset carries the episode. A step on it gives the next one, and the old one can
/// be continued again.
#[tokio::test]
async fn plain_http_carries_the_episode() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let (_, start) = server
        .ask(
            "/reset",
            &json!({"question_id": "cars-1", "reward_profile": "sqlenv-final"}),
        )
        .await;
    let step = |reply: &Value, action_type: &str, argument: &str| {
        json!({
            "action": {"action_type": action_type, "argument": argument},
            "episode_token": reply["metadata"]["episode_token"],
        })
    };
    for _ in 0..2 {
        let described = step(&start, "DESCRIBE", "Cars");
        let (status, described) = server.ask("/step", &described).await;
        assert_eq!(
            (status, &described["observation"]["step_count"]),
            (200, &json!(1))
        );
        let (_, answered) = server.ask("/step", &step(&described, "ANSWER", "40")).await;
        assert_eq!(
            (&answered["reward"], &answered["done"]),
            (&json!(1.0), &json!(true))
        );
        assert_eq!(
            answered["observation"]["action_history"],
            json!(["DESCRIBE Cars", "ANSWER 40"])
        );
    }
    let call = json!({
        "action": {"type": "call_tool", "tool_name": "answer", "arguments": {"value": "41"}},
        "episode_token": start["metadata"]["episode_token"],
    });
    let (_, answered) = server.ask("/step", &call).await;
    assert_eq!(
        (&answered["reward"], &answered["done"]),
        (&json!(0.0), &json!(true))
    );
}

#[tokio::test]
async fn the_same_seed_draws_the_same_question_and_none_draws_all() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let mut socket = server.socket("/ws").await;
    let mut drawn = std::collections::BTreeSet::new();
    for seed in 0..80 {
        let question = |reply: &Value| reply["data"]["metadata"]["question_id"].to_string();
        let reset = json!({"type": "reset", "data": {"seed": seed}});
        let first = socket.ask(&reset).await;
        assert_eq!(question(&first), question(&socket.ask(&reset).await));
        let without = socket.ask(&json!({"type": "reset"})).await;
        drawn.insert(question(&without));
        let fresh = socket.ask(&json!({"type": "state"})).await;
        assert_eq!(
            fresh["data"]["episode_id"],
            without["data"]["metadata"]["episode_id"]
        );
    }
    assert_eq!(
        drawn.len(),
        3,
        "eighty draws miss one of three questions once in 40 trillion runs"
    );
}

#[tokio::test]
async fn production_mode_hides_what_controls_the_simulation() {
    let config = OpenEnvConfig {
        mode: Mode::Production,
        ..OpenEnvConfig::default()
    };
    let server = Served::open_env(config).await;
    let openapi = server.get("/openapi.json").await.json();
    assert_eq!(openapi["info"]["version"], "1.0.0");
    for (method, path) in [("POST", "/reset"), ("POST", "/step"), ("GET", "/state")] {
        let response = server.http(method, path, Some("{}")).await;
        assert_eq!(
            (response.status, response.body()),
            (404, r#"{"detail":"Not Found"}"#)
        );
        assert!(openapi["paths"].get(path).is_none());
    }
    for path in [
        "/health",
        "/schema",
        "/metadata",
        "/docs",
        "/redoc",
        "/list_environments",
    ] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    let mut socket = server.socket("/ws").await;
    let reset = socket.ask(&json!({"type": "reset"})).await;
    assert_eq!(reset["type"], "observation");
}

/// At least 1 MiB is accepted. Above the limit a socket is closed with 1009, and a body is refused
/// with 413, or on `/mcp` with an error of JSON-RPC.
#[tokio::test]
async fn messages_have_a_limit() {
    let config = OpenEnvConfig {
        message_bytes: 2 << 20,
        ..OpenEnvConfig::default()
    };
    let server = Served::open_env(config).await;
    let step = |bytes: usize| {
        let argument = "x".repeat(bytes);
        json!({"type": "step", "data": {"action_type": "ANSWER", "argument": argument}})
    };
    let mut socket = server.socket("/ws").await;
    socket.ask(&json!({"type": "reset"})).await;
    let reply = socket.ask(&step(1 << 20)).await;
    assert_eq!(reply["data"]["done"], true);
    socket.send(&step(2 << 20).to_string()).await;
    assert_eq!(socket.next().await, Received::Closed(1009));

    let body = json!({"action": {"action_type": "x".repeat(2 << 20)}});
    let setting = "env_node.openenv.message_bytes";
    let openapi = server.get("/openapi.json").await.json();
    for path in ["/reset", "/step", "/sql_env/tasks"] {
        let refused = server.post(path, &body).await;
        assert_eq!(refused.status, 413, "{path}");
        assert!(refused.detail().contains(setting), "{path}: {refused:?}");
        assert!(is_declared(&openapi, "POST", path, 413), "{path}");
    }
    let (status, refused) = server.ask("/mcp", &body).await;
    let error = &refused["error"];
    assert_eq!((status, &error["code"]), (200, &json!(-32000)));
    assert!(error["message"].to_string().contains(setting), "{error}");
}

/// Frames without readable text end the socket: a binary frame with OpenEnv's error code, the
/// others with WebSocket's close codes.
#[tokio::test]
async fn frames_that_cannot_be_read_end_the_socket() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let mut socket = server.socket("/ws").await;
    socket
        .0
        .send(Message::binary(b"{}".to_vec()))
        .await
        .unwrap();
    assert_eq!(
        socket.next().await,
        Received::Json(
            json!({"type": "error", "data": {"message": "send text frames, not binary ones", "code": "SESSION_ERROR"}})
        )
    );
    assert_eq!(socket.next().await, Received::Closed(1000));
    // Masked with zeros: a text of one byte that is not UTF-8, a frame of a reserved opcode, a
    // frame without a mask.
    for (frame, code) in [
        (&[0x81, 0x81, 0, 0, 0, 0, 0xff][..], 1007),
        (&[0x83, 0x80, 0, 0, 0, 0][..], 1002),
        (&[0x81, 0x02, b'{', b'}'][..], 1002),
    ] {
        let mut socket = server.socket("/ws").await;
        socket.0.get_mut().write_all(frame).await.unwrap();
        assert_eq!(socket.next().await, Received::Closed(code), "{frame:x?}");
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_read_is_refused() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let line = "POST /reset HTTP/1.1";
    let not_text = request(server.address, &[line], b"\xff").await;
    let not_a_name = server.get("/%ff/splits").await;
    let two_sessions = server.get("/ws?session_id=a&session_id=b").await;
    for (response, part) in [
        (not_text, "the body is not UTF-8: "),
        (not_a_name, "UTF-8"),
        (two_sessions, "session_id"),
    ] {
        assert_eq!(response.status, 400, "{response:?}");
        assert!(response.detail().contains(part), "{response:?}");
    }
}
