//! Takes any bytes as a group and as a part of an evaluation. They must be refused, or fit the
//! invariant of a group.

#![no_main]

use std::cell::LazyCell;

use learner::group::{Group, GroupRules, decode_evaluation};
use learner_fuzz::{assert_fits, mutate, rules};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use prost::Message as _;
use proto::{
    EncodedEvaluation, EncodedGroup,
    v1::{
        Action, RewardComponents, Segment, SubmitEvaluationRequest, SubmitRequest, Trajectory, Turn,
    },
};

thread_local! {
    static RULES: LazyCell<GroupRules> = LazyCell::new(rules);
    static SEEDS: LazyCell<Vec<Vec<u8>>> = LazyCell::new(seeds);
}

fuzz_target!(|data: &[u8]| {
    RULES.with(|rules| {
        let bytes = data.to_vec();
        if let Ok(group) = Group::new(EncodedGroup::new(bytes.clone().into()), rules) {
            SubmitRequest::decode(data).expect("what was taken is a message");
            assert_eq!(group.trajectories.len(), rules.group_size);
            assert_fits(&group.trajectories, rules);
        }
        let part = EncodedEvaluation::new(bytes.into());
        if let Ok(part) = decode_evaluation(&part, 3, rules) {
            assert!(part.trajectories.len() <= 3);
            assert_fits(&part.trajectories, rules);
        }
    });
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    SEEDS.with(|seeds| mutate(data, size, max_size, seed, seeds))
});

fn seeds() -> Vec<Vec<u8>> {
    let turn = Turn {
        completion_start: 2,
        completion_tokens: 2,
        policy_version: 3,
        action: Some(Action {
            action_type: "QUERY".to_owned(),
            argument: "SELECT 1".to_owned(),
        }),
        observation_text: "1".to_owned(),
        reward: 0.1,
        reward_components: Some(RewardComponents {
            terminal: 1.0,
            ..RewardComponents::default()
        }),
        ..Turn::default()
    };
    let trajectory = |member| Trajectory {
        member,
        segments: vec![Segment {
            tokens: vec![5, 6, 7, 8, 9],
            mask: vec![0, 0, 1, 1, 0],
            logprobs: vec![0.0, 0.0, -0.5, -1.0, 0.0],
        }],
        turns: vec![turn.clone()],
        episode_return: 1.1,
        correct: member == 1,
        scored: true,
        question_id: "q".to_owned(),
        ..Trajectory::default()
    };
    let trajectories = vec![trajectory(0), trajectory(1)];
    let group = SubmitRequest {
        actor_id: "a".to_owned(),
        group_index: 7,
        lease_id: 9,
        trajectories: trajectories.clone(),
        run_id: "r".to_owned(),
    };
    let evaluation = SubmitEvaluationRequest {
        part_id: 7,
        trajectories,
        ..SubmitEvaluationRequest::default()
    };
    vec![group.encode_to_vec(), evaluation.encode_to_vec()]
}
