//! Tests sessions and their limit: who keeps a session open, and that it is freed when its client
//! disconnects.

use std::time::Duration;

use env::{EnvSettings, SqlLimits};
use env_node::{EnvNodeSettings, OpenEnvConfig};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};

use crate::{
    common::{ENDLESS, served::Served},
    server::{HANG, Received, Socket},
};

/// A period that is short enough to wait for and long enough for a busy machine to answer in.
pub(crate) const PING_SECONDS: f64 = 1.0;

pub(crate) fn with_sessions(max_sessions: usize) -> OpenEnvConfig {
    OpenEnvConfig {
        max_sessions,
        ..OpenEnvConfig::default()
    }
}

fn rpc(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params, "id": 1})
}

/// Opens a socket with a session. Returns `None` if all sessions are taken.
async fn admitted(server: &Served) -> Option<Socket> {
    let mut socket = server.socket("/ws").await;
    let reply = socket.ask(&json!({"type": "state"})).await;
    match reply["data"]["code"].as_str() {
        None => Some(socket),
        Some("CAPACITY_REACHED") => None,
        Some(other) => panic!("{other}"),
    }
}

/// Opens a socket with a session as soon as one is free.
pub(crate) async fn admitted_soon(server: &Served) -> Socket {
    let asked = Instant::now();
    loop {
        if let Some(socket) = admitted(server).await {
            return socket;
        }
        assert!(asked.elapsed() < HANG, "no session was freed");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn one_too_many_is_told_and_closed() {
    let server = Served::open_env(with_sessions(2)).await;
    let first = admitted(&server).await.unwrap();
    let _second = admitted(&server).await.unwrap();
    let message = "Server at capacity: 2/2 sessions active. Cannot accept new connections.";
    let numbers = json!({"active_sessions": 2, "max_sessions": 2});

    let mut third = server.socket("/ws").await;
    assert_eq!(
        third.next().await,
        Received::Json(json!({"type": "error", "data": {
            "message": message, "code": "CAPACITY_REACHED", "active_sessions": 2, "max_sessions": 2,
        }}))
    );
    assert_eq!(third.next().await, Received::Closed(1000));

    let error = json!({"code": -32000, "message": message, "data": numbers});
    let mut mcp = server.socket("/mcp").await;
    assert_eq!(
        mcp.next().await,
        Received::Json(json!({"jsonrpc": "2.0", "id": null, "error": error}))
    );
    assert_eq!(mcp.next().await, Received::Closed(1000));
    let (_, reply) = server
        .ask("/mcp", &rpc("openenv/session/create", &json!({})))
        .await;
    assert_eq!(reply["error"], error);

    drop(first);
    admitted_soon(&server).await;
}

/// A client that closes and reconnects at once finds its session free: it is freed before the close
/// is answered.
#[tokio::test]
async fn a_closed_session_is_free_at_once() {
    let server = Served::open_env(with_sessions(1)).await;
    for round in 0..50 {
        let mut socket = admitted(&server).await.expect("the session is still open");
        if round % 2 == 0 {
            socket.send(r#"{"type":"close"}"#).await;
        } else {
            let normal = CloseFrame {
                code: CloseCode::Normal,
                reason: "".into(),
            };
            socket.0.close(Some(normal)).await.unwrap();
        }
        assert_eq!(socket.next().await, Received::Closed(1000));
    }
}

/// After a thousand connections that end in every bad way, as many sessions fit as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_leak_no_session() {
    const SESSIONS: usize = 8;
    let server = Served::open_env(with_sessions(SESSIONS)).await;
    let slow = "SELECT count(*) FROM Cars a, Cars b, Cars c, Cars d";
    for round in 0..1_000 {
        let mut socket = admitted_soon(&server).await;
        match round % 5 {
            // Closed by the system, without a close frame.
            0 => {}
            // In the middle of a step.
            1 => {
                socket.ask(&json!({"type": "reset"})).await;
                let step =
                    json!({"type": "step", "data": {"action_type": "QUERY", "argument": slow}});
                socket.send(&step.to_string()).await;
            }
            // In the middle of a frame that announces 100 bytes.
            2 => socket
                .0
                .get_mut()
                .write_all(&[0x81, 0xe4, 1])
                .await
                .unwrap(),
            // By garbage.
            3 => socket.0.get_mut().write_all(&[0xff; 16]).await.unwrap(),
            // With frames in flight.
            _ => {
                for _ in 0..10 {
                    socket.send(r#"{"type":"reset"}"#).await;
                }
            }
        }
    }
    let mut held = Vec::new();
    for _ in 0..SESSIONS {
        held.push(admitted_soon(&server).await);
    }
    assert!(admitted(&server).await.is_none(), "a session too many");
}

/// Opens a socket by hand. Nobody reads from it or answers its pings.
pub(crate) async fn open_by_hand(server: &Served, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let upgrade = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        server.address
    );
    stream.write_all(upgrade.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 101");
    stream
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_loses_its_session() {
    let config = OpenEnvConfig {
        ping_seconds: PING_SECONDS,
        ..with_sessions(1)
    };
    let server = Served::open_env(config).await;
    let silent = open_by_hand(&server, "/ws").await;
    assert!(admitted(&server).await.is_none());
    admitted_soon(&server).await;
    drop(silent);
}

#[tokio::test]
async fn a_peer_that_stops_reading_loses_its_session() {
    let config = OpenEnvConfig {
        ping_seconds: PING_SECONDS,
        ..with_sessions(1)
    };
    let server = Served::open_env(config).await;
    let mut greedy = open_by_hand(&server, "/ws").await;
    // A short request with a long response, masked with zeros.
    let request = br#"{"type":"step","data":{"type":"list_tools"}}"#;
    let mut frame = vec![0x81, 0x80 | request.len() as u8, 0, 0, 0, 0];
    frame.extend(request);
    let frames = frame.repeat(1_000);
    // Writes until the buffers of both sides are full.
    while let Ok(Ok(())) = timeout(Duration::from_millis(300), greedy.write_all(&frames)).await {}
    admitted_soon(&server).await;
}

/// Sends pings, and reads no pong, until the server ends the connection.
async fn send_no_more_than_pings(mut stream: TcpStream) -> std::io::Result<()> {
    const PING: u8 = 0x89;
    // The longest contents, masked with zeros, fill the buffers of both sides soonest.
    let ping = [&[PING, 0x80 | 125, 0, 0, 0, 0][..], &[b'x'; 125]].concat();
    let pings = ping.repeat(1_000);
    loop {
        stream.write_all(&pings).await?;
    }
}

/// A peer that pings is not silent, but it gets a pong for each ping.
#[tokio::test]
async fn a_peer_that_pings_and_reads_no_pong_loses_its_session() {
    let config = OpenEnvConfig {
        ping_seconds: PING_SECONDS,
        ..with_sessions(1)
    };
    let server = Served::open_env(config).await;
    let greedy = open_by_hand(&server, "/ws").await;
    assert!(admitted(&server).await.is_none());
    let sending = tokio::spawn(send_no_more_than_pings(greedy));
    admitted_soon(&server).await;
    let sent = timeout(HANG, sending).await.expect("the socket is open");
    sent.unwrap().unwrap_err();
}

#[tokio::test]
async fn a_quiet_peer_that_answers_pings_stays() {
    let config = OpenEnvConfig {
        ping_seconds: PING_SECONDS,
        ..with_sessions(1)
    };
    let server = Served::open_env(config).await;
    let mut socket = server.socket("/ws").await;
    let reset = json!({"type": "reset", "data": {"question_id": "cars-1"}});
    socket.ask(&reset).await;
    // Reading answers pings. No data frame passes for five periods.
    let quiet = Duration::from_secs_f64(5.0 * PING_SECONDS);
    let mut pings = 0;
    let waited = timeout(quiet, async {
        while let Some(Ok(message)) = socket.0.next().await {
            assert!(message.is_ping(), "{message:?}");
            pings += 1;
        }
    });
    assert!(waited.await.is_err(), "the socket was closed");
    assert!(pings >= 3, "{pings} pings");
    let step = json!({"type": "step", "data": {"action_type": "ANSWER", "argument": "40"}});
    let reply = socket.ask(&step).await;
    assert_eq!(reply["data"]["reward"], 1.0);
}

/// While a response is made and the next frame waits, nobody reads what the peer sends. Its time to
/// answer a ping begins with the ping.
#[tokio::test]
async fn a_peer_that_waits_longer_than_a_period_for_a_response_stays() {
    let env = EnvSettings {
        sql: SqlLimits {
            work_units: 1 << 40,
            // The session sends the step twice.
            wall_clock_seconds: 0.6 * PING_SECONDS,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    };
    let env_node = EnvNodeSettings {
        openenv: OpenEnvConfig {
            ping_seconds: PING_SECONDS,
            ..OpenEnvConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    let server = Served::start_with(env, env_node).await;
    let mut socket = server.socket("/ws").await;
    let reset = json!({"type": "reset", "data": {"question_id": "cars-1"}});
    socket.ask(&reset).await;
    let step = json!({"type": "step", "data": {"action_type": "QUERY", "argument": ENDLESS}});
    let state = json!({"type": "state"});
    socket.send(&step.to_string()).await;
    socket.send(&state.to_string()).await;
    for kind in ["observation", "state"] {
        let reply = socket.next().await;
        let is_reply = matches!(&reply, Received::Json(reply) if reply["type"] == kind);
        assert!(is_reply, "{reply:?} instead of {kind}");
    }
    let ping = timeout(HANG, socket.0.next()).await.expect("no ping");
    assert!(ping.unwrap().unwrap().is_ping());
    assert_eq!(socket.ask(&state).await["data"]["step_count"], 1);
}

/// OpenEnv's 0.10 client for tools creates a session over HTTP, attaches a socket to it, and calls
/// over HTTP.
#[tokio::test]
async fn a_session_is_shared_by_http_and_an_attached_socket() {
    let server = Served::open_env(with_sessions(1)).await;
    let (_, created) = server
        .ask("/mcp", &rpc("openenv/session/create", &json!({})))
        .await;
    let id = created["result"]["session_id"].as_str().unwrap().to_owned();
    assert!(admitted(&server).await.is_none(), "it counts");
    let path = format!("/ws?session_id={id}");
    let about = |more: Value| {
        let mut params = json!({"session_id": id});
        params
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        params
    };
    let call = about(json!({"name": "query", "arguments": {"sql": "SELECT count(*) FROM Cars"}}));

    let mut socket = server.socket(&path).await;
    let reset = json!({"type": "reset", "data": {"question_id": "cars-1", "episode_id": "E"}});
    socket.ask(&reset).await;
    let (_, reply) = server.ask("/mcp", &rpc("tools/call", &call)).await;
    assert_eq!(reply["result"]["data"], "1. 40");
    assert!(reply.get("error").is_none());
    let state = socket.ask(&json!({"type": "state"})).await;
    assert_eq!(state["data"], json!({"episode_id": "E", "step_count": 1}));

    let mut other = server.socket(&path).await;
    let taken = format!("Session {id} already has an attached WebSocket");
    assert_eq!(
        other.next().await,
        Received::Json(
            json!({"type": "error", "data": {"message": taken, "code": "SESSION_ERROR"}})
        )
    );
    assert_eq!(other.next().await, Received::Closed(1000));

    let own = socket
        .ask(&json!({"type": "mcp", "data": rpc("openenv/session/close", &about(json!({})))}))
        .await;
    assert_eq!(
        own["data"]["error"]["message"],
        "Cannot close active WebSocket-managed session via MCP method"
    );

    assert_session_outlives_its_socket(&server, socket, &path, &id, &call).await;
}

/// The session outlives the socket and can be attached to again, until it is closed.
async fn assert_session_outlives_its_socket(
    server: &Served,
    mut socket: Socket,
    path: &str,
    id: &str,
    call: &Value,
) {
    socket.send(r#"{"type":"close"}"#).await;
    assert_eq!(socket.next().await, Received::Closed(1000));
    let mut socket = server.socket(path).await;
    let state = socket.ask(&json!({"type": "state"})).await;
    assert_eq!(state["data"]["step_count"], 1);

    let (_, reply) = server
        .ask(
            "/mcp",
            &rpc("openenv/session/close", &json!({"session_id": id})),
        )
        .await;
    assert_eq!(
        reply["result"],
        json!({"session_id": id, "closed": false, "closing": true})
    );
    socket.send(r#"{"type":"close"}"#).await;
    assert_eq!(socket.next().await, Received::Closed(1000));
    let (_, reply) = server.ask("/mcp", &rpc("tools/call", call)).await;
    assert_eq!(
        reply["error"]["message"],
        format!("Unknown session_id: {id}")
    );
    admitted(server).await.expect("the session is gone");
}

#[tokio::test]
async fn a_session_without_a_socket_ends_when_closed_or_idle() {
    let config = OpenEnvConfig {
        session_idle_seconds: 0.2,
        ..with_sessions(1)
    };
    let server = Served::open_env(config).await;
    let create = rpc("openenv/session/create", &json!({}));
    let (_, created) = server.ask("/mcp", &create).await;
    let close = rpc("openenv/session/close", &created["result"]);
    let (_, closed) = server.ask("/mcp", &close).await;
    assert_eq!(closed["result"]["closed"], true);
    let (_, created) = server.ask("/mcp", &create).await;
    let list = rpc("tools/list", &created["result"]);
    assert_eq!(
        server.ask("/mcp", &list).await.1["result"]["tools"][3]["name"],
        "answer"
    );
    sleep(Duration::from_millis(300)).await;
    admitted(&server)
        .await
        .expect("the idle session is in the way");
    let unknown = &server.ask("/mcp", &list).await.1["error"]["code"];
    assert_eq!(unknown, &json!(-32602));
}

/// One thread with a queue of one gets eight slow queries at once. Those that find the queue full
/// are retried, and no client notices.
#[tokio::test]
async fn a_busy_machine_is_waited_for() {
    let env = EnvSettings {
        sql_threads: 1,
        sql_queue: 1,
        sql: SqlLimits {
            work_units: 2_000_000,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    };
    let server = Served::start_with(env, EnvNodeSettings::default()).await;
    let slow = "SELECT count(*) FROM Cars a, Cars b, Cars c, Cars d, Cars e";
    let step = json!({"type": "step", "data": {"action_type": "QUERY", "argument": slow}});
    let mut sockets = Vec::new();
    for _ in 0..8 {
        let mut socket = admitted(&server).await.unwrap();
        socket
            .ask(&json!({"type": "reset", "data": {"question_id": "cars-1"}}))
            .await;
        socket.send(&step.to_string()).await;
        sockets.push(socket);
    }
    for mut socket in sockets {
        let Received::Json(reply) = socket.next().await else {
            panic!("closed");
        };
        let observation = &reply["data"]["observation"];
        assert_eq!(observation["step_count"], 1, "{reply}");
        assert!(
            observation["error"]
                .as_str()
                .unwrap()
                .contains("units of work")
        );
    }
}
