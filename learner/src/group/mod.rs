//! A finished group as the learner keeps it: checked, with its reward columns and its bytes.
//!
//! Pure. Invariant: every segment of a [`Group`] has one mask byte and one log-probability per
//! token, token ids in the vocabulary and at most the context's tokens, and its mask marks exactly
//! the completions of the turns. Code behind it need not check again.

use std::{ops::Range, sync::Arc};

use proto::{
    EncodedGroup, MAX_GROUP_BYTES,
    v1::{Segment, SubmitRequest, Trajectory, Turn},
};

use crate::{
    advantage::{RewardAggregation, has_reward_variance},
    config::{LearnerConfig, RewardWeights},
    scheduler::GroupSummary,
};

/// The limits that a group is checked against.
#[derive(Clone, Debug)]
pub struct GroupRules {
    /// Trajectories in a group.
    pub group_size: usize,
    /// Token ids lie below it.
    pub vocab_size: usize,
    /// Tokens that a segment may hold.
    pub max_context_tokens: usize,
    /// Weights of the reward columns.
    pub rewards: RewardWeights,
    /// How the columns become one advantage.
    pub aggregation: RewardAggregation,
    /// Whether zero-variance groups are dropped for others (dynamic sampling).
    pub dynamic_sampling: bool,
}

impl GroupRules {
    /// Returns the rules of a run.
    pub fn new(config: &LearnerConfig, vocab_size: usize) -> Self {
        Self {
            group_size: config.group_size,
            vocab_size,
            max_context_tokens: config.rollout.max_context_tokens as usize,
            rewards: config.rewards,
            aggregation: config.advantage.aggregation,
            dynamic_sampling: config.dynamic_sampling,
        }
    }
}

/// The groups of a step.
#[derive(Clone, Debug, Default)]
pub struct StepGroups {
    /// Groups to train on, in index order.
    pub kept: Vec<Arc<Group>>,
    /// Groups that were rolled out but are not trained on, for instance without reward variance.
    pub left_out: Vec<Arc<Group>>,
}

/// A checked group.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its number in the run.
    pub index: u64,
    /// The lease under which it was rolled out.
    pub lease_id: u64,
    /// The actor that rolled it out.
    pub actor_id: String,
    /// The run that its actor joined.
    pub run_id: String,
    /// The bytes in which it arrived. The journal and other ranks get the same bytes.
    pub encoded: EncodedGroup,
    /// Members in order.
    pub trajectories: Vec<Trajectory>,
    /// Reward columns of each member; missing if the episode failed for a reason outside the agent.
    pub rewards: Vec<Vec<Option<f64>>>,
    /// What the scheduler must know.
    pub summary: GroupSummary,
}

impl Group {
    /// Decodes and checks a submitted group.
    ///
    /// # Errors
    /// Names the trajectory and field that break the contract.
    pub fn new(encoded: EncodedGroup, rules: &GroupRules) -> Result<Self, String> {
        let size = encoded.bytes().len();
        if size > MAX_GROUP_BYTES {
            return Err(format!(
                "the group has {size} bytes, more than the {MAX_GROUP_BYTES} that a group may have"
            ));
        }
        let SubmitRequest {
            group_index: index,
            lease_id,
            trajectories,
            run_id,
            actor_id,
        } = encoded
            .decode()
            .map_err(|error| format!("the group cannot be decoded: {error}"))?;
        if trajectories.len() != rules.group_size {
            return Err(format!(
                "group {index} has {} trajectories, expected {}",
                trajectories.len(),
                rules.group_size
            ));
        }
        for (member, trajectory) in trajectories.iter().enumerate() {
            check(trajectory, member, rules)
                .map_err(|fault| format!("group {index}, member {member}: {fault}"))?;
        }
        let rewards: Vec<Vec<Option<f64>>> = trajectories.iter().map(reward_columns).collect();
        let weights = rules.rewards.weights();
        let summary = GroupSummary {
            kept: has_reward_variance(&rewards, &weights, rules.aggregation)
                || !rules.dynamic_sampling,
            oldest_version: versions(&trajectories).min().unwrap_or(u64::MAX),
        };
        Ok(Self {
            index,
            lease_id,
            actor_id,
            run_id,
            encoded,
            trajectories,
            rewards,
            summary,
        })
    }

    /// Returns the newest policy version that sampled; none if nothing was sampled.
    pub fn newest_version(&self) -> Option<u64> {
        versions(&self.trajectories).max()
    }
}

/// Returns the policy versions that sampled.
fn versions(trajectories: &[Trajectory]) -> impl Iterator<Item = u64> {
    let turns = trajectories.iter().flat_map(|trajectory| &trajectory.turns);
    turns.map(|turn| turn.policy_version)
}

/// Returns the columns `correct`, `shaping`, `return`.
fn reward_columns(trajectory: &Trajectory) -> Vec<Option<f64>> {
    let terminal = |turn: &Turn| turn.reward_components.map_or(0.0, |c| c.terminal);
    let shaping = trajectory.episode_return - trajectory.turns.iter().map(terminal).sum::<f64>();
    let correct = f64::from(u8::from(trajectory.correct));
    let columns = [correct, shaping, trajectory.episode_return];
    columns
        .into_iter()
        .map(|value| trajectory.scored.then_some(value))
        .collect()
}

fn check(trajectory: &Trajectory, member: usize, rules: &GroupRules) -> Result<(), String> {
    if trajectory.member as usize != member {
        return Err(format!("has the number of member {}", trajectory.member));
    }
    check_episode(trajectory, rules)
}

/// Checks an episode by itself: its tokens, masks and turns.
///
/// # Errors
/// Names the field that breaks the contract.
pub(crate) fn check_episode(trajectory: &Trajectory, rules: &GroupRules) -> Result<(), String> {
    if !trajectory.episode_return.is_finite() {
        return Err(format!("episode_return is {}", trajectory.episode_return));
    }
    for (number, segment) in trajectory.segments.iter().enumerate() {
        check_segment(segment, rules).map_err(|fault| format!("segment {number}: {fault}"))?;
    }
    check_turns(trajectory)
}

fn check_segment(segment: &Segment, rules: &GroupRules) -> Result<(), String> {
    let Segment {
        tokens,
        mask,
        logprobs,
    } = segment;
    if mask.len() != tokens.len() || logprobs.len() != tokens.len() {
        return Err(format!(
            "{} tokens, {} mask bytes and {} logprobs; they must be as many",
            tokens.len(),
            mask.len(),
            logprobs.len()
        ));
    }
    if tokens.len() > rules.max_context_tokens {
        return Err(format!(
            "{} tokens, more than max_context_tokens ({})",
            tokens.len(),
            rules.max_context_tokens
        ));
    }
    let is_unknown = |&&token: &&u32| token as usize >= rules.vocab_size;
    if let Some(token) = tokens.iter().find(is_unknown) {
        return Err(format!(
            "token {token} is not in the vocabulary of {}",
            rules.vocab_size
        ));
    }
    if mask.first() == Some(&1) {
        return Err("the first token cannot be sampled, because no token precedes it".to_owned());
    }
    if mask.iter().any(|&byte| byte > 1) {
        return Err("mask bytes must be 0 or 1".to_owned());
    }
    let sampled = mask.iter().zip(logprobs).filter(|(mask, _)| **mask == 1);
    match sampled
        .map(|(_, logprob)| *logprob)
        .find(|logprob| !logprob.is_finite())
    {
        Some(logprob) => Err(format!("a sampled token has log-prob {logprob}")),
        None => Ok(()),
    }
}

/// Checks the masks against the turns: both say which tokens the policy sampled. The loss reads the
/// mask, staleness and metrics read the turns, so a difference would train on tokens of an unknown
/// policy version.
fn check_turns(trajectory: &Trajectory) -> Result<(), String> {
    let given = |segment: &Segment| vec![0; segment.tokens.len()];
    let mut masks: Vec<Vec<u8>> = trajectory.segments.iter().map(given).collect();
    for (number, turn) in trajectory.turns.iter().enumerate() {
        let range = completion_range(turn);
        // A turn that sampled nothing occupies no tokens.
        if range.is_empty() {
            continue;
        }
        let mask = masks.get_mut(turn.segment as usize);
        let Some(mask) = mask.and_then(|mask| mask.get_mut(range.clone())) else {
            return Err(format!(
                "turn {number}: tokens {range:?} are not in segment {}",
                turn.segment
            ));
        };
        mask.fill(1);
    }
    for (number, (segment, expected)) in trajectory.segments.iter().zip(&masks).enumerate() {
        let mut pairs = segment.mask.iter().zip(expected);
        if let Some(at) = pairs.position(|(found, expected)| found != expected) {
            return Err(format!(
                "segment {number}: the mask of token {at} is {}, but the turns say {}",
                segment.mask[at], expected[at]
            ));
        }
    }
    Ok(())
}

/// Returns the range of a turn's completion in its segment.
fn completion_range(turn: &Turn) -> Range<usize> {
    let start = turn.completion_start as usize;
    start..start + turn.completion_tokens as usize
}

#[cfg(test)]
mod tests {
    use proto::v1::{RewardComponents, Turn};

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
                    ..RewardComponents::default()
                }),
                ..Turn::default()
            }],
            episode_return: 1.25,
            correct,
            scored: true,
            question_id: String::new(),
            failure: String::new(),
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
    fn rewards_spread_and_version_are_read() {
        let group = Group::new(
            request(vec![trajectory(0, true), trajectory(1, false)]),
            &rules(),
        )
        .unwrap();
        assert_eq!((group.index, group.lease_id), (7, 9));
        assert_eq!(group.rewards[0], [Some(1.0), Some(0.25), Some(1.25)]);
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
        assert_eq!(group.rewards[1], [None, None, None]);
        assert!(!group.summary.kept, "one scorable member has no variance");
    }

    #[test]
    fn faults_are_named() {
        let with = |change: fn(&mut Trajectory)| {
            let mut faulty = trajectory(1, false);
            change(&mut faulty);
            Group::new(request(vec![trajectory(0, true), faulty]), &rules()).unwrap_err()
        };
        type Change = fn(&mut Trajectory);
        let table: [(Change, &str); 12] = [
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
            (|t| t.turns.clear(), "token 1 is 1, but the turns say 0"),
            (
                |t| t.turns[0].completion_tokens = 9,
                "turn 0: tokens 1..10 are not in segment 0",
            ),
            (
                |t| t.turns[0].segment = 1,
                "turn 0: tokens 1..3 are not in segment 1",
            ),
        ];
        for (change, expected) in table {
            let fault = with(change);
            assert!(
                fault.contains(expected) && fault.contains("member 1"),
                "{fault}"
            );
        }
        let noise = EncodedGroup::new(vec![7; 3].into());
        let fault = Group::new(noise, &rules()).unwrap_err();
        assert!(fault.contains("cannot be decoded"), "{fault}");
        let large = EncodedGroup::new(vec![0; MAX_GROUP_BYTES + 1].into());
        let fault = Group::new(large, &rules()).unwrap_err();
        assert!(fault.contains("67108801 bytes"), "{fault}");
        let fault = Group::new(request(vec![]), &rules()).unwrap_err();
        assert!(fault.contains("0 trajectories, expected 2"), "{fault}");
    }
}
