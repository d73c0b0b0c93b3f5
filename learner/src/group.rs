//! A finished group as the learner keeps it: checked, scored, with its reward columns.
//!
//! Pure. Invariant: every segment of a [`Group`] has one mask byte and one log-prob a token, ids in the vocabulary and at
//! most the context's tokens, so nothing behind it needs to check again.

use proto::v1::{Segment, SubmitRequest, Trajectory};

use crate::{
    advantage::{RewardAggregation, has_reward_variance},
    config::{LearnerConfig, RewardWeights},
    scheduler::Outcome,
};

/// What a group must obey.
#[derive(Clone, Debug)]
pub struct GroupRules {
    /// Trajectories a group.
    pub group_size: usize,
    /// Token ids lie below it.
    pub vocab_size: usize,
    /// Tokens a segment may hold.
    pub max_context_tokens: usize,
    /// Weights of the reward columns.
    pub rewards: RewardWeights,
    /// How the columns become one advantage.
    pub aggregation: RewardAggregation,
    /// Whether only groups with spread are kept.
    pub refill_zero_spread: bool,
}

impl GroupRules {
    /// The rules of a run.
    #[must_use]
    pub fn new(config: &LearnerConfig, vocab_size: usize) -> Self {
        Self {
            group_size: config.group_size,
            vocab_size,
            max_context_tokens: config.rollout.max_context_tokens as usize,
            rewards: config.rewards,
            aggregation: config.advantage.aggregation,
            refill_zero_spread: config.dynamic_sampling,
        }
    }
}

/// A checked group.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its number in the run.
    pub index: u64,
    /// Members in order.
    pub trajectories: Vec<Trajectory>,
    /// Reward columns of each member; missing where the episode broke off for a reason outside the agent.
    pub rewards: Vec<Vec<Option<f64>>>,
    /// What the scheduler must know.
    pub outcome: Outcome,
}

impl Group {
    /// Checks a submitted group.
    ///
    /// # Errors
    /// Names the trajectory and field that break the contract.
    pub fn new(request: SubmitRequest, rules: &GroupRules) -> Result<Self, String> {
        let SubmitRequest {
            group_index: index,
            trajectories,
            ..
        } = request;
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
        let outcome = Outcome {
            kept: has_reward_variance(&rewards, &weights, rules.aggregation)
                || !rules.refill_zero_spread,
            oldest_version: oldest_version(&trajectories),
        };
        Ok(Self {
            index,
            trajectories,
            rewards,
            outcome,
        })
    }
}

impl Group {
    /// The newest version that sampled; none where nothing was sampled at all.
    #[must_use]
    pub fn newest_version(&self) -> Option<u64> {
        let turns = self.trajectories.iter().flat_map(|t| &t.turns);
        turns.map(|turn| turn.policy_version).max()
    }
}

/// The oldest version that sampled; `u64::MAX` where nothing was sampled at all.
fn oldest_version(trajectories: &[Trajectory]) -> u64 {
    let turns = trajectories.iter().flat_map(|trajectory| &trajectory.turns);
    turns
        .map(|turn| turn.policy_version)
        .min()
        .unwrap_or(u64::MAX)
}

/// The columns `correct`, `shaping`, `return`.
fn reward_columns(trajectory: &Trajectory) -> Vec<Option<f64>> {
    let terminal = |turn: &proto::v1::Turn| turn.reward_components.map_or(0.0, |c| c.terminal);
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
        return Err(format!("stands in place of member {}", trajectory.member));
    }
    if !trajectory.episode_return.is_finite() {
        return Err(format!("episode_return is {}", trajectory.episode_return));
    }
    for (number, segment) in trajectory.segments.iter().enumerate() {
        check_segment(segment, rules).map_err(|fault| format!("segment {number}: {fault}"))?;
    }
    Ok(())
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
    if let Some(token) = tokens
        .iter()
        .find(|&&token| token as usize >= rules.vocab_size)
    {
        return Err(format!(
            "token {token} is not in the vocabulary of {}",
            rules.vocab_size
        ));
    }
    if mask.first() == Some(&1) {
        return Err("the first token cannot be sampled, nothing stands before it".to_owned());
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

    fn request(trajectories: Vec<Trajectory>) -> SubmitRequest {
        SubmitRequest {
            group_index: 7,
            trajectories,
            ..SubmitRequest::default()
        }
    }

    #[test]
    fn rewards_spread_and_version_are_read() {
        let group = Group::new(
            request(vec![trajectory(0, true), trajectory(1, false)]),
            &rules(),
        )
        .unwrap();
        assert_eq!(group.rewards[0], [Some(1.0), Some(0.25), Some(1.25)]);
        assert_eq!(
            group.outcome,
            Outcome {
                kept: true,
                oldest_version: 4
            }
        );
        let same = Group::new(
            request(vec![trajectory(0, true), trajectory(1, true)]),
            &rules(),
        )
        .unwrap();
        assert!(!same.outcome.kept);
    }

    /// A right answer without shaping against a wrong one with as much: the sums are equal, the columns are not.
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
            Group::new(members(), &rules).unwrap().outcome.kept
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
        assert!(!group.outcome.kept, "one scorable member has no spread");
    }

    #[test]
    fn faults_are_named() {
        let with = |change: fn(&mut Trajectory)| {
            let mut faulty = trajectory(1, false);
            change(&mut faulty);
            Group::new(request(vec![trajectory(0, true), faulty]), &rules()).unwrap_err()
        };
        type Change = fn(&mut Trajectory);
        let table: [(Change, &str); 7] = [
            (|t| t.member = 0, "in place of member 0"),
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
        ];
        for (change, expected) in table {
            let fault = with(change);
            assert!(
                fault.contains(expected) && fault.contains("member 1"),
                "{fault}"
            );
        }
        let fault = Group::new(request(vec![]), &rules()).unwrap_err();
        assert!(fault.contains("0 trajectories, expected 2"), "{fault}");
    }
}
