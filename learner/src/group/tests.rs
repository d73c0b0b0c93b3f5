//! Tests what a group must be to be trained on.

use proto::v1::{RewardComponents, Segment, Turn};

use super::*;

fn rules() -> GroupRules {
    GroupRules {
        vocab_size: 10,
        ..GroupRules::new(
            &LearnerConfig {
                group_size: 2,
                ..LearnerConfig::default()
            },
            10,
        )
    }
}

fn trajectory(member: u32, correct: bool) -> Trajectory {
    Trajectory {
        member,
        segments: vec![Segment {
            tokens: vec![1, 2, 3],
            mask: vec![0, 1, 1],
            logprobs: vec![0.0, -0.5, -1.0],
        }],
        turns: vec![Turn {
            completion_start: 1,
            completion_tokens: 2,
            policy_version: 4 + u64::from(member),
            reward_components: Some(RewardComponents {
                terminal: 1.0,
                progress: 0.15,
                operational: 0.1,
                ..RewardComponents::default()
            }),
            ..Turn::default()
        }],
        episode_return: 1.25,
        correct,
        scored: true,
        question_id: String::new(),
        failure: String::new(),
        failure_is_final: false,
    }
}

fn request(trajectories: Vec<Trajectory>) -> EncodedGroup {
    let request = SubmitRequest {
        group_index: 7,
        lease_id: 9,
        trajectories,
        ..SubmitRequest::default()
    };
    EncodedGroup::from(&request)
}

#[test]
fn rewards_variance_and_version_are_read() {
    let group = Group::new(
        request(vec![trajectory(0, true), trajectory(1, false)]),
        &rules(),
    )
    .unwrap();
    assert_eq!((group.head.number, group.head.lease_id), (7, 9));
    assert_eq!(group.rewards[0], [1.0, 0.25, 1.25, 0.15, 0.1].map(Some));
    assert_eq!(
        group.summary,
        GroupSummary {
            kept: true,
            oldest_version: 4
        }
    );
    let same = Group::new(
        request(vec![trajectory(0, true), trajectory(1, true)]),
        &rules(),
    )
    .unwrap();
    assert!(!same.summary.kept);
}

/// A right answer without shaping against a wrong one with as much: the sums are equal, the
/// columns are not.
#[test]
fn columns_that_cancel_teach_only_where_they_are_normalised_apart() {
    let members = || {
        let right = Trajectory {
            episode_return: 1.0,
            ..trajectory(0, true)
        };
        let wrong = Trajectory {
            episode_return: 2.0,
            ..trajectory(1, false)
        };
        request(vec![right, wrong])
    };
    let kept = |aggregation| {
        let rules = GroupRules {
            aggregation,
            ..rules()
        };
        Group::new(members(), &rules).unwrap().summary.kept
    };
    assert!(!kept(RewardAggregation::SumThenNormalize));
    assert!(kept(RewardAggregation::NormalizeThenSum));
}

#[test]
fn an_unscored_member_has_no_reward() {
    let broken = Trajectory {
        scored: false,
        ..trajectory(1, false)
    };
    let group = Group::new(request(vec![trajectory(0, true), broken]), &rules()).unwrap();
    assert_eq!(group.rewards[1], [None; 5]);
    assert!(!group.summary.kept, "one scorable member has no variance");
}

/// The rounding of a softmax may give a little more than 0.
#[test]
fn every_log_probability_of_a_sampler_is_taken() {
    for logprob in [1e-6, 0.0, -0.5, -30.0, -103.2] {
        let mut extreme = trajectory(1, false);
        extreme.segments[0].logprobs[1] = logprob;
        Group::new(request(vec![trajectory(0, true), extreme]), &rules()).unwrap();
    }
}

#[test]
fn an_episode_of_another_question_is_named() {
    let of = |question: &str| Trajectory {
        question_id: question.to_owned(),
        ..trajectory(1, false)
    };
    let first = Trajectory {
        member: 0,
        ..of("easy")
    };
    let group = Group::new(request(vec![first, of("hard")]), &rules()).unwrap();
    let fault = group.check_question("easy").unwrap_err();
    assert!(
        fault.contains("member 1: is an episode of the question \"hard\""),
        "{fault}"
    );
}

type Change = fn(&mut Trajectory);

/// Checks that each change of a member is refused with an error that has the text beside it.
fn assert_named(table: &[(Change, &str)]) {
    for (change, expected) in table {
        let mut faulty = trajectory(1, false);
        change(&mut faulty);
        let group = request(vec![trajectory(0, true), faulty]);
        let fault = Group::new(group, &rules()).unwrap_err();
        assert!(
            fault.contains(expected) && fault.contains("member 1"),
            "{fault}"
        );
    }
}

#[test]
fn members_that_contradict_themselves_are_named() {
    assert_named(&[
        (|t| t.member = 0, "has the number of member 0"),
        (|t| t.episode_return = f64::NAN, "episode_return"),
        (|t| t.segments[0].mask.truncate(1), "must be as many"),
        (
            |t| t.segments[0].tokens[1] = 10,
            "token 10 is not in the vocabulary",
        ),
        (|t| t.segments[0].mask[0] = 1, "first token"),
        (|t| t.segments[0].mask[1] = 2, "0 or 1"),
        (
            |t| t.segments[0].logprobs[2] = f32::NEG_INFINITY,
            "log-prob -inf",
        ),
        (
            |t| t.segments[0].mask[2] = 0,
            "segment 0: the mask of token 2 is 0, but the turns say 1",
        ),
        (
            |t| t.turns[0].completion_tokens = 1,
            "segment 0: the mask of token 2 is 1, but the turns say 0",
        ),
        (|t| t.turns.clear(), "is scored, but has no turn"),
        (
            |t| t.turns[0].completion_tokens = 9,
            "turn 0: tokens 1..10 are not in segment 0",
        ),
        (
            |t| t.turns[0].segment = 1,
            "turn 0: tokens 1..3 are not in segment 1",
        ),
    ]);
}

#[test]
fn numbers_that_no_episode_has_are_named() {
    assert_named(&[
        (
            |t| t.segments[0].logprobs[2] = -800.0,
            "log-prob -800; a sampler gives -104 to 0",
        ),
        (|t| t.segments[0].logprobs[2] = 5.0, "log-prob 5"),
        (|t| t.segments[0].logprobs[1] = f32::NAN, "log-prob NaN"),
        (|t| t.episode_return = 1e300, "episode_return"),
        (|t| t.turns[0].reward = f64::INFINITY, "turn 0: reward"),
        (
            |t| t.turns = vec![t.turns[0].clone(); 2],
            "turn 1: tokens 1..3 of segment 0 do not follow the turn before",
        ),
        (
            |t| t.segments = vec![t.segments[0].clone(); 17],
            "more than 16 segments",
        ),
        (
            |t| t.turns = vec![Turn::default(); 16],
            "more than 15 turns",
        ),
        (
            |t| t.turns[0].completion_tokens = 513,
            "more than max_completion_tokens (512)",
        ),
        (
            |t| t.turns[0].observation_text = "x".repeat((1 << 20) + 1),
            "observation_text has 1048577 bytes, more than 1048576",
        ),
        (
            |t| t.failure = "env away".to_owned(),
            "scored, but names a failure",
        ),
    ]);
}

#[test]
fn faults_are_named() {
    let noise = EncodedGroup::new(vec![7; 3].into());
    let fault = Group::new(noise, &rules()).unwrap_err();
    assert!(fault.contains("cannot be decoded"), "{fault}");
    let large = EncodedGroup::new(vec![0; MAX_GROUP_BYTES + 1].into());
    let fault = Group::new(large, &rules()).unwrap_err();
    assert!(fault.contains("67108801 bytes"), "{fault}");
    let fault = Group::new(request(vec![]), &rules()).unwrap_err();
    assert!(fault.contains("0 trajectories, expected 2"), "{fault}");
}

/// The learner keeps the names of actors that it refuses.
#[test]
fn names_that_are_too_long_to_be_kept_are_refused_in_evaluations_too() {
    let with_names = |actor_id: &str, run_id: &str| {
        let part = SubmitEvaluationRequest {
            actor_id: actor_id.to_owned(),
            run_id: run_id.to_owned(),
            trajectories: vec![trajectory(0, true)],
            ..SubmitEvaluationRequest::default()
        };
        decode_evaluation(&EncodedEvaluation::from(&part), 1, &rules())
    };
    with_names("a", "run").unwrap();
    let long = "x".repeat(257);
    let long = long.as_str();
    for (actor_id, run_id, named) in [(long, "run", "actor_id"), ("a", long, "run_id")] {
        let fault = with_names(actor_id, run_id).unwrap_err();
        assert!(fault.contains(named), "{fault}");
    }
}
