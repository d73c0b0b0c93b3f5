//! Measures the memory of a learner whose peers send, or leave unread, what an honest one would
//! not. A process of its own, whose tests run one after the other: the system counts the memory of
//! a process.

#![expect(clippy::unwrap_used, reason = "a test's helpers may fail it")]

#[allow(dead_code, reason = "each test file uses a part")]
#[path = "it/common.rs"]
mod common;
#[path = "../../proto/tests/support/http2.rs"]
mod http2;
#[path = "../../proto/tests/support/memory.rs"]
mod memory;
#[allow(dead_code, reason = "each test file uses a part")]
#[path = "it/served.rs"]
mod served;

use std::time::Duration;

use learner::LearnerConfig;
use policy::{DecoderConfig, Model};
use prost::{
    Message as _,
    encoding::{WireType, encode_key, encode_varint},
};
use proto::v1::{Segment, Trajectory};
use tokio::{io::AsyncWriteExt, sync::Mutex};

use crate::{
    memory::{measured, peak_growth},
    served::Served,
};

const SUBMIT: &str = "/sqlenv.v1.Learner/Submit";
const SUBMIT_EVALUATION: &str = "/sqlenv.v1.Learner/SubmitEvaluation";
/// What a call takes besides its request: buffers of the connection and of the allocator.
const SLACK_BYTES: usize = 8 << 20;

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Serves a learner of a model with 16 MB of weights.
async fn serve() -> Served {
    let mut config = LearnerConfig {
        group_size: 16,
        ..LearnerConfig::default()
    };
    config.rollout.step_budget = 15;
    Served::of(model(), config).await
}

/// Returns how far the memory grows while a request is answered.
async fn growth(served: &Served, path: &str, message: Vec<u8>) -> (usize, usize) {
    let bytes = message.len();
    let call = http2::grpc_call(path, 1, &message);
    drop(message);
    let mut stream = http2::connect(served.address, 65_535).await;
    let answer = async {
        stream.write_all(&call).await.unwrap();
        http2::frame_of(&mut stream, http2::HEADERS).await;
    };
    (bytes, peak_growth(answer).await)
}

fn model() -> Model {
    common::resized_model(1, |tiny| DecoderConfig {
        hidden_size: 256,
        intermediate_size: 1024,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ..tiny
    })
}

/// Encodes the field `tag`, whose value is a message or a string of bytes.
fn field(tag: u32, value: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    encode_key(tag, WireType::LengthDelimited, &mut encoded);
    encode_varint(value.len() as u64, &mut encoded);
    encoded.extend(value);
    encoded
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_takes_no_more_than_four_times_its_bytes() {
    // Fields of the messages.
    const GROUP: u32 = 4;
    const EVALUATION: u32 = 5;
    const SEGMENTS: u32 = 2;
    const TURNS: u32 = 3;
    const COUNT: usize = 3_500_000;
    let _alone = ONE_AT_A_TIME.lock().await;
    let served = serve().await;
    let many = |tag| field(tag, &[]).repeat(COUNT);
    // As many tokens as the settings allow, each as short as it can be.
    let segment = Segment {
        tokens: vec![1; 4_096],
        mask: vec![0; 4_096],
        logprobs: vec![0.0; 4_096],
    };
    let trajectory = |member| Trajectory {
        member,
        segments: vec![segment.clone(); 16],
        ..Trajectory::default()
    };
    let short_tokens: Vec<u8> = (0..16)
        .flat_map(|member| field(GROUP, &trajectory(member).encode_to_vec()))
        .collect();
    for (what, path, message) in [
        ("short tokens", SUBMIT, short_tokens),
        ("empty turns", SUBMIT, field(GROUP, &many(TURNS))),
        ("empty segments", SUBMIT, field(GROUP, &many(SEGMENTS))),
        ("empty trajectories", SUBMIT, many(GROUP)),
        (
            "empty turns of an evaluation",
            SUBMIT_EVALUATION,
            field(EVALUATION, &many(TURNS)),
        ),
    ] {
        let (bytes, growth) = growth(&served, path, message).await;
        let times = growth as f64 / bytes as f64;
        eprintln!("{what}: {bytes} bytes on the wire take {growth} bytes, {times:.1} times");
        assert!(
            growth <= 4 * bytes + SLACK_BYTES,
            "{what}: {times:.1} times"
        );
    }
}

/// Each stream could hold several messages of 1 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_not_read_share_the_weights() {
    const STREAMS: u32 = 200;
    let _alone = ONE_AT_A_TIME.lock().await;
    let served = serve().await;
    for (what, window) in [("a large window", i32::MAX as u32), ("no window", 0)] {
        let request = served.client("").weights_request(None).encode_to_vec();
        let path = "/sqlenv.v1.Learner/Weights";
        let calls: Vec<u8> = (0..STREAMS)
            .flat_map(|number| http2::grpc_call(path, 2 * number + 1, &request))
            .collect();
        let more = (i32::MAX as u32 - 65_535).to_be_bytes();
        let mut stream = http2::connect(served.address, window).await;
        let before = measured("self", "VmRSS:");
        let more = http2::frame(http2::WINDOW_UPDATE, 0, 0, &more);
        let open = [more, calls].concat();
        stream.write_all(&open).await.unwrap();
        // Nothing is read.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let growth = measured("self", "VmRSS:").saturating_sub(before);
        let streams = STREAMS as usize;
        eprintln!(
            "{what}: {streams} streams take {growth} bytes, {} each",
            growth / streams
        );
        assert!(growth < 32 << 20, "{what}: {growth} bytes");
    }
}
