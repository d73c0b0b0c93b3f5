//! Tests that the messages of sockets have the limits of calls: how many are answered at once, for
//! how long, and how many bytes they hold.

use std::time::Duration;

use env::{EnvSettings, ResultLimits, SqlLimits};
use env_node::{EnvNodeSettings, OpenEnvConfig, ServerConfig};
use futures::{SinkExt, StreamExt};
use metrics::set_default_local_recorder;
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    common::{ENDLESS, served::Served},
    counters::Counters,
    server::{HANG, Received, Socket},
    sessions::{PING_SECONDS, admitted_soon, open_by_hand, with_sessions},
};

/// The start of a text message of at least two fragments, masked with zeros.
const FIRST_FRAGMENT: u8 = 0x01;
const PONG: [u8; 6] = [0x8a, 0x80, 0, 0, 0, 0];
/// The bytes of both budgets of [`with_small_budgets`].
const BUDGET: usize = 1 << 20;

fn with_server(server: ServerConfig) -> EnvNodeSettings {
    EnvNodeSettings {
        server,
        ..EnvNodeSettings::default()
    }
}

/// Returns settings under which messages and responses may hold [`BUDGET`] bytes each.
fn with_small_budgets() -> (EnvSettings, EnvNodeSettings) {
    let env = EnvSettings {
        argument_bytes: BUDGET / 2,
        ..EnvSettings::default()
    };
    let env_node = EnvNodeSettings {
        openenv: OpenEnvConfig {
            message_bytes: BUDGET,
            ..OpenEnvConfig::default()
        },
        ..with_server(ServerConfig {
            max_request_bytes: BUDGET,
            max_body_bytes_in_flight: BUDGET,
            ..ServerConfig::default()
        })
    };
    (env, env_node)
}

/// Returns how many refusals of OpenEnv's protocols with this code were counted.
fn refusals(counters: &Counters, code: &str) -> u64 {
    let counted = counters.of("env_refused_calls_total");
    let refused = counted.get(&format!("openenv {code}"));
    refused.copied().unwrap_or(0)
}

async fn reset(socket: &mut Socket) {
    let reset = json!({"type": "reset", "data": {"question_id": "cars-1"}});
    assert_eq!(socket.ask(&reset).await["type"], "observation");
}

fn step(action_type: &str, argument: &str) -> Value {
    json!({"type": "step", "data": {"action_type": action_type, "argument": argument}})
}

#[tokio::test]
async fn a_frame_is_answered_in_time_or_refused() {
    let counters = Counters::default();
    let _recorder = set_default_local_recorder(&counters);
    let env = EnvSettings {
        sql_threads: 1,
        sql: SqlLimits {
            work_units: 1 << 40,
            wall_clock_seconds: 0.4,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    };
    let server = ServerConfig {
        max_call_seconds: 0.9,
        ..ServerConfig::default()
    };
    let server = Served::start_with(env, with_server(server)).await;
    let mut socket = server.socket("/ws").await;
    reset(&mut socket).await;
    server.fixture.occupy_sql(4).await;
    let refused = socket.ask(&step("QUERY", ENDLESS)).await;
    assert_eq!(refused["data"]["code"], "EXECUTION_ERROR", "{refused}");
    let message = refused["data"]["message"].as_str().unwrap();
    assert!(
        message.contains("0.9 s; the step was not applied, retry"),
        "{message}"
    );
    assert_eq!(refusals(&counters, "DEADLINE_EXCEEDED"), 1);
    let next = socket.ask(&step("DESCRIBE", "Cars")).await;
    assert_eq!(next["data"]["observation"]["step_count"], 1, "{next}");
}

#[tokio::test]
async fn a_frame_beyond_the_calls_in_flight_is_refused() {
    let counters = Counters::default();
    let _recorder = set_default_local_recorder(&counters);
    let server = ServerConfig {
        max_calls_in_flight: 1,
        ..ServerConfig::default()
    };
    let server = Served::start_with(EnvSettings::default(), with_server(server)).await;
    let mut socket = server.socket("/ws").await;
    let mut mcp = server.socket("/mcp").await;
    // A call whose body does not arrive holds the one permit.
    let mut holder = TcpStream::connect(server.address).await.unwrap();
    let head = b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n";
    holder.write_all(head).await.unwrap();

    let state = json!({"type": "state"});
    let refused = loop {
        let reply = socket.ask(&state).await;
        if reply["type"] == "error" {
            break reply["data"].clone();
        }
    };
    assert_eq!(refused["code"], "EXECUTION_ERROR");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("too many calls in flight; retry"),
        "{message}"
    );
    let list = json!({"jsonrpc": "2.0", "method": "tools/list", "id": "mine"});
    let refused = mcp.ask(&list).await;
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!("mine"), &json!(-32000))
    );
    assert_eq!(refusals(&counters, "OVERLOADED"), 2);

    drop(holder);
    while socket.ask(&state).await["type"] == "error" {}
    while mcp.ask(&list).await.get("error").is_some() {}
}

/// Sends the first fragment of a message, and pongs until the server ends the connection.
async fn send_no_more_than_pongs(mut stream: TcpStream) -> std::io::Result<()> {
    let fragment = [FIRST_FRAGMENT, 0x81, 0, 0, 0, 0, b'{'];
    stream.write_all(&fragment).await?;
    loop {
        stream.write_all(&PONG).await?;
        sleep(Duration::from_millis(50)).await;
    }
}

/// Pongs may come between the fragments of a message, so their peer is not silent.
#[tokio::test]
async fn a_message_that_is_not_finished_ends_its_socket() {
    let env_node = EnvNodeSettings {
        openenv: OpenEnvConfig {
            ping_seconds: PING_SECONDS,
            ..with_sessions(1)
        },
        ..EnvNodeSettings::default()
    };
    let server = Served::start_with(EnvSettings::default(), env_node).await;
    let slow = open_by_hand(&server, "/ws").await;
    let watcher = open_by_hand(&server, "/ws/ui").await;
    let sending = [slow, watcher].map(|stream| tokio::spawn(send_no_more_than_pongs(stream)));
    admitted_soon(&server).await;
    for sending in sending {
        let sent = timeout(HANG, sending).await.expect("the socket is open");
        sent.unwrap().unwrap_err();
    }
}

/// One unfinished message holds most of the budget. A message beyond the rest closes its socket,
/// and messages of ordinary size are answered.
#[tokio::test]
async fn messages_beyond_the_budget_close_their_sockets() {
    const HELD: usize = 900_000;
    let counters = Counters::default();
    let _recorder = set_default_local_recorder(&counters);
    let (env, env_node) = with_small_budgets();
    let server = Served::start_with(env, env_node).await;
    let mut ordinary = server.socket("/ws").await;
    let hold = async || {
        let mut holder = open_by_hand(&server, "/ws").await;
        let length = (HELD as u64).to_be_bytes();
        let head = [&[FIRST_FRAGMENT, 0xff][..], &length, &[0; 4]].concat();
        holder.write_all(&head).await.unwrap();
        let _ = holder.write_all(&vec![b'x'; HELD]).await;
        sleep(Duration::from_millis(100)).await;
        holder
    };
    let long = step("ANSWER", &"x".repeat(400_000)).to_string();
    let send = async || {
        let mut socket = server.socket("/ws").await;
        // The server may close before everything is sent.
        let _ = socket.0.send(Message::text(long.as_str())).await;
        socket.next().await
    };
    // If both arrive at the same time, either may be the one that exceeds the budget.
    let (holder, refused) = loop {
        let holder = hold().await;
        match send().await {
            Received::Json(_) => {}
            refused => break (holder, refused),
        }
    };
    assert!(matches!(refused, Received::Closed(1013)), "{refused:?}");
    assert!(refusals(&counters, "OVERLOADED") > 0);
    reset(&mut ordinary).await;

    drop(holder);
    while !matches!(send().await, Received::Json(_)) {}
}

/// What a socket sends counts in the budget for what peers have not read, until it is sent.
#[tokio::test]
async fn a_response_beyond_the_budget_closes_its_socket() {
    let counters = Counters::default();
    let _recorder = set_default_local_recorder(&counters);
    let (env, env_node) = with_small_budgets();
    let env = EnvSettings {
        result: ResultLimits {
            rows: 150,
            cell_bytes: BUDGET,
            row_bytes: BUDGET,
            result_bytes: 2 * BUDGET,
        },
        ..env
    };
    let server = Served::start_with(env, env_node).await;
    let mut socket = server.socket("/ws").await;
    reset(&mut socket).await;
    let query = |rows: usize| {
        let wide = "SELECT printf('%9000s', 'x') FROM Cars a, Cars b LIMIT";
        step("QUERY", &format!("{wide} {rows}"))
    };
    // Two such responses at once would exceed the budget.
    for _ in 0..2 {
        let reply = socket.ask(&query(100)).await;
        let result = reply["data"]["observation"]["result"].as_str().unwrap();
        assert!(result.len() > 100 * 9_000, "{} bytes", result.len());
    }
    assert_eq!(refusals(&counters, "OVERLOADED"), 0);
    socket.send(&query(150).to_string()).await;
    assert_eq!(socket.next().await, Received::Closed(1013));
    assert_eq!(refusals(&counters, "OVERLOADED"), 1);
}

/// The server answers a ping itself, in place of its library.
#[tokio::test]
async fn a_ping_gets_one_pong() {
    let server = Served::start_with(EnvSettings::default(), EnvNodeSettings::default()).await;
    for path in ["/ws", "/mcp", "/ws/ui"] {
        let mut socket = server.socket(path).await.0;
        for contents in ["one", "two"] {
            socket.send(Message::Ping(contents.into())).await.unwrap();
        }
        socket.close(None).await.unwrap();
        let mut pongs = Vec::new();
        while let Ok(Some(Ok(message))) = timeout(HANG, socket.next()).await {
            if let Message::Pong(contents) = message {
                pongs.push(contents);
            }
        }
        assert_eq!(pongs, ["one", "two"], "{path}");
    }
}
