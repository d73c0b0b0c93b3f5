//! Tests evaluations that actors play between the steps of a run.

use std::{collections::BTreeMap, future, time::Duration};

use learner::{EvaluationPlan, EvaluationSet, TrainEvent};
use policy::SamplingSettings;
use proto::v1::{EvaluationClaim, claim_response::Outcome};
use tonic::Code;

use crate::common::{Client, actor, evaluated, open, small_config, train};

/// More questions than an actor plays under one lease.
const QUESTIONS: usize = 40;

fn set(name: &str) -> EvaluationSet {
    EvaluationSet {
        name: name.to_owned(),
        question_ids: (0..QUESTIONS)
            .map(|number| format!("held-out-{number}"))
            .collect(),
        sampling: SamplingSettings::greedy(),
        seed: 3,
    }
}

fn plan(versions: &[u64]) -> EvaluationPlan {
    let sets = |version: &u64| (*version, vec![set("greedy"), set("sampled")]);
    versions.iter().map(sets).collect::<BTreeMap<_, _>>()
}

/// Every set is played whole, with the version after whose step it is planned, and before the next
/// step. The steps are those of a run without evaluations.
#[tokio::test(flavor = "multi_thread")]
async fn evaluations_stand_between_the_steps_and_change_none() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    learner.plan_evaluations(plan(&[0, 2, 4]));
    let (events, weights) = train(&learner, 3, None).await;
    let mut order = Vec::new();
    for event in &events {
        match event {
            TrainEvent::Step { step, .. } => order.push(format!("step {step}")),
            TrainEvent::Checkpoint { .. } => {}
            TrainEvent::Evaluation {
                version,
                name,
                episodes,
            } => {
                order.push(format!("{name} {version}"));
                let wanted = set(name).question_ids;
                let played: Vec<_> = episodes.iter().map(|it| it.question_id.clone()).collect();
                assert_eq!(played, *wanted);
                let mut turns = episodes.iter().flat_map(|episode| &episode.turns);
                assert!(turns.all(|turn| turn.policy_version == *version));
            }
        }
    }
    let expected = [
        "greedy 0",
        "sampled 0",
        "step 1",
        "step 2",
        "greedy 2",
        "sampled 2",
        "step 3",
        "step 4",
        "greedy 4",
        "sampled 4",
    ];
    assert_eq!(order, expected);

    let folder = tempfile::tempdir().unwrap();
    let plain = open(small_config(), folder.path()).unwrap();
    let (_, plain_weights) = train(&plain, 1, None).await;
    assert!(weights == plain_weights, "evaluations changed the weights");
}

/// A run that is stopped within its last evaluation is not finished, and plays it when it resumes.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_after_its_last_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let (_, weights) = train(&learner, 1, None).await;
    assert!(learner.is_finished());
    drop(learner);

    // No actor plays the evaluation of the last version.
    let learner = open(small_config(), folder.path()).unwrap();
    learner.plan_evaluations(plan(&[4]));
    let (events, _seen) = tokio::sync::mpsc::channel(8);
    let stop = tokio::time::sleep(Duration::from_millis(200));
    assert_eq!(learner.train(events, stop).await.unwrap(), 4);
    assert!(!learner.is_finished());
    drop(learner);

    let learner = open(small_config(), folder.path()).unwrap();
    learner.plan_evaluations(plan(&[4]));
    let (events, resumed_weights) = train(&learner, 1, None).await;
    assert!(learner.is_finished());
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(weights == resumed_weights);
}

/// The next step waits for the reader. If it cannot record the evaluation, the run ends, and plays
/// it again when it resumes.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_waits_until_the_evaluation_before_it_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    learner.plan_evaluations(plan(&[2]));
    let (sender, mut events) = tokio::sync::mpsc::channel(1);
    let playing = tokio::spawn(actor(learner.clone(), "a".to_owned()));
    let training = tokio::spawn({
        let learner = learner.clone();
        async move { learner.train(sender, future::pending()).await }
    });
    let unrecorded = loop {
        let (event, recorded) = events.recv().await.unwrap();
        if matches!(event, TrainEvent::Evaluation { .. }) {
            break recorded;
        }
        recorded.send(()).unwrap();
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(learner.is_evaluating());
    assert_eq!(learner.snapshot().policy_version, 2);
    drop(unrecorded);
    // The channel closes when the run has ended.
    while let Some((_, recorded)) = events.recv().await {
        let _ = recorded.send(());
    }
    assert_eq!(training.await.unwrap().unwrap(), 2);
    playing.abort();
    let _ = playing.await;
    drop(learner);

    let learner = open(small_config(), folder.path()).unwrap();
    learner.plan_evaluations(plan(&[2]));
    let (events, _) = train(&learner, 1, None).await;
    let is_evaluation = |event: &&TrainEvent| matches!(event, TrainEvent::Evaluation { .. });
    assert_eq!(events.iter().filter(is_evaluation).count(), 2);
    assert!(learner.is_finished());
}

/// A lost part is handed out again, and a wrong one is refused and handed out again.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_is_played_by_an_actor_with_the_right_weights() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = small_config();
    config.lease_seconds = 1;
    let learner = open(config, folder.path()).unwrap();
    learner.plan_evaluations(plan(&[0]));
    let (events, mut seen) = tokio::sync::mpsc::channel(8);
    let training = tokio::spawn({
        let learner = learner.clone();
        async move { learner.train(events, future::pending()).await }
    });
    let client = |name: &str| Client::new(&learner, name);
    let first = claim(client("a")).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let again = claim(client("b")).await;
    assert_eq!(again.question_ids, first.question_ids);
    assert_ne!(again.lease_id, first.lease_id);
    let good = evaluated(&again, 0);
    let mut elsewhere = Client {
        run_id: "another".to_owned(),
        ..client("b")
    };
    let refused = elsewhere.submit_evaluation(&again, good.clone()).await;
    assert_eq!(refused.unwrap_err().code(), Code::FailedPrecondition);

    let few = good[1..].to_vec();
    let mut broken = good.clone();
    broken[3].segments[0].mask.pop();
    let mut held = again;
    for (actor, next, wrong) in [("b", "c", few), ("c", "d", broken)] {
        let refused = client(actor).submit_evaluation(&held, wrong).await;
        assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
        held = claim(client(next)).await;
        assert_eq!(held.question_ids, first.question_ids, "free at once");
    }
    client("d").submit_evaluation(&held, good).await.unwrap();
    let next = claim(client("d")).await;
    assert_ne!(next.question_ids, first.question_ids, "the part is taken");
    let named = learner.refused_actors();
    let named: Vec<_> = named.iter().map(|it| (it.id.as_str(), it.count)).collect();
    assert_eq!(named, [("b", 1), ("c", 1)]);
    training.abort();
    drop(seen.try_recv());
    learner.close_streams();
}

/// Claims a part. Until the trainer's thread has begun the evaluation, groups are handed out.
async fn claim(mut client: Client) -> EvaluationClaim {
    loop {
        match client.claim(0).await.unwrap() {
            Outcome::Evaluation(claim) => break claim,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}
