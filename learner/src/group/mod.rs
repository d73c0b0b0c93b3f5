//! A finished group as the learner keeps it: checked, with its reward columns and its bytes.
//!
//! Pure. Invariant: a [`Group`] can be trained on. Every segment has one mask byte and one
//! log-probability per token, token ids in the vocabulary and at most the context's tokens, and its
//! mask marks exactly the completions of the turns. Log-probabilities and rewards are in the range
//! that a sampler and an environment can produce, and turns, segments and texts are bounded by the
//! settings of rollouts. Code behind it need not check again.

mod check;
mod outline;
mod refusal;

use std::sync::Arc;

use proto::{
    EncodedEvaluation, EncodedGroup, MAX_GROUP_BYTES,
    v1::{RewardComponents, Segment, SubmitEvaluationRequest, SubmitRequest, Trajectory, Turn},
};

pub(crate) use self::check::{demonstration as check_demonstration, name as check_name};
pub use self::refusal::{RefusalReason, RefusedGroup};

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
    /// Tokens that a turn may sample.
    pub max_completion_tokens: usize,
    /// Turns of a trajectory: actions of an episode.
    pub max_turns: usize,
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
            max_completion_tokens: config.rollout.max_completion_tokens as usize,
            max_turns: config.rollout.step_budget as usize,
            rewards: config.rewards,
            aggregation: config.advantage.aggregation,
            dynamic_sampling: config.dynamic_sampling,
        }
    }

    /// Returns the most segments of a trajectory. Each turn but the last may begin a new one, and
    /// an episode that fails may have begun one that no turn follows.
    pub(crate) fn max_segments(&self) -> usize {
        self.max_turns + 1
    }
}

/// The groups of a step.
#[derive(Clone, Debug, Default)]
pub struct StepGroups {
    /// Groups to train on, in index order.
    pub kept: Vec<Arc<Group>>,
    /// Groups that were rolled out but are not trained on, for instance without reward variance.
    pub left_out: Vec<Arc<Group>>,
    /// Demonstrations that are trained on beside the groups, if the settings want any.
    pub demonstrations: Vec<Segment>,
    /// The ids of their questions, in the same order; empty in ranks other than 0.
    pub demonstrated: Vec<String>,
}

/// A checked group.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// What identifies it.
    pub head: SubmissionHead,
    /// The bytes in which it arrived. The journal and other ranks get the same bytes.
    pub encoded: EncodedGroup,
    /// Members in order.
    pub trajectories: Vec<Trajectory>,
    /// Reward columns of each member; missing if the episode failed for a reason outside the agent.
    pub rewards: Vec<Vec<Option<f64>>>,
    /// What the scheduler must know.
    pub summary: GroupSummary,
}

/// What identifies submitted work: a group, or a part of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubmissionHead {
    /// The number of the group in the run, or of the part.
    pub number: u64,
    /// The lease under which it was played.
    pub lease_id: u64,
    /// The actor that played it.
    pub actor_id: String,
    /// The run that its actor joined, if it names one.
    pub run_id: Option<String>,
}

impl SubmissionHead {
    /// Reads the head of an encoded group, which may break every other rule; none if the bytes are
    /// no group.
    pub(crate) fn of_group(encoded: &EncodedGroup) -> Option<Self> {
        outline::head(encoded.bytes(), &outline::OF_GROUP).ok()
    }

    /// Reads the head of an encoded part of an evaluation, as [`Self::of_group`] does.
    pub(crate) fn of_part(encoded: &EncodedEvaluation) -> Option<Self> {
        outline::head(encoded.bytes(), &outline::OF_PART).ok()
    }
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
        outline::check_group(encoded.bytes(), rules)?;
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
        check_name("actor_id", &actor_id)?;
        check_name("run_id", &run_id)?;
        for (member, trajectory) in trajectories.iter().enumerate() {
            check::member(trajectory, member, rules)
                .map_err(|fault| format!("group {index}, member {member}: {fault}"))?;
        }
        let rewards: Vec<Vec<Option<f64>>> = trajectories.iter().map(reward_columns).collect();
        let weights = rules.rewards.weights();
        let summary = GroupSummary {
            kept: has_reward_variance(&rewards, &weights, rules.aggregation)
                || !rules.dynamic_sampling,
            oldest_version: versions(&trajectories).min().unwrap_or(u64::MAX),
        };
        let head = SubmissionHead {
            number: index,
            lease_id,
            actor_id,
            run_id: Some(run_id),
        };
        Ok(Self {
            head,
            encoded,
            trajectories,
            rewards,
            summary,
        })
    }

    /// Checks that all members are episodes of the question that was handed out.
    ///
    /// # Errors
    /// Names the first member that is not.
    pub(crate) fn check_question(&self, question_id: &str) -> Result<(), String> {
        let mut members = self.trajectories.iter();
        match members.find(|trajectory| trajectory.question_id != question_id) {
            None => Ok(()),
            Some(other) => Err(format!(
                "group {}, member {}: is an episode of the question {:?}, but the group has the \
                 question {question_id:?}",
                self.head.number, other.member, other.question_id
            )),
        }
    }

    /// Returns whether all its episodes are correct.
    pub(crate) fn is_answered(&self) -> bool {
        self.trajectories.iter().all(|it| it.scored && it.correct)
    }

    /// Returns whether an episode has a score and is not correct.
    pub(crate) fn has_wrong_episode(&self) -> bool {
        self.trajectories.iter().any(|it| it.scored && !it.correct)
    }

    /// Returns whether some of its episodes have a score, and none of these is correct.
    pub(crate) fn is_unsolved(&self) -> bool {
        let mut scored = self.trajectories.iter().filter(|it| it.scored).peekable();
        scored.peek().is_some() && scored.all(|it| !it.correct)
    }

    /// Returns the newest policy version that sampled; none if nothing was sampled.
    pub(crate) fn newest_version(&self) -> Option<u64> {
        versions(&self.trajectories).max()
    }
}

/// Decodes and checks the episodes of a part of an evaluation with so many questions at most.
///
/// # Errors
/// Names the trajectory and field that break the contract.
pub fn decode_evaluation(
    encoded: &EncodedEvaluation,
    questions: usize,
    rules: &GroupRules,
) -> Result<SubmitEvaluationRequest, String> {
    outline::check_evaluation(encoded.bytes(), questions, rules)?;
    let part = encoded
        .decode()
        .map_err(|error| format!("it cannot be decoded: {error}"))?;
    check_name("actor_id", &part.actor_id)?;
    check_name("run_id", &part.run_id)?;
    for (number, episode) in part.trajectories.iter().enumerate() {
        check::check_episode(episode, rules)
            .map_err(|fault| format!("member {number}: {fault}"))?;
    }
    Ok(part)
}

/// Returns the policy versions that sampled.
fn versions(trajectories: &[Trajectory]) -> impl Iterator<Item = u64> {
    let turns = trajectories.iter().flat_map(|trajectory| &trajectory.turns);
    turns.map(|turn| turn.policy_version)
}

/// Returns the columns [`RewardWeights::COLUMNS`].
fn reward_columns(trajectory: &Trajectory) -> Vec<Option<f64>> {
    let sum = |component: fn(RewardComponents) -> f64| -> f64 {
        let of_turn = |turn: &Turn| turn.reward_components.map_or(0.0, component);
        trajectory.turns.iter().map(of_turn).sum()
    };
    let shaping = trajectory.episode_return - sum(|it| it.terminal);
    let columns = [
        f64::from(u8::from(trajectory.correct)),
        shaping,
        trajectory.episode_return,
        sum(|it| it.progress),
        sum(|it| it.operational),
    ];
    columns
        .into_iter()
        .map(|value| trajectory.scored.then_some(value))
        .collect()
}

#[cfg(test)]
mod tests;
