//! Tests runs with broken and hostile actors: what they send is refused and named, and the run ends
//! with the weights that its honest actors give it.

use std::time::Duration;

use learner::{Learner, LearnerConfig, TrainEvent, advantage::ScaleRewards};
use proto::v1::{GroupClaim, SubmitVerdict, Trajectory};
use tonic::Code;

use crate::common::{Client, act, group, open, small_config, train, unread_events};

/// Changes every recorded log-probability of a group, and gives it reward variance.
fn with_logprobs(mut trajectories: Vec<Trajectory>, logprob: f32) -> Vec<Trajectory> {
    for trajectory in &mut trajectories {
        trajectory.correct = trajectory.member == 0;
        for segment in &mut trajectory.segments {
            let sampled = segment.logprobs.iter_mut().zip(&segment.mask);
            for (value, _) in sampled.filter(|(_, mask)| **mask == 1) {
                *value = logprob;
            }
        }
    }
    trajectories
}

async fn honest_weights(config: LearnerConfig) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(config, folder.path()).unwrap();
    train(&learner, 2, None).await.1
}

pub(crate) fn assert_names(learner: &Learner, actor_id: &str, reason: &str) {
    let refused = learner.refused_actors();
    let actor = refused.iter().find(|it| it.id == actor_id);
    let actor = actor.unwrap_or_else(|| panic!("{actor_id} is not among {refused:?}"));
    assert!(actor.reason.contains(reason), "{actor:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_probability_that_no_sampler_gives_is_refused_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    for (number, logprob) in [-800.0, 5.0, 3e38, f32::NAN].into_iter().enumerate() {
        let mut broken = Client::new(&learner, &format!("broken-{number}"));
        let claim = broken.claim_group().await;
        let trajectories = with_logprobs(group(&claim, 0), logprob);
        let refused = broken.submit(&claim, trajectories).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("log-prob"), "{refused}");
        assert_names(&learner, &format!("broken-{number}"), "log-prob");
    }
    let weights = train(&learner, 2, None).await.1;
    assert!(weights == honest_weights(small_config()).await);
}

/// An actor whose group was refused holds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_group_is_in_flight_no_longer() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let mut broken = Client::new(&learner, "broken");
    let in_flight = || {
        let (actors, _) = learner.observe_actors();
        actors[0].groups_in_flight
    };
    let claim = broken.claim_group().await;
    assert_eq!(in_flight(), 1);
    let trajectories = with_logprobs(group(&claim, 0), 5.0);
    broken.submit(&claim, trajectories).await.unwrap_err();
    assert_eq!(in_flight(), 0);
}

/// A finite log-probability in the range of a sampler, but not the policy's: one such token owned
/// the update of a step.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_log_probabilities_are_found_by_the_step_and_the_group_is_played_again() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let mut broken = Client::new(&learner, "broken");
    for _ in 0..2 {
        let claim = broken.claim_group().await;
        let trajectories = with_logprobs(group(&claim, 0), -60.0);
        let verdict = broken.submit(&claim, trajectories).await.unwrap();
        assert_eq!(verdict, SubmitVerdict::Accepted);
    }
    let weights = train(&learner, 2, None).await.1;
    assert!(weights == honest_weights(small_config()).await);
    assert_names(&learner, "broken", "differs by 5");
}

/// No sampler can choose a token that the constraint excludes, so its log-probability means
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_the_constraint_excludes_are_found_by_the_step() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = small_config();
    config.rollout.constraint = policy::Constraint::ToolCall;
    let learner = open(config.clone(), folder.path()).unwrap();
    let mut broken = Client::new(&learner, "broken");
    for _ in 0..config.groups_per_step {
        let claim = broken.claim_group().await;
        let trajectories = with_logprobs(group(&claim, 0), -1.0);
        let verdict = broken.submit(&claim, trajectories).await.unwrap();
        assert_eq!(verdict, SubmitVerdict::Accepted);
    }
    let refused = async {
        while learner.refused_actors().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = refused => assert_names(&learner, "broken", "excluded by rollout.constraint"),
        _ = train(&learner, 0, None) => panic!("the run ended"),
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("no group was refused"),
    }
}

/// A resumed run finds the same groups in its journal and refuses them again.
#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_run_refuses_what_the_run_before_it_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = small_config();
    config.checkpoint.every_steps = 100;
    let learner = open(config.clone(), folder.path()).unwrap();
    let mut broken = Client::new(&learner, "broken");
    let claim = broken.claim_group().await;
    let trajectories = with_logprobs(group(&claim, 0), -60.0);
    broken.submit(&claim, trajectories).await.unwrap();
    let expected = train(&learner, 2, None).await.1;
    drop((broken, learner));
    std::fs::remove_dir_all(folder.path().join("checkpoints/step_4")).unwrap();
    std::fs::write(folder.path().join("checkpoints/LATEST"), "step_0").unwrap();
    let learner = open(config.clone(), folder.path()).unwrap();
    assert_eq!(learner.snapshot().policy_version, 0);
    assert!(
        train(&learner, 0, None).await.1 == expected,
        "from the journal alone"
    );
    assert!(expected == honest_weights(config).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn by_setting_wrong_log_probabilities_are_only_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = small_config();
    config.trust.refuse_logprob_differences = false;
    let learner = open(config, folder.path()).unwrap();
    let mut broken = Client::new(&learner, "broken");
    let claim = broken.claim_group().await;
    let trajectories = with_logprobs(group(&claim, 0), -60.0);
    broken.submit(&claim, trajectories).await.unwrap();
    let (events, _) = train(&learner, 2, None).await;
    let made = events
        .iter()
        .filter(|it| matches!(it, TrainEvent::Step { .. }));
    assert_eq!(made.count(), 4);
    assert_names(&learner, "broken", "differs by 5");
}

/// Rewards that no check of one group can call wrong, but whose gradient is not finite.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_without_a_finite_gradient_is_left_out_and_named() {
    let mut config = small_config();
    config.rewards.shaping = 1e36;
    config.advantage.scale_rewards = ScaleRewards::None;
    let folder = tempfile::tempdir().unwrap();
    let learner = open(config.clone(), folder.path()).unwrap();
    let mut broken = Client::new(&learner, "broken");
    let claim = broken.claim_group().await;
    let mut trajectories = group(&claim, 0);
    trajectories[0].episode_return += 1e5;
    let verdict = broken.submit(&claim, trajectories).await.unwrap();
    assert_eq!(verdict, SubmitVerdict::Accepted);
    let weights = train(&learner, 2, None).await.1;
    assert!(weights == honest_weights(config).await);
    assert_names(&learner, "broken", "its gradient is not finite");
}

/// Groups that were never claimed, claimed by another, or played on another question.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_cannot_train_the_run_on_invented_groups() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let mut stranger = Client::new(&learner, "stranger");
    for group_index in 0..4 {
        let invented = GroupClaim {
            group_index,
            lease_id: group_index + 1,
            question_id: "question-1".to_owned(),
            group_size: 4,
            ..GroupClaim::default()
        };
        let verdict = stranger
            .submit(&invented, group(&invented, 0))
            .await
            .unwrap();
        assert_eq!(verdict, SubmitVerdict::Stale);
    }
    let claim = stranger.claim_group().await;
    let mut other = Client::new(&learner, "other");
    let verdict = other.submit(&claim, group(&claim, 0)).await.unwrap();
    assert_eq!(
        verdict,
        SubmitVerdict::Stale,
        "the lease is another actor's"
    );
    let elsewhere = GroupClaim {
        question_id: "a question of the stranger's".to_owned(),
        ..claim.clone()
    };
    let refused = stranger
        .submit(&claim, group(&elsewhere, 0))
        .await
        .unwrap_err();
    assert!(refused.message().contains("has the question"), "{refused}");
    let weights = train(&learner, 2, None).await.1;
    assert!(weights == honest_weights(small_config()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn unscored_groups_of_a_stranger_do_not_end_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let learner = open(small_config(), folder.path()).unwrap();
    let mut stranger = Client::new(&learner, "stranger");
    // The run looks at up to 12 groups for a step without a scored one.
    for _ in 0..12 {
        let claim = stranger.claim_group().await;
        let mut trajectories = group(&claim, 0);
        for trajectory in &mut trajectories {
            trajectory.scored = false;
            trajectory.failure = "no environment here".to_owned();
        }
        stranger.submit(&claim, trajectories).await.unwrap();
    }
    // The run goes on because others are there, and the step looks at once.
    Client::new(&learner, "honest").join().await.unwrap();
    let weights = train(&learner, 2, None).await.1;
    assert!(weights == honest_weights(small_config()).await);
    assert_names(&learner, "stranger", "no environment here");
}

/// Every trajectory as long as the settings allow.
fn longest(claim: &GroupClaim, version: u64) -> Vec<Trajectory> {
    let mut trajectories = group(claim, version);
    for trajectory in &mut trajectories {
        let segment = trajectory.segments[0].clone();
        let turn = trajectory.turns[0].clone();
        let mut long = segment.clone();
        while long.tokens.len() < 64 {
            long.tokens.insert(0, 300);
            long.mask.insert(0, 0);
            long.logprobs.insert(0, 0.0);
        }
        for (mask, logprob) in long.mask.iter_mut().zip(&mut long.logprobs) {
            (*mask, *logprob) = (0, 0.0);
        }
        (long.mask[63], long.logprobs[63]) = (1, -6.5);
        trajectory.segments = vec![long; 15];
        let of_segment = |segment: u32| proto::v1::Turn {
            segment,
            completion_start: 63,
            completion_tokens: 1,
            ..turn.clone()
        };
        trajectory.turns = (0..15).map(of_segment).collect();
        trajectory.turns[1..]
            .iter_mut()
            .for_each(|turn| turn.reward_components = None);
    }
    trajectories
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_the_middle_of_a_long_step_takes_effect_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = LearnerConfig {
        steps: 1,
        groups_per_step: 64,
        ..small_config()
    };
    config.trust.max_leases_per_actor = 1_000;
    let learner = open(config.clone(), folder.path()).unwrap();
    let actor = tokio::spawn(act(learner.clone(), "a".to_owned(), longest));
    let waiting = learner.clone();
    let made = learner
        .train(unread_events(), async {
            // The journal is complete when no group is claimed any more.
            let mut client = Client::new(&waiting, "watcher");
            let mut quiet = 0;
            while quiet < 3 {
                let claim = tokio::time::timeout(Duration::from_millis(200), client.claim(0)).await;
                quiet = if claim.is_err() { quiet + 1 } else { 0 };
            }
        })
        .await
        .unwrap();
    actor.abort();
    let _ = actor.await;
    assert_eq!(made, 0, "the stop had no effect, or came after the step");
    drop((learner, waiting));
    let resumed = open(config, folder.path()).unwrap();
    assert_eq!(resumed.snapshot().policy_version, 0);
}
