//! Tests connections, calls and requests beyond the limits of the learner's port, over real ports.

use std::{net::SocketAddr, time::Duration};

use learner::LearnerServerConfig;
use prost::Message as _;
use proto::{
    EncodedGroup, RanksClient, SnapshotAssembler,
    v1::{JoinRequest, WeightsResponse},
};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tonic::{Code, Streaming};

use crate::{
    authority::Authority,
    http2::{self, DATA, END_HEADERS, FRAME_BYTES, HEADERS, PATIENCE, PING, frame, grpc_headers},
    served::Served,
};

const JOIN: &str = "/sqlenv.v1.Learner/Join";
const SUBMIT: &str = "/sqlenv.v1.Learner/Submit";
const WEIGHTS: &str = "/sqlenv.v1.Learner/Weights";
const TRAIN: &str = "/sqlenv.v1.Ranks/Train";

async fn connect(served: &Served) -> TcpStream {
    TcpStream::connect(served.address).await.unwrap()
}

async fn assert_well(served: &Served) {
    served.client("a").join().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_are_closed_and_a_permit_is_returned() {
    let served = Served::with(LearnerServerConfig {
        max_connections: 2,
        ..LearnerServerConfig::default()
    })
    .await;
    let (first, _second) = (connect(&served).await, connect(&served).await);
    let mut third = connect(&served).await;
    assert_eq!(http2::read_to_end(&mut third).await, b"");
    drop(first);
    let mut client = served.client("a");
    while client.join().await.is_err() {}
}

/// Peers that say nothing, too little, or nothing after their hello.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_end() {
    let limits = LearnerServerConfig {
        // Enough for the others, also on a busy machine.
        header_seconds: 2.0,
        keepalive_interval_seconds: 1.0,
        keepalive_timeout_seconds: 3.0,
        ..LearnerServerConfig::default()
    };
    let authority = Authority::new();
    let tls = LearnerServerConfig {
        tls: Some(authority.tls(None)),
        ..limits.clone()
    };
    let (plain, secure) = (Served::with(limits).await, Served::with(tls).await);
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
    let served = Served::start().await;
    // It arrives, and its name is refused.
    let mut short = served.client(&"a".repeat(60 << 10));
    let refused = short.join().await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let mut long = served.client(&"a".repeat(100 << 10));
    let joined = long.join().await.unwrap_err();
    let claimed = long.claim(0).await.unwrap_err();
    let streamed = long.weights(None).await.unwrap_err();
    for status in [joined, claimed, streamed] {
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
        assert!(status.message().contains("64 KiB for others"), "{status}");
    }
    let large = EncodedGroup::new(vec![0; 1 << 20].into());
    let status = long.learner.submit(large).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    // A rank's messages are limited one by one.
    let long = proto::v1::TrainRequest {
        part: Some(proto::v1::train_request::Part::Fault("x".repeat(3 << 20))),
    };
    let mut ranks = RanksClient::new(served.transport()).max_encoding_message_size(4 << 20);
    let trained = ranks.train(tokio_stream::iter([long])).await;
    let status = trained.map(drop).unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
}

/// Begins a call that holds some 7.3 MB of the budget while its connection is open.
async fn hold(address: SocketAddr) -> TcpStream {
    const HELD: usize = 7_300_000;
    let mut stream = http2::connect(address, 65_535).await;
    let announced = [&[0][..], &(60_u32 << 20).to_be_bytes()].concat();
    let mut begun = frame(HEADERS, END_HEADERS, 1, &grpc_headers(SUBMIT));
    begun.extend(frame(DATA, 0, 1, &announced));
    for _ in 0..HELD / FRAME_BYTES {
        begun.extend(frame(DATA, 0, 1, &[0; FRAME_BYTES]));
    }
    begun.extend(frame(PING, 0, 0, &[0; 8]));
    stream.write_all(&begun).await.unwrap();
    // The answer comes when the learner's connection has read all bytes.
    http2::frame_of(&mut stream, PING).await;
    stream
}

/// Nine calls hold most of the budget. A request beyond the rest is refused, and one within it is
/// answered.
#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_budget_are_refused() {
    let served = Served::with(LearnerServerConfig {
        max_body_bytes_in_flight: (64 << 20) + 5,
        // A busy machine may need long for the bytes of all calls, whose clients answer no pings.
        body_seconds: 300.0,
        keepalive_interval_seconds: 300.0,
        ..LearnerServerConfig::default()
    })
    .await;
    let mut holders = Vec::new();
    for _ in 0..9 {
        holders.push(hold(served.address).await);
    }
    let mut client = served.client("a").learner;
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
            // The request came before a call held its bytes, and may have had that one refused.
            holders.push(hold(served.address).await);
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
    let served = Served::with(LearnerServerConfig {
        body_seconds: 2.0,
        header_seconds: 2.0,
        ..LearnerServerConfig::default()
    })
    .await;
    let mut streams = Vec::new();
    for path in [JOIN, SUBMIT, TRAIN] {
        let mut stream = http2::connect(served.address, 65_535).await;
        let begun = frame(HEADERS, END_HEADERS, 1, &grpc_headers(path));
        stream.write_all(&begun).await.unwrap();
        streams.push(stream);
    }
    for mut stream in streams {
        http2::frame_of(&mut stream, HEADERS).await;
    }
    assert_well(&served).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_streams_beyond_the_limit_are_refused() {
    let served = Served::with(LearnerServerConfig {
        max_weights_streams: 1,
        ..LearnerServerConfig::default()
    })
    .await;
    let mut client = served.client("a");
    let mut first = client.weights(None).await.unwrap();
    let received = receive(&mut first).await;
    assert!(received.as_slice() == served.learner.snapshot().body());
    let refused = client.weights(None).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(
        refused.message().contains("max_weights_streams"),
        "{refused}"
    );
    drop(first);
    while client.weights(None).await.is_err() {}
}

async fn receive(stream: &mut Streaming<WeightsResponse>) -> Vec<u8> {
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
    let served = Served::with(LearnerServerConfig {
        unread_seconds: 0.4,
        // These peers answer no pings.
        keepalive_interval_seconds: 60.0,
        ..LearnerServerConfig::default()
    })
    .await;
    let mut client = served.client("a");
    let mut waiting = client.weights(Some(0)).await.unwrap();
    let join = JoinRequest {
        actor_id: "a".to_owned(),
        identity: None,
    };
    let join = join.encode_to_vec();
    let request = client.weights_request(None).encode_to_vec();
    // No window at all, and one that ends within the response.
    for window in [0, 1_000] {
        for (path, message) in [(JOIN, &join), (WEIGHTS, &request)] {
            let mut stream = http2::connect(served.address, window).await;
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
