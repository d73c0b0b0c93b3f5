//! Tests the `Learner` service over TCP: responses to valid and invalid calls.

use std::time::Duration;

use learner::LearnerConfig;
use metrics::set_default_local_recorder;
use proto::{
    EncodedGroup, Transport, env_client,
    v1::{
        ActorIdentity, GroupClaim, JoinRequest, SubmitVerdict, claim_response::Outcome,
        weights_response::Part,
    },
};
use tonic::Code;

use crate::{
    common::{actor, group, small_config, small_model, unread_events},
    counters::Counters,
    served::Served,
};

#[tokio::test(flavor = "multi_thread")]
async fn join_hands_over_model_and_settings() {
    let mut config = small_config();
    config.rollout.thinking = true;
    config.lease_seconds = 30;
    let served = Served::of(small_model(1), config).await;
    let mut client = served.client("a");
    let join = client.join().await.unwrap();
    assert_eq!((join.run_seed, join.policy_version), (5, 0));
    assert!(
        join.model_files
            .iter()
            .any(|file| file.name == "tokenizer.json" && !file.content.is_empty())
    );
    let rollout = join.rollout.unwrap();
    assert_eq!(
        (rollout.max_completion_tokens, rollout.max_context_tokens),
        (16, 64)
    );
    assert_eq!(rollout.sampling.unwrap().temperature, 1.0);
    assert!(rollout.thinking);
    assert_eq!(join.replay_seconds, 0, "it has no env-node");

    let env = Transport::dial("http://localhost:1").unwrap();
    let identity = ActorIdentity::default();
    served.learner.guard(identity.clone(), env_client(env));
    let request = JoinRequest {
        actor_id: "a".to_owned(),
        identity: Some(identity),
    };
    let join = client.learner.join(request).await.unwrap().into_inner();
    assert_eq!(join.replay_seconds, 300, "longer than a short lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_counted_once_and_faulty_ones_refused() {
    let served = Served::start().await;
    let mut client = served.client("a");
    let claim = client.claim_group().await;
    assert_eq!(
        (
            claim.group_index,
            claim.group_size,
            claim.min_policy_version
        ),
        (0, 4, 0)
    );
    assert!(
        matches!(client.claim(3).await, Ok(Outcome::Wait(_))),
        "a version that does not exist yet"
    );

    let refused = client.claim_group().await;
    let mut contradictory = group(&refused, 0);
    contradictory[1].segments[0].mask[4] ^= 1;
    let fault = client.submit(&refused, contradictory).await.unwrap_err();
    assert_eq!(fault.code(), Code::InvalidArgument);
    assert!(
        fault
            .message()
            .contains("group 1, member 1: segment 0: the mask of token 4 is"),
        "{fault}"
    );

    let short = group(&refused, 0)[..2].to_vec();
    let fault = client.submit(&refused, short).await.unwrap_err();
    assert_eq!(fault.code(), Code::InvalidArgument);
    assert!(
        fault.message().contains("2 trajectories, expected 4"),
        "{fault}"
    );

    let unknown = GroupClaim {
        group_index: 1_000,
        ..claim.clone()
    };
    let verdict = client.submit(&unknown, group(&claim, 0)).await.unwrap();
    assert_eq!(
        verdict,
        SubmitVerdict::Stale,
        "not known to this learner, as after its restart"
    );
    let verdict = client.submit(&claim, group(&claim, 3)).await.unwrap();
    assert_eq!(
        verdict,
        SubmitVerdict::Stale,
        "sampled with a version that this learner has not made"
    );

    let mut other = served.client("b");
    let again = other.claim_group().await;
    assert_eq!(again.group_index, claim.group_index, "handed out again");
    let verdict = other.submit(&again, group(&again, 0)).await.unwrap();
    assert_eq!(verdict, SubmitVerdict::Accepted);
    let verdict = other.submit(&again, group(&again, 0)).await.unwrap();
    assert_eq!(verdict, SubmitVerdict::Duplicate);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_equal_submissions_at_once_one_is_accepted() {
    let served = Served::start().await;
    let mut client = served.client("a");
    let claim = client.claim_group().await;
    let submissions = (0..64).map(|_| {
        let (mut client, claim) = (client.clone(), claim.clone());
        tokio::spawn(async move { client.submit(&claim, group(&claim, 0)).await.unwrap() })
    });
    let mut verdicts = Vec::new();
    for submission in submissions.collect::<Vec<_>>() {
        verdicts.push(submission.await.unwrap());
    }
    let accepted = |verdict: &&SubmitVerdict| **verdict == SubmitVerdict::Accepted;
    assert_eq!(verdicts.iter().filter(accepted).count(), 1);
    let duplicate = |verdict: &&SubmitVerdict| **verdict == SubmitVerdict::Duplicate;
    assert_eq!(verdicts.iter().filter(duplicate).count(), 63);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_stream_in_whole_and_newest_only() {
    let served = Served::start().await;
    let mut client = served.client("a");
    let mut stream = client.weights(None).await.unwrap();
    let mut body = Vec::new();
    let Some(Part::Header(header)) = stream.message().await.unwrap().unwrap().part else {
        panic!("a snapshot begins with its header");
    };
    while (body.len() as u64) < header.size_bytes {
        let Some(Part::Chunk(chunk)) = stream.message().await.unwrap().unwrap().part else {
            panic!("a chunk follows");
        };
        assert_eq!(chunk.crc32, crc32fast::hash(&chunk.data));
        assert_eq!(chunk.offset, body.len() as u64);
        body.extend(chunk.data);
    }
    assert_eq!(header.policy_version, 0);
    assert!(body == served.learner.snapshot().body());

    tokio::spawn(actor(served.learner.clone(), "b".to_owned()));
    served
        .learner
        .train(unread_events(), std::future::pending())
        .await
        .unwrap();
    assert!(
        matches!(client.claim(4).await, Ok(Outcome::Wait(_))),
        "the stream says that the run is over, a claim does not"
    );
    let mut late = served.client("late").weights(Some(1)).await.unwrap();
    let first = late.message().await.unwrap().unwrap().part;
    assert!(matches!(first, Some(Part::Header(header)) if header.policy_version == 4));
    // The older stream ends with it, too, and so does an actor in the middle of a group.
    let mut last = None;
    while let Some(message) = stream.message().await.unwrap() {
        last = message.part;
    }
    assert!(matches!(last, Some(Part::Finished(_))), "{last:?}");
}

/// Long poll: a claim without work is held until something changes, and costs no further calls.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_waits_for_work() {
    let served = Served::start().await;
    let mut client = served.client("a");
    let claims = [
        client.claim_group().await,
        client.claim_group().await,
        client.claim_group().await,
    ];
    let mut waiting = served.client("waiting");
    let waiting = tokio::spawn(async move { waiting.claim(0).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished(), "all that is needed is leased");
    // A zero-variance group is dropped, which makes room for another.
    let mut dull = group(&claims[1], 0);
    for trajectory in &mut dull {
        trajectory.clone_from(&group(&claims[1], 0)[0]);
    }
    for (member, trajectory) in dull.iter_mut().enumerate() {
        trajectory.member = member as u32;
    }
    let verdict = client.submit(&claims[1], dull).await.unwrap();
    assert_eq!(verdict, SubmitVerdict::Accepted);
    let woken = waiting.await.unwrap();
    assert!(
        matches!(&woken, Ok(Outcome::Group(claim)) if claim.group_index == 3),
        "{woken:?}"
    );
}

/// The weights stream tells that an actor is gone, long before its leases expire. The recorder sees
/// one thread only.
#[tokio::test]
async fn the_groups_of_an_actor_that_is_gone_are_handed_out_again() {
    let counters = Counters::default();
    let _recorder = set_default_local_recorder(&counters);
    let leases = || f64::from_bits(counters.of("learner_leases")[""]);
    let config = LearnerConfig {
        lease_seconds: 3_000,
        ..small_config()
    };
    let served = Served::of(small_model(1), config).await;
    let mut client = served.client("a");
    let stream = client.weights(Some(0)).await.unwrap();
    for _ in 0..3 {
        client.claim_group().await;
    }
    let mut waiting = served.client("waiting");
    assert!(
        matches!(waiting.claim(0).await, Ok(Outcome::Wait(_))),
        "the stream is open, and all that is needed is leased"
    );
    assert_eq!(leases(), 3.0);
    drop(stream);
    // Nobody calls meanwhile.
    let reported = async {
        while leases() > 0.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reported = tokio::time::timeout(Duration::from_secs(60), reported).await;
    reported.expect("the metrics say that the actor still has its groups");
    assert_eq!(waiting.claim_group().await.group_index, 0);
}

/// The server ends as soon as its connections have what they need: no fixed pause, and no claim
/// that holds it up.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waits_does_not_hold_up_a_shutdown() {
    let served = Served::start().await;
    let mut client = served.client("a");
    for _ in 0..3 {
        client.claim_group().await;
    }
    let mut waiting = served.client("waiting");
    let waiting = tokio::spawn(async move { waiting.claim(0).await });
    let has_claimed = || {
        let (actors, _) = served.learner.observe_actors();
        actors.iter().any(|actor| actor.id == "waiting")
    };
    while !has_claimed() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    served.stop.send(()).unwrap();
    // Less than a claim waits, and than the server waits for its connections.
    let ended = tokio::time::timeout(Duration::from_secs(12), served.ended).await;
    ended.unwrap().unwrap();
    assert!(matches!(waiting.await.unwrap(), Ok(Outcome::Wait(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_over_the_limit_is_refused() {
    let served = Served::start().await;
    let mut client = served.client("a");
    let large = EncodedGroup::new(vec![0; proto::MAX_GROUP_BYTES + 1].into());
    let learner = client.learner.clone();
    let mut learner = learner.max_encoding_message_size(proto::MAX_MESSAGE_BYTES);
    let fault = learner.submit(large).await.unwrap_err();
    assert_eq!(fault.code(), Code::InvalidArgument, "{fault}");
    client.claim_group().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_open_streams() {
    let served = Served::start().await;
    let mut client = served.client("a");
    let mut stream = client.weights(Some(0)).await.unwrap();
    served.stop.send(()).unwrap();
    assert!(
        matches!(stream.message().await, Ok(None) | Err(_)),
        "the run is not over: the stream just ends"
    );
    drop((stream, client));
    served.ended.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn health_answers_for_the_service() {
    let served = Served::start().await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(served.transport());
    let request = tonic_health::pb::HealthCheckRequest {
        service: "sqlenv.v1.Learner".to_owned(),
    };
    let status = health.check(request.clone()).await.unwrap();
    assert_eq!(
        status.into_inner().status(),
        tonic_health::pb::health_check_response::ServingStatus::Serving
    );
    let watched = health.watch(request).await.unwrap_err();
    assert_eq!(watched.code(), Code::Unimplemented, "{watched}");
}
