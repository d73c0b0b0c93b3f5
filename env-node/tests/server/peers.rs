//! Tests that peers that are slow, silent, lost or hostile affect only their own connections.

use env::EnvSettings;
use env_node::{EnvNodeSettings, OpenEnvConfig, ServerConfig};
use prost::Message as _;
use proto::v1::ListQuestionsRequest;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_request::MessageRequest,
};

use crate::{
    Served,
    common::http2::{
        DATA, END_HEADERS, HEADERS, HELLO, PATIENCE, PREFACE, RESET_STREAM, SETTINGS, frame,
        grpc_call, grpc_headers,
    },
    raw,
};

#[tokio::test]
async fn garbage_ends_its_own_connection() {
    let served = Served::start(EnvSettings::default()).await;
    let hello = |more: &[u8]| [HELLO, more].concat();
    for (what, bytes) in [
        ("noise", vec![0xfe; 4_096]),
        ("a TLS hello", vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]),
        ("no HTTP", b"EHLO node\r\n\r\n".to_vec()),
        (
            "a head without end",
            [b"GET / HTTP/1.1\r\nx: ".to_vec(), vec![b'y'; 100_000]].concat(),
        ),
        ("noise after the preface", hello(&[0xff; 64])),
        (
            "a frame beyond the limit",
            hello(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]),
        ),
        ("data of no stream", hello(&frame(DATA, 0, 7, b"data"))),
        (
            "broken headers",
            hello(&frame(HEADERS, END_HEADERS, 1, &[0xff; 40])),
        ),
        (
            "an even stream",
            hello(&frame(HEADERS, END_HEADERS, 2, &grpc_headers("/"))),
        ),
    ] {
        let mut stream = raw::connect(served.address).await;
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        raw::read_to_end(&mut stream).await;
        eprintln!("{what}: closed");
        served.assert_well().await;
    }
}

/// The server ends a connection on which many streams are opened and reset at once.
#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let served = Served::start(EnvSettings::default()).await;
    let mut stream = raw::connect(served.address).await;
    stream.write_all(HELLO).await.unwrap();
    let headers = grpc_headers("/sqlenv.v1.Env/Info");
    let flood = (0..50_000_u32).flat_map(|index| {
        let id = 2 * index + 1;
        [
            frame(HEADERS, END_HEADERS, id, &headers),
            frame(RESET_STREAM, 0, id, &[0, 0, 0, 8]),
        ]
        .concat()
    });
    let flood: Vec<u8> = flood.collect();
    let (mut reader, mut writer) = stream.into_split();
    // The server closes the connection while this is sent.
    let sending = tokio::spawn(async move {
        let _ = writer.write_all(&flood).await;
        writer
    });
    let mut received = Vec::new();
    let ended = timeout(PATIENCE, reader.read_to_end(&mut received)).await;
    let _ = ended.expect("the server did not end the connection");
    drop(sending.await.unwrap());
    served.assert_well().await;
}

/// Peers that send their first request slowly or not at all are cut off, in every protocol. Others
/// are served meanwhile.
#[tokio::test]
async fn slow_openers_are_cut_off() {
    let served = Served::with(ServerConfig {
        // Enough for the others, also on a busy machine.
        header_seconds: 2.0,
        connection_grace_seconds: 0.2,
        ..ServerConfig::default()
    })
    .await;
    let mut slow: Vec<TcpStream> = Vec::new();
    for opening in [
        &b""[..],
        b"PRI * HT",
        HELLO,
        b"GET /health HT",
        b"POST /sqlenv.v1.Env/Step HTTP/1.1\r\nhost: node\r\n",
    ] {
        for _ in 0..20 {
            let mut stream = raw::connect(served.address).await;
            stream.write_all(opening).await.unwrap();
            slow.push(stream);
        }
    }
    served.assert_well().await;
    for mut stream in slow {
        raw::read_to_end(&mut stream).await;
    }
    served.assert_well().await;
}

/// A peer that opens no flow-control window for its response loses the stream.
#[tokio::test]
async fn a_peer_that_does_not_read_loses_its_stream() {
    let mut env = EnvSettings::default();
    env.sql.wall_clock_seconds = 1.0;
    let server = ServerConfig {
        max_call_seconds: 3.0,
        ..ServerConfig::default()
    };
    let env_node = EnvNodeSettings {
        server,
        ..EnvNodeSettings::default()
    };
    let served = Served::start_with(env, env_node).await;
    let mut stream = raw::connect(served.address).await;
    let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let list = ListQuestionsRequest::default().encode_to_vec();
    let call = grpc_call("/sqlenv.v1.Env/ListQuestions", 1, &list);
    let sent = [PREFACE, &no_window, &call].concat();
    stream.write_all(&sent).await.unwrap();
    served.assert_well().await;
    raw::frame_of(&mut stream, RESET_STREAM).await;
    served.assert_well().await;
}

/// A peer that asks for much and reads none of it holds no more than the budget, and returns it
/// when it goes.
#[tokio::test]
async fn unread_responses_beyond_the_budget_are_cut() {
    const CALLS: u32 = 500;
    let small = 1 << 20;
    let env = EnvSettings {
        argument_bytes: 1 << 10,
        ..EnvSettings::default()
    };
    let env_node = EnvNodeSettings {
        server: ServerConfig {
            max_request_bytes: small,
            max_body_bytes_in_flight: small,
            ..ServerConfig::default()
        },
        openenv: OpenEnvConfig {
            message_bytes: small,
            ..OpenEnvConfig::default()
        },
        ..EnvNodeSettings::default()
    };
    let served = Served::start_with(env, env_node).await;
    let mut stream = raw::connect(served.address).await;
    let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let mut calls = [PREFACE, &no_window].concat();
    // The longest reply to a short request: the description of the service, of some 10 kB.
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let request = ServerReflectionRequest {
        message_request: Some(MessageRequest::FileContainingSymbol(
            "sqlenv.v1.Env".to_owned(),
        )),
        ..ServerReflectionRequest::default()
    };
    let request = request.encode_to_vec();
    for id in (0..CALLS).map(|call| 2 * call + 1) {
        calls.extend(grpc_call(path, id, &request));
    }
    stream.write_all(&calls).await.unwrap();
    raw::frame_of(&mut stream, RESET_STREAM).await;
    drop(stream);
    let list = async || {
        let mut client = served.client();
        client.list_questions(ListQuestionsRequest::default()).await
    };
    while list().await.is_err() {}
}

/// A peer that answers no ping is dropped, even if the network reports no error.
#[tokio::test]
async fn a_half_open_connection_is_found() {
    let served = Served::with(ServerConfig {
        keepalive_interval_seconds: 0.2,
        keepalive_timeout_seconds: 0.2,
        ..ServerConfig::default()
    })
    .await;
    let mut stream = raw::connect(served.address).await;
    stream.write_all(HELLO).await.unwrap();
    raw::read_to_end(&mut stream).await;
}

/// Headers beyond the limit are refused before the call runs.
#[tokio::test]
async fn too_many_headers_are_refused() {
    let served = Served::start(EnvSettings::default()).await;
    let long = format!("x: {}", "y".repeat(100_000));
    let response = raw::request(served.address, &["GET /health HTTP/1.1", &long], b"").await;
    assert_eq!(response.status, 431);

    let mut headers = grpc_headers("/sqlenv.v1.Env/Info");
    for _ in 0..126 {
        // x, of 120 bytes, as a literal.
        headers.extend([&[0, 1, b'x', 120][..], &[b'y'; 120]].concat());
    }
    let mut stream = raw::connect(served.address).await;
    let call = frame(HEADERS, END_HEADERS, 1, &headers);
    stream.write_all(&[HELLO, &call].concat()).await.unwrap();
    let block = raw::frame_of(&mut stream, HEADERS).await;
    const STATUS_200: u8 = 0x88;
    assert_ne!(block[0], STATUS_200);
    served.assert_well().await;
}
