//! Tests the `Learner` service over TCP: responses to valid and invalid calls.

use std::time::Duration;

use crate::common::{actor, group, open, small_config, unread_events};
use learner::{Learner, LearnerConfig, LearnerServerConfig, ServerCredentials, serve};
use proto::{
    EncodedGroup, LearnerClient, Transport,
    v1::{
        ClaimRequest, GroupClaim, JoinRequest, SubmitRequest, SubmitVerdict, Trajectory,
        WeightsRequest, claim_response::Outcome, weights_response::Part,
    },
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tonic::Code;

struct Server {
    learner: Learner,
    client: LearnerClient,
    address: String,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Server {
    async fn start() -> Self {
        Self::start_with(small_config()).await
    }

    async fn start_with(config: LearnerConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let learner = open(config, folder.path()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let credentials = ServerCredentials::open(&LearnerServerConfig::default()).unwrap();
        let serving = serve(listener, learner.clone(), credentials, async {
            stopped.await.unwrap_or(());
        });
        let ended = tokio::spawn(serving);
        let client = LearnerClient::new(Transport::dial(&address).unwrap());
        Self {
            learner,
            client,
            address,
            stop,
            ended,
            _folder: folder,
        }
    }

    async fn claim(&mut self, policy_version: u64) -> Outcome {
        let request = ClaimRequest {
            actor_id: "a".to_owned(),
            policy_version,
            run_id: self.learner.run_id().to_owned(),
            ..ClaimRequest::default()
        };
        self.client
            .claim(request)
            .await
            .unwrap()
            .into_inner()
            .outcome
            .unwrap()
    }

    async fn submit(
        &mut self,
        claim: &GroupClaim,
        trajectories: Vec<Trajectory>,
    ) -> Result<SubmitVerdict, tonic::Status> {
        let GroupClaim {
            group_index,
            lease_id,
            ..
        } = *claim;
        let request = SubmitRequest {
            actor_id: "a".to_owned(),
            group_index,
            lease_id,
            trajectories,
            run_id: self.learner.run_id().to_owned(),
        };
        Ok(self
            .client
            .submit(EncodedGroup::from(&request))
            .await?
            .into_inner()
            .verdict())
    }
}

fn claimed(outcome: Outcome) -> GroupClaim {
    match outcome {
        Outcome::Group(claim) => claim,
        other => panic!("expected a group, got {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn join_hands_over_model_and_settings() {
    let mut config = small_config();
    config.rollout.thinking = true;
    let mut server = Server::start_with(config).await;
    let request = JoinRequest {
        actor_id: "a".to_owned(),
        identity: None,
    };
    let join = server.client.join(request).await.unwrap().into_inner();
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
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_counted_once_and_faulty_ones_refused() {
    let mut server = Server::start().await;
    let claim = claimed(server.claim(0).await);
    assert_eq!(
        (
            claim.group_index,
            claim.group_size,
            claim.min_policy_version
        ),
        (0, 4, 0)
    );
    assert!(
        matches!(server.claim(3).await, Outcome::Wait(_)),
        "a version that does not exist yet"
    );

    let refused = claimed(server.claim(0).await);
    let mut contradictory = group(&refused, 0);
    contradictory[1].segments[0].mask[4] ^= 1;
    let fault = server.submit(&refused, contradictory).await.unwrap_err();
    assert_eq!(fault.code(), Code::InvalidArgument);
    assert!(
        fault
            .message()
            .contains("group 1, member 1: segment 0: the mask of token 4 is"),
        "{fault}"
    );

    let short = group(&refused, 0)[..2].to_vec();
    let fault = server.submit(&refused, short).await.unwrap_err();
    assert_eq!(fault.code(), Code::InvalidArgument);
    assert!(
        fault.message().contains("2 trajectories, expected 4"),
        "{fault}"
    );

    let unknown = GroupClaim {
        group_index: 1_000,
        ..claim.clone()
    };
    let verdict = server.submit(&unknown, group(&claim, 0)).await.unwrap();
    assert_eq!(
        verdict,
        SubmitVerdict::Stale,
        "not known to this learner, as after its restart"
    );
    let verdict = server.submit(&claim, group(&claim, 3)).await.unwrap();
    assert_eq!(
        verdict,
        SubmitVerdict::Stale,
        "sampled with a version that this learner has not made"
    );

    let verdict = server.submit(&claim, group(&claim, 0)).await.unwrap();
    assert_eq!(verdict, SubmitVerdict::Accepted);
    let verdict = server.submit(&claim, group(&claim, 0)).await.unwrap();
    assert_eq!(verdict, SubmitVerdict::Duplicate);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_equal_submissions_at_once_one_is_accepted() {
    let mut server = Server::start().await;
    let claim = claimed(server.claim(0).await);
    let request = EncodedGroup::from(&SubmitRequest {
        actor_id: "a".to_owned(),
        group_index: claim.group_index,
        lease_id: claim.lease_id,
        trajectories: group(&claim, 0),
        run_id: server.learner.run_id().to_owned(),
    });
    let submissions = (0..64).map(|_| {
        let (mut client, request) = (server.client.clone(), request.clone());
        tokio::spawn(async move { client.submit(request).await.unwrap().into_inner().verdict() })
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
    let mut server = Server::start().await;
    let request = WeightsRequest {
        actor_id: "a".to_owned(),
        after_version: None,
        run_id: server.learner.run_id().to_owned(),
    };
    let mut stream = server.client.weights(request).await.unwrap().into_inner();
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
    assert!(body == server.learner.snapshot().body());

    tokio::spawn(actor(server.learner.clone(), "b".to_owned()));
    server
        .learner
        .train(unread_events(), std::future::pending())
        .await
        .unwrap();
    assert!(
        matches!(server.claim(4).await, Outcome::Wait(_)),
        "the stream says that the run is over, a claim does not"
    );
    let request = WeightsRequest {
        actor_id: "late".to_owned(),
        after_version: Some(1),
        run_id: server.learner.run_id().to_owned(),
    };
    let mut late = server.client.weights(request).await.unwrap().into_inner();
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
    let mut server = Server::start().await;
    let claims = [
        claimed(server.claim(0).await),
        claimed(server.claim(0).await),
        claimed(server.claim(0).await),
    ];
    let mut client = server.client.clone();
    let request = ClaimRequest {
        actor_id: "waiting".to_owned(),
        run_id: server.learner.run_id().to_owned(),
        ..ClaimRequest::default()
    };
    let waiting = tokio::spawn(async move { client.claim(request).await });
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
    let verdict = server.submit(&claims[1], dull).await.unwrap();
    assert_eq!(verdict, SubmitVerdict::Accepted);
    let woken = waiting.await.unwrap().unwrap().into_inner();
    assert_eq!(claimed(woken.outcome.unwrap()).group_index, 3);
}

/// The weights stream tells that an actor is gone, long before its leases expire.
#[tokio::test(flavor = "multi_thread")]
async fn the_groups_of_an_actor_that_is_gone_are_handed_out_again() {
    let mut server = Server::start_with(LearnerConfig {
        lease_seconds: 3_000,
        ..small_config()
    })
    .await;
    let request = WeightsRequest {
        actor_id: "a".to_owned(),
        after_version: Some(0),
        run_id: server.learner.run_id().to_owned(),
    };
    let stream = server.client.weights(request).await.unwrap();
    for _ in 0..3 {
        claimed(server.claim(0).await);
    }
    let request = ClaimRequest {
        actor_id: "waiting".to_owned(),
        run_id: server.learner.run_id().to_owned(),
        ..ClaimRequest::default()
    };
    let mut client = server.client.clone();
    let early = client.claim(request.clone()).await.unwrap().into_inner();
    assert!(
        matches!(early.outcome, Some(Outcome::Wait(_))),
        "the stream is open, and all that is needed is leased"
    );
    drop(stream);
    let response = client.claim(request).await.unwrap().into_inner();
    assert_eq!(claimed(response.outcome.unwrap()).group_index, 0);
}

/// The server ends as soon as its connections have what they need: no fixed pause, and no claim
/// that holds it up.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waits_does_not_hold_up_a_shutdown() {
    let mut server = Server::start().await;
    for _ in 0..3 {
        claimed(server.claim(0).await);
    }
    let mut client = server.client.clone();
    let request = ClaimRequest {
        actor_id: "waiting".to_owned(),
        run_id: server.learner.run_id().to_owned(),
        ..ClaimRequest::default()
    };
    let waiting = tokio::spawn(async move { client.claim(request).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop.send(()).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(3), server.ended).await;
    ended.unwrap().unwrap();
    let response = waiting.await.unwrap().unwrap().into_inner();
    assert!(matches!(response.outcome, Some(Outcome::Wait(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_over_the_limit_is_refused() {
    let mut server = Server::start().await;
    let large = EncodedGroup::new(vec![0; proto::MAX_GROUP_BYTES + 1].into());
    let client = server.client.clone();
    let mut client = client.max_encoding_message_size(proto::MAX_MESSAGE_BYTES);
    let fault = client.submit(large).await.unwrap_err();
    assert_eq!(fault.code(), Code::InvalidArgument, "{fault}");
    assert!(matches!(server.claim(0).await, Outcome::Group(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_open_streams() {
    let mut server = Server::start().await;
    let request = WeightsRequest {
        actor_id: "a".to_owned(),
        after_version: Some(0),
        run_id: server.learner.run_id().to_owned(),
    };
    let mut stream = server.client.weights(request).await.unwrap().into_inner();
    server.stop.send(()).unwrap();
    assert!(
        matches!(stream.message().await, Ok(None) | Err(_)),
        "the run is not over: the stream just ends"
    );
    drop((stream, server.client));
    server.ended.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn health_answers_for_the_service() {
    let server = Server::start().await;
    let transport = Transport::dial(&server.address).unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(transport);
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
