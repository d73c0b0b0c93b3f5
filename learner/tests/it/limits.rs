//! Tests connections, calls and requests beyond the limits of the learner's port, over real ports.

use std::{net::SocketAddr, time::Duration};

use learner::LearnerServerConfig;
use prost::Message as _;
use proto::{
    EncodedGroup, LearnerClient, RanksClient, SnapshotAssembler, Transport,
    v1::{ClaimRequest, JoinRequest, WeightsRequest},
};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tonic::{Code, Status, Streaming};

use crate::{
    authority::Authority,
    http2::{
        self, DATA, END_HEADERS, FRAME_BYTES, HEADERS, PATIENCE, PING, RESET_STREAM, frame,
        grpc_headers,
    },
    security::Served,
};

const JOIN: &str = "/sqlenv.v1.Learner/Join";
const SUBMIT: &str = "/sqlenv.v1.Learner/Submit";
const WEIGHTS: &str = "/sqlenv.v1.Learner/Weights";
const TRAIN: &str = "/sqlenv.v1.Ranks/Train";

fn client(served: &Served) -> LearnerClient {
    LearnerClient::new(Transport::dial(&served.address("http")).unwrap())
}

fn address(served: &Served) -> SocketAddr {
    ([127, 0, 0, 1], served.port).into()
}

async fn connect(served: &Served) -> TcpStream {
    TcpStream::connect(address(served)).await.unwrap()
}

async fn join(client: &mut LearnerClient, actor_id: String) -> Result<(), Status> {
    client.join(join_request(actor_id)).await.map(drop)
}

fn join_request(actor_id: String) -> JoinRequest {
    JoinRequest {
        actor_id,
        identity: None,
    }
}

async fn assert_well(served: &Served) {
    join(&mut client(served), "a".to_owned()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_are_closed_and_a_permit_is_returned() {
    let served = Served::start(&LearnerServerConfig {
        max_connections: 2,
        ..LearnerServerConfig::default()
    })
    .await;
    let (first, _second) = (connect(&served).await, connect(&served).await);
    let mut third = connect(&served).await;
    assert_eq!(http2::read_to_end(&mut third).await, b"");
    drop(first);
    let mut client = client(&served);
    while join(&mut client, "a".to_owned()).await.is_err() {}
}

/// Peers that say nothing, too little, or nothing after their hello.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_end() {
    let limits = LearnerServerConfig {
        header_seconds: 0.5,
        keepalive_interval_seconds: 0.3,
        keepalive_timeout_seconds: 0.3,
        ..LearnerServerConfig::default()
    };
    let authority = Authority::new();
    let tls = LearnerServerConfig {
        tls: Some(authority.tls(None)),
        ..limits.clone()
    };
    let (plain, secure) = (Served::start(&limits).await, Served::start(&tls).await);
    let mut silent = Vec::new();
    for (served, opening) in [
        (&plain, &b""[..]),
        (&plain, b"PRI * HT"),
        (&plain, http2::HELLO),
        (&plain, b"GET / HTTP/1.1\r\n\r\n"),
        (&secure, b""),
        (&secure, b"\x16\x03\x01"),
    ] {
        let mut stream = connect(served).await;
        stream.write_all(opening).await.unwrap();
        silent.push(stream);
    }
    assert_well(&plain).await;
    for mut stream in silent {
        http2::read_to_end(&mut stream).await;
    }
    assert_well(&plain).await;
}

/// Only submissions may be large.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_as_long_as_its_method_allows() {
    let served = Served::start(&LearnerServerConfig::default()).await;
    let mut client = client(&served);
    // It arrives, and its name is refused.
    let short = join(&mut client, "a".repeat(60 << 10)).await.unwrap_err();
    assert_eq!(short.code(), Code::InvalidArgument, "{short}");
    let long = || "a".repeat(100 << 10);
    let joined = join(&mut client, long()).await.unwrap_err();
    let claim = ClaimRequest {
        actor_id: long(),
        ..ClaimRequest::default()
    };
    let claimed = client.claim(claim).await.unwrap_err();
    let weights = WeightsRequest {
        actor_id: long(),
        ..WeightsRequest::default()
    };
    let streamed = client.weights(weights).await.map(drop).unwrap_err();
    for status in [joined, claimed, streamed] {
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
        assert!(status.message().contains("64 KiB for others"), "{status}");
    }
    let submitted = client.submit(EncodedGroup::new(vec![0; 1 << 20].into()));
    let status = submitted.await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    // A rank's messages are limited one by one.
    let transport = Transport::dial(&served.address("http")).unwrap();
    let long = proto::v1::TrainRequest {
        part: Some(proto::v1::train_request::Part::Fault("x".repeat(3 << 20))),
    };
    let mut ranks = RanksClient::new(transport).max_encoding_message_size(4 << 20);
    let trained = ranks.train(tokio_stream::iter([long])).await;
    let status = trained.map(drop).unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
}

/// Nine calls hold most of the budget. A request beyond the rest is refused, and one within it is
/// answered.
#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_budget_are_refused() {
    const HELD: usize = 7_300_000;
    let served = Served::start(&LearnerServerConfig {
        max_body_bytes_in_flight: (64 << 20) + 5,
        // A busy machine may need long for the bytes of all calls, whose clients answer no pings.
        body_seconds: 300.0,
        keepalive_interval_seconds: 300.0,
        ..LearnerServerConfig::default()
    })
    .await;
    let mut holders = Vec::new();
    for _ in 0..9 {
        let mut stream = http2::connect(address(&served), 65_535).await;
        let announced = [&[0][..], &(60_u32 << 20).to_be_bytes()].concat();
        let mut begun = frame(HEADERS, END_HEADERS, 1, &grpc_headers(SUBMIT));
        begun.extend(frame(DATA, 0, 1, &announced));
        for _ in 0..HELD / FRAME_BYTES {
            begun.extend(frame(DATA, 0, 1, &[0; FRAME_BYTES]));
        }
        begun.extend(frame(PING, 0, 0, &[0; 8]));
        stream.write_all(&begun).await.unwrap();
        // The answer comes when the learner's connection has read all bytes. A request that took
        // what they need would have a holder refused.
        http2::frame_of(&mut stream, PING).await;
        holders.push(stream);
    }
    let mut client = client(&served);
    let mut submit = async || {
        let submitted = client.submit(EncodedGroup::new(vec![0; 3 << 20].into()));
        submitted.await.unwrap_err()
    };
    let refused = async {
        loop {
            let status = submit().await;
            if status.code() != Code::InvalidArgument {
                return status;
            }
        }
    };
    let refused = timeout(PATIENCE, refused).await.expect("none is refused");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(
        refused.message().contains("max_body_bytes_in_flight"),
        "{refused}"
    );
    assert_well(&served).await;
    drop(holders);
    let answered = async { while submit().await.code() != Code::InvalidArgument {} };
    timeout(PATIENCE, answered).await.expect("all are refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_does_not_arrive_is_refused() {
    let served = Served::start(&LearnerServerConfig {
        body_seconds: 0.3,
        header_seconds: 0.3,
        ..LearnerServerConfig::default()
    })
    .await;
    for path in [JOIN, SUBMIT, TRAIN] {
        let mut stream = http2::connect(address(&served), 65_535).await;
        let begun = frame(HEADERS, END_HEADERS, 1, &grpc_headers(path));
        stream.write_all(&begun).await.unwrap();
        http2::frame_of(&mut stream, HEADERS).await;
    }
    assert_well(&served).await;
}

fn weights(served: &Served, after_version: Option<u64>) -> WeightsRequest {
    WeightsRequest {
        actor_id: "a".to_owned(),
        after_version,
        run_id: served.learner.run_id().to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_streams_beyond_the_limit_are_refused() {
    let served = Served::start(&LearnerServerConfig {
        max_weights_streams: 1,
        ..LearnerServerConfig::default()
    })
    .await;
    let mut client = client(&served);
    let request = weights(&served, None);
    let mut first = client.weights(request.clone()).await.unwrap().into_inner();
    let received = receive(&mut first).await;
    assert!(received.as_slice() == served.learner.snapshot().body());
    let refused = client.weights(request.clone()).await.map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(
        refused.message().contains("max_weights_streams"),
        "{refused}"
    );
    drop(first);
    while client.weights(request.clone()).await.is_err() {}
}

async fn receive(stream: &mut Streaming<proto::v1::WeightsResponse>) -> Vec<u8> {
    let mut assembler = SnapshotAssembler::default();
    loop {
        let message = stream.message().await.unwrap().unwrap();
        if let Some(snapshot) = assembler.push(message).unwrap() {
            return snapshot.body().to_vec();
        }
    }
}

/// A peer that leaves a response unread loses its connection, and one that waits for the next
/// weights does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_not_read_ends() {
    let served = Served::start(&LearnerServerConfig {
        unread_seconds: 0.4,
        // These peers answer no pings.
        keepalive_interval_seconds: 60.0,
        ..LearnerServerConfig::default()
    })
    .await;
    let mut waiting = client(&served);
    let mut waiting = waiting
        .weights(weights(&served, Some(0)))
        .await
        .unwrap()
        .into_inner();
    let join = join_request("a".to_owned()).encode_to_vec();
    let request = weights(&served, None).encode_to_vec();
    // No window at all, and one that ends within the response.
    for window in [0, 1_000] {
        for (path, message) in [(JOIN, &join), (WEIGHTS, &request)] {
            let mut stream = http2::connect(address(&served), window).await;
            let call = http2::grpc_call(path, 1, message);
            stream.write_all(&call).await.unwrap();
            http2::read_to_end(&mut stream).await;
        }
    }
    let ended = timeout(Duration::from_secs(1), waiting.message()).await;
    assert!(
        ended.is_err(),
        "a stream with nothing to send ended: {ended:?}"
    );
}

/// Streams that are opened and reset at once end their connection.
#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_end_the_connection() {
    let served = Served::start(&LearnerServerConfig::default()).await;
    let mut stream = connect(&served).await;
    stream.write_all(http2::HELLO).await.unwrap();
    let headers = grpc_headers(JOIN);
    let one = |index: u32| {
        let id = 2 * index + 1;
        let opened = frame(HEADERS, END_HEADERS, id, &headers);
        [opened, frame(RESET_STREAM, 0, id, &[0, 0, 0, 8])].concat()
    };
    let flood: Vec<u8> = (0..50_000).flat_map(one).collect();
    let (mut reader, mut writer) = stream.into_split();
    // The server closes the connection while this is sent.
    let sending = tokio::spawn(async move {
        let _ = writer.write_all(&flood).await;
        writer
    });
    let mut received = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut received);
    let _ = timeout(PATIENCE, read)
        .await
        .expect("the connection goes on");
    drop(sending.await.unwrap());
    assert_well(&served).await;
}
