//! Tests what becomes of steps whose questions can never be scored.

use crate::common::{Client, act, open, small_config, train, unread_events};
use learner::{LearnerConfig, TrainEvent};
use proto::v1::{GroupClaim, Trajectory};

/// A run with one group in each step, whatever its rewards are.
fn config(steps: u64) -> LearnerConfig {
    LearnerConfig {
        steps,
        groups_per_step: 1,
        dynamic_sampling: false,
        ..small_config()
    }
}

/// The episodes of a question whose prompt is too long.
fn too_long(claim: &GroupClaim, _: u64) -> Vec<Trajectory> {
    let member = |member| Trajectory {
        member,
        question_id: claim.question_id.clone(),
        failure: "the prompt is too long".to_owned(),
        failure_is_final: true,
        ..Trajectory::default()
    };
    (0..claim.group_size).map(member).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_can_never_be_scored_does_not_end_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let stopped = open(config(3), folder.path()).unwrap();
    let mut client = Client::new(&stopped, "actor-0");
    let claim = client.claim_group().await;
    client.submit(&claim, too_long(&claim, 0)).await.unwrap();
    drop((client, stopped));
    // It reads the group in the journal.
    let resumed = open(config(3), folder.path()).unwrap();
    let (events, _) = train(&resumed, 1, None).await;
    let steps = events.iter().filter_map(|event| match event {
        TrainEvent::Step { metrics, .. } => Some(metrics),
        _ => None,
    });
    // Nothing that was not sampled is measured.
    let measured = steps.map(|metrics| {
        let length = metrics.contains_key("completions/mean_length");
        let calls = metrics.contains_key("tools/call_frequency");
        (metrics["groups/kept"], length, calls)
    });
    let trained = (1.0, true, true);
    let expected = [(0.0, false, false), trained, trained];
    assert_eq!(measured.collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_questions_can_never_be_scored_ends_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(config(20), folder.path()).unwrap();
    let actor = tokio::spawn(act(learner.clone(), "a".to_owned(), too_long));
    let fault = learner
        .train(unread_events(), std::future::pending())
        .await
        .unwrap_err()
        .to_string();
    actor.abort();
    // It holds the run open until it has ended.
    let _ = actor.await;
    assert!(
        fault.starts_with("step 11: none of its 4 ") && fault.contains("prompt is too long"),
        "{fault}"
    );
}
