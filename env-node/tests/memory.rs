//! Measures the memory of requests with millions of values. A process of its own with one test: the
//! system counts the memory of a process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/mod.rs"]
mod common;
#[path = "../../proto/tests/support/memory.rs"]
mod memory;
#[allow(dead_code, reason = "each test file uses a part")]
#[path = "openenv/server.rs"]
mod server;

use env_node::OpenEnvConfig;
use serde_json::{Value, json};

use crate::{common::served::Served, memory::peak_growth, server::Received};

/// What buffers and the allocator take besides the request.
const SLACK_BYTES: usize = 8 << 20;
/// The copies of a request that both ends of a connection in this process hold. As a tree of values
/// it would be 36 times as large.
const TIMES: usize = 8;

/// Asserts that the memory grows no more than in proportion to a request while it is answered.
async fn assert_is_cheap(what: &str, bytes: usize, answer: impl Future<Output = ()>) {
    let growth = peak_growth(answer).await;
    eprintln!("{what}: {bytes} bytes take {growth} bytes");
    assert!(
        growth <= TIMES * bytes + SLACK_BYTES,
        "{what}: {growth} bytes"
    );
}

/// Answers a question about a list with lists of many elements.
async fn assert_answers_are_cheap(server: &Served) {
    let question = json!({"question_id": "cars-2"});
    let (_, start) = server.ask("/reset", &question).await;
    let zeros = format!("[{}0]", "0,".repeat(500_000));
    let numbers: Vec<String> = (0..150_000).map(|number| number.to_string()).collect();
    for (what, answer) in [("zeros", zeros), ("numbers", numbers.join(","))] {
        let body = json!({
            "action": {"action_type": "ANSWER", "argument": answer},
            "episode_token": start["metadata"]["episode_token"],
        });
        let body = body.to_string();
        assert_is_cheap(what, body.len(), async {
            let response = server.post_text("/step", &body).await;
            assert!(response.body().contains(r#""done":true"#), "{response:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_request_takes_memory_in_proportion_to_its_bytes() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let (_, start) = server
        .ask("/reset", &json!({"question_id": "cars-1"}))
        .await;
    let token = &start["metadata"]["episode_token"];
    let zeros = format!("[{}0]", "0,".repeat(2_000_000));
    let action =
        format!(r#"{{"action_type":"DESCRIBE","argument":"Cars","metadata":{{"zeros":{zeros}}}}}"#);
    let call =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"zeros":{zeros}}}}}"#);
    for (path, body) in [
        (
            "/step",
            format!(r#"{{"episode_token":{token},"action":{action}}}"#),
        ),
        ("/reset", format!(r#"{{"zeros":{zeros},"seed":1}}"#)),
        ("/mcp", call.clone()),
    ] {
        assert_is_cheap(path, body.len(), async {
            let response = server.post_text(path, &body).await;
            assert_eq!(response.status, 200, "{}", response.body());
        })
        .await;
    }
    assert_answers_are_cheap(&server).await;

    let mut socket = server.socket("/ws").await;
    socket
        .ask(&json!({"type": "reset", "data": {"question_id": "cars-1"}}))
        .await;
    for (kind, data) in [("step", &action), ("mcp", &call)] {
        let frame = format!(r#"{{"data":{data},"type":"{kind}"}}"#);
        assert_is_cheap(kind, frame.len(), async {
            socket.send(&frame).await;
            let reply = socket.next().await;
            let is_answer =
                |reply: &Value| reply["type"] == "observation" || reply["type"] == "mcp";
            assert!(
                matches!(&reply, Received::Json(it) if is_answer(it)),
                "{reply:?}"
            );
        })
        .await;
    }
}
