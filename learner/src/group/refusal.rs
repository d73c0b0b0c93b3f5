//! Why groups are refused. Pure.

use std::fmt::Display;

use super::Group;

/// Why a group is not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// It breaks the contract.
    Invalid,
    /// Its episodes have another result when they are played again.
    Rewards,
    /// Its log-probabilities differ from the learner's own.
    Logprobs,
    /// It has tokens that the constraint of completions excludes.
    Constraint,
    /// It has no finite gradient.
    NotFinite,
    /// None of its episodes was completed.
    Unscored,
}

impl RefusalReason {
    pub(crate) const ALL: [Self; 6] = [
        Self::Invalid,
        Self::Rewards,
        Self::Logprobs,
        Self::Constraint,
        Self::NotFinite,
        Self::Unscored,
    ];

    /// Whether it is the actor's fault rather than the policy's or the environment's.
    pub(crate) fn is_of_actor(self) -> bool {
        !matches!(self, Self::NotFinite)
    }

    /// Returns its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Rewards => "rewards",
            Self::Logprobs => "logprobs",
            Self::Constraint => "constraint",
            Self::NotFinite => "not_finite",
            Self::Unscored => "unscored",
        }
    }
}

/// A group that a step cannot train on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedGroup {
    /// The group.
    pub index: u64,
    /// The actor that rolled it out.
    pub actor_id: String,
    /// What is wrong.
    pub reason: RefusalReason,
    /// The same in words.
    pub problem: String,
}

impl RefusedGroup {
    /// Names the group in front of its problem.
    pub(crate) fn new(group: &Group, reason: RefusalReason, problem: impl Display) -> Self {
        let head = &group.head;
        Self {
            index: head.number,
            actor_id: head.actor_id.clone(),
            reason,
            problem: format!("group {}: {problem}", head.number),
        }
    }
}
