//! Demonstrations of questions that an episode of a group answered wrongly.
//!
//! If no episode of a group is correct, nothing in it can be reinforced, however often its question
//! comes back. A demonstration adds a correct episode (LUFFY, arXiv:2504.14945, adds one to every
//! group). The policy did not sample it, so it has no importance ratio, and its gradient is that of
//! supervised training, times `demonstration_weight`. The advantages of the group stay as they are.

use std::collections::BTreeSet;

use proto::v1::{Segment, Trajectory};

use crate::{error::Result, group::StepGroups};

/// Solves questions, given by their ids. Returns a demonstration of each, in order, whose mask
/// marks the tokens to learn; none if its solution is wrong or does not fit into a context. The
/// same question has the same demonstration in every call, so that a resumed run gets the same
/// weights. May block.
///
/// # Errors
/// [`Demonstration`](crate::LearnerError::Demonstration) if a question cannot be solved now, and
/// [`Stopped`](crate::LearnerError::Stopped) if the process is to end.
pub type Demonstrate = dyn Fn(&[String]) -> Result<Vec<Option<Segment>>> + Send + Sync;

/// Logs which questions cannot be demonstrated, since nothing else says so.
pub(crate) fn name_undemonstrated(question_ids: &[String], shown: &[Option<Segment>]) {
    let questions = question_ids.iter().zip(shown);
    let without = questions.filter(|(_, shown)| shown.is_none());
    let question_ids: Vec<&String> = without.map(|(id, _)| id).collect();
    if !question_ids.is_empty() {
        tracing::warn!(
            ?question_ids,
            "a step goes on without demonstrations of questions whose solution is wrong, takes \
             too long, does not fit into learner.rollout.max_context_tokens, or is excluded by \
             the constraint"
        );
    }
}

impl StepGroups {
    /// Returns the questions that an episode answered wrongly, each once, in the order of the
    /// groups.
    pub(crate) fn wrongly_answered(&self) -> Vec<String> {
        let groups = self.kept.iter().chain(&self.left_out);
        let mut groups: Vec<_> = groups.filter(|group| group.has_wrong_episode()).collect();
        groups.sort_by_key(|group| group.head.number);
        let question = |trajectory: &Trajectory| trajectory.question_id.clone();
        let first = groups.iter().filter_map(|group| group.trajectories.first());
        let mut seen = BTreeSet::new();
        let questions = first.map(question);
        questions.filter(|id| seen.insert(id.clone())).collect()
    }
}
