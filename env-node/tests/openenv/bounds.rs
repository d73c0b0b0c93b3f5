//! Tests requests that could cost far more than their size: their replies and sessions stay small.

use env_node::OpenEnvConfig;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::{common::served::Served, server::Socket};

/// The most bytes that a refusal may have, whatever the request.
const REFUSAL_BYTES: usize = 300 << 10;

/// Returns an object of many short fields; 250,000 of them are three megabytes.
fn crowded(fields: usize) -> String {
    let fields: Vec<String> = (0..fields).map(|name| format!(r#""{name}":[]"#)).collect();
    format!("{{{}}}", fields.join(","))
}

/// Returns a string of three megabytes that needs no escapes.
fn long() -> String {
    "x".repeat(3 << 20)
}

#[tokio::test]
async fn refusals_over_http_are_small() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let (crowded, less_crowded, long) = (crowded(250_000), crowded(60_000), long());
    let call = |name: &str, arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"tools/call","params":{{"name":"{name}","arguments":{arguments}}}}}"#
        )
    };
    for (path, body) in [
        ("/step", crowded.clone()),
        ("/step", format!(r#"{{"action":{crowded}}}"#)),
        ("/step", format!(r#"{{"action":["{long}"]}}"#)),
        ("/step", format!(r#"["{long}"]"#)),
        (
            "/reset",
            format!(r#"{{"seed":{less_crowded},"split":["{long}"]}}"#),
        ),
        ("/reset", format!(r#"{{"split":"{long}"}}"#)),
        ("/reset", format!(r#"{{"question_id":"{long}"}}"#)),
        ("/reset", format!(r#"{{"episode_id":"{long}"}}"#)),
        ("/reset", format!(r#"{{"reward_profile":"{long}"}}"#)),
        ("/sql_env/tasks", crowded.clone()),
        ("/mcp", crowded.clone()),
        ("/mcp", format!(r#"{{"jsonrpc":"2.0","method":"{long}"}}"#)),
        (
            "/mcp",
            format!(r#"{{"jsonrpc":{less_crowded},"id":{less_crowded}}}"#),
        ),
        ("/mcp", call(&long, "{}")),
        ("/mcp", call("query", &crowded)),
        ("/mcp", call("query", &format!(r#"{{"{long}":1}}"#))),
        (
            "/mcp",
            format!(
                r#"{{"jsonrpc":"2.0","method":"tools/list","params":{{"session_id":"{long}"}}}}"#
            ),
        ),
    ] {
        let response = server.http("POST", path, Some(&body)).await;
        let (status, reply) = (response.status, response.body());
        assert_ne!(status, 413, "{path} {body:.80}: this body is not read");
        let refused = (400..500).contains(&status) || reply.contains(r#""error":"#);
        assert!(refused, "{path} {body:.80}: {status}");
        let bytes = reply.len();
        assert!(bytes < REFUSAL_BYTES, "{path} {body:.80}: {bytes} bytes");
    }
}

#[tokio::test]
async fn refusals_on_a_socket_are_small_and_leave_the_session() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let mut socket = server.socket("/ws").await;
    let (crowded, long) = (crowded(250_000), long());
    for (frame, code) in [
        (crowded.clone(), "UNKNOWN_TYPE"),
        (format!(r#"{{"type":"{long}"}}"#), "UNKNOWN_TYPE"),
        (format!(r#"{{"type":{crowded}}}"#), "UNKNOWN_TYPE"),
        (
            format!(r#"{{"type":"state",{}"#, &crowded[1..]),
            "VALIDATION_ERROR",
        ),
        (
            format!(r#"{{"type":"step","data":{crowded}}}"#),
            "VALIDATION_ERROR",
        ),
        (
            format!(r#"{{"type":"reset","data":{{"split":"{long}"}}}}"#),
            "EXECUTION_ERROR",
        ),
    ] {
        socket.send(&frame).await;
        let reply = text(&mut socket).await;
        assert!(
            reply.len() < REFUSAL_BYTES,
            "{frame:.80}: {} bytes",
            reply.len()
        );
        let reply: Value = serde_json::from_str(&reply).unwrap();
        assert_eq!(reply["data"]["code"], code, "{frame:.80}");
    }
    let call = format!(r#"{{"type":"step","data":{{"type":"call_tool","tool_name":"{long}"}}}}"#);
    socket.send(&call).await;
    assert!(text(&mut socket).await.len() < REFUSAL_BYTES);
    let state = socket.ask(&json!({"type": "state"})).await;
    assert_eq!(state["data"], json!({"episode_id": null, "step_count": 0}));
}

async fn text(socket: &mut Socket) -> String {
    use futures::StreamExt as _;
    loop {
        if let Message::Text(text) = socket.0.next().await.unwrap().unwrap() {
            return text.as_str().to_owned();
        }
    }
}

#[tokio::test]
async fn the_refusal_of_an_unknown_session_is_small() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let path = format!("/ws?session_id={}", "x".repeat(30_000));
    let mut socket = server.socket(&path).await;
    let refusal = text(&mut socket).await;
    assert!(refusal.contains("Unknown session_id: xxx"), "{refusal:.80}");
    assert!(refusal.len() < 10_000, "{} bytes", refusal.len());
}

/// Plays the longest episode with the longest actions, each byte of which JSON writes as six.
#[tokio::test]
async fn a_long_episode_stays_small() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let mut socket = server.socket("/ws").await;
    let reset = json!({"type": "reset", "data": {"question_id": "cars-1", "step_budget": 1_000}});
    socket.ask(&reset).await;
    let argument = format!("x{}x", "\u{1}".repeat(5_000));
    let step = json!({"type": "step", "data": {"action_type": "LOOK", "argument": argument}});
    let mut history = 0;
    for number in 1..=1_000 {
        let reply = socket.ask(&step).await;
        let observation = &reply["data"]["observation"];
        assert_eq!(observation["step_count"], number);
        history = observation["action_history"].to_string().len();
    }
    assert!(history < 2 << 20, "{history} bytes");
}
