//! Tests the streams between ranks, and rank 0 against ranks that lie.

use std::time::Instant;

use candle_core::DType;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};

use super::*;

/// Creates both ends of a stream within this process.
fn in_process(rank: usize, timeout: Duration) -> (RankConnection, LeaderConnection) {
    let (to_rank, from_leader) = mpsc::channel(DEPTH);
    let (to_leader, from_rank) = mpsc::channel(DEPTH);
    let from_rank = Box::pin(ReceiverStream::new(from_rank).map(Ok));
    let from_leader = Box::pin(ReceiverStream::new(from_leader).map(Ok));
    let mut other = RankConnection::new(to_rank, from_rank, timeout, Handle::current());
    other.rank = rank;
    let leader = LeaderConnection::new(to_leader, from_leader, Handle::current());
    (other, leader)
}

/// A parameter whose gradient is a chunk and a half.
fn parameter() -> Tensor {
    Tensor::zeros(3 << 17, DType::F32, &candle_core::Device::Cpu).unwrap()
}

fn gradient(size_bytes: u64, offset: usize, data: &[u8]) -> train_request::Part {
    train_request::Part::Gradient(Chunk {
        name: "p".to_owned(),
        offset: offset as u64,
        size_bytes,
        data: Bytes::copy_from_slice(data),
    })
}

/// Returns what rank 0 says of a rank that sends `parts` in place of a gradient, with a pause after
/// each, and after how long.
async fn fault_of(parts: Vec<train_request::Part>, pause: Duration) -> (String, Duration) {
    let (mut other, mut member) = in_process(2, Duration::from_secs(1));
    let sending = tokio::task::spawn_blocking(move || {
        let send = |part| {
            std::thread::sleep(pause);
            member.send(part)
        };
        // Rank 0 may give up before everything is sent.
        let _ = parts.into_iter().try_for_each(send);
        member
    });
    let receiving = tokio::task::spawn_blocking(move || {
        let began: Instant = now();
        let fault = other.receive_gradient("p", &parameter()).unwrap_err();
        (fault.to_string(), now() - began)
    });
    let told = receiving.await.unwrap();
    sending.await.unwrap();
    told
}

/// Each message comes in time, but all of them take far longer than a step may.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_sends_little_by_little_has_one_deadline() {
    let parts = (0..200).map(|at| gradient(3 << 19, at, b"x")).collect();
    let (fault, took) = fault_of(parts, Duration::from_millis(200)).await;
    assert!(
        fault.starts_with("rank 2 of the run is silent: rank 0 has waited 1 s in this step"),
        "{fault}"
    );
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_model_does_not_need_is_refused_at_once() {
    let size = 3 << 19;
    for (parts, expected) in [
        (
            vec![gradient(1 << 40, 0, b"x")],
            "announced 1099511627776 bytes of p, which has 1572864",
        ),
        (
            vec![gradient(size, 0, b"x"), gradient(1 << 40, 1, b"x")],
            "announced 1099511627776 bytes",
        ),
        (vec![gradient(size, 0, b"")], "a chunk of p without data"),
    ] {
        let (fault, _) = fault_of(parts, Duration::ZERO).await;
        let fault = fault.strip_prefix("rank 2 of the run ").unwrap();
        assert!(fault.contains(expected), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_are_those_of_the_share() {
    let sent = |numbers: &[u64]| {
        let encode = |&micro_batch: &u64| {
            let statistics = MicroBatchStatistics {
                micro_batch,
                ..MicroBatchStatistics::default()
            };
            statistics.encode_to_vec()
        };
        let micro_batches = numbers.iter().map(encode).collect();
        train_request::Part::Statistics(proto::v1::RankStatistics { micro_batches })
    };
    let received = async |numbers: &[u64]| {
        let (mut other, mut member) = in_process(2, Duration::from_secs(9));
        other.share = vec![1, 3];
        let part = sent(numbers);
        let both = move || {
            member.send(part).unwrap();
            other
                .receive_statistics()
                .map_err(|fault| fault.to_string())
        };
        tokio::task::spawn_blocking(both).await.unwrap()
    };
    assert_eq!(received(&[1, 3]).await.unwrap().len(), 2);
    let fault = received(&[1, 2]).await.unwrap_err();
    assert!(fault.contains("statistics of another share"), "{fault}");
    let fault = received(&[0; 9_999]).await.unwrap_err();
    assert!(
        fault.contains("9999 micro-batches; its share has 2"),
        "{fault}"
    );
}

/// Asserts that rank 0 soon finds that a rank reads nothing more, whatever it sends.
async fn assert_is_found_gone(sent: Incoming<TrainRequest>) {
    let (to_rank, gone) = mpsc::channel(DEPTH);
    drop(gone);
    let timeout = Duration::from_secs(60);
    let mut other = RankConnection::new(to_rank, sent, timeout, Handle::current());
    let sending = move || {
        let began: Instant = now();
        let fault = other
            .send_file("base", &Bytes::from_static(b"x"))
            .unwrap_err();
        (fault.to_string(), now() - began)
    };
    let (fault, took) = tokio::task::spawn_blocking(sending).await.unwrap();
    assert!(fault.contains("is gone"), "{fault}");
    assert!(took < Duration::from_secs(9), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_does_not_hide_that_a_rank_is_gone() {
    let part = Some(train_request::Part::Digest(proto::v1::RankDigest::default()));
    let flood = std::iter::repeat_with(move || Ok(TrainRequest { part: part.clone() }));
    assert_is_found_gone(Box::pin(tokio_stream::iter(flood))).await;
}

/// It does not end its own side of the stream, on which its reason might still come.
#[tokio::test(flavor = "multi_thread")]
async fn silence_does_not_hide_that_a_rank_is_gone() {
    assert_is_found_gone(Box::pin(tokio_stream::pending())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_gradients_arrive_whole_and_under_their_names() {
    let (mut rank, mut leader) = in_process(1, Duration::from_secs(9));
    let bytes: Bytes = (0..3 << 20).map(|i| (i % 251) as u8).collect();
    let sent = bytes.clone();
    let sending = tokio::task::spawn_blocking(move || {
        for name in ["a", "b", "a"] {
            rank.send_file(name, &sent).unwrap();
        }
    });
    let receiving = tokio::task::spawn_blocking(move || {
        assert_eq!(leader.receive_bytes("a", None).unwrap(), bytes);
        assert_eq!(leader.receive_bytes("b", None).unwrap(), bytes);
        let fault = leader.receive_bytes("b", None).unwrap_err().to_string();
        assert!(fault.contains("sent \"a\" in place of b"), "{fault}");
        let fault = leader.receive_bytes("a", None).unwrap_err().to_string();
        assert!(fault.contains("byte 1048576 in place of byte 0"), "{fault}");
        // Kept until all is sent.
        leader
    });
    sending.await.unwrap();
    receiving.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_rank_and_one_that_is_gone_are_named() {
    let (mut other, member) = in_process(3, Duration::from_secs(1));
    tokio::task::spawn_blocking(move || {
        let fault = other.receive().unwrap_err().to_string();
        assert!(
            fault.starts_with("rank 3 of the run is silent: rank 0 has waited 1 s"),
            "{fault}"
        );
        drop(member);
        let fault = other.receive().unwrap_err().to_string();
        assert!(fault.starts_with("rank 3 of the run is gone"), "{fault}");
    })
    .await
    .unwrap();
}
