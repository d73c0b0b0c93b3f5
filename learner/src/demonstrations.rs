//! Demonstrations of questions that an episode of a group answered wrongly.
//!
//! If no episode of a group is correct, nothing in it can be reinforced, however often its question
//! comes back. A demonstration adds a correct episode (LUFFY, arXiv:2504.14945, adds one to every
//! group). The policy did not sample it, so it has no importance ratio, and its gradient is that of
//! supervised training with the temperature and the constraint of the rollouts, times
//! `demonstration_weight`. The advantages of the group stay as they are.

use std::collections::BTreeSet;

use proto::v1::{Segment, Trajectory};

use crate::{error::Result, group::StepGroups};

/// The most questions that a line of the log names.
pub(crate) const NAMED_QUESTIONS: usize = 8;

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
    let problem = "is wrong, takes too long, or does not fit into \
                   learner.rollout.max_context_tokens";
    warn(without.map(|(id, _)| id), problem);
}

/// Logs which questions of a step have a demonstration that the constraint excludes, given by the
/// places of these demonstrations.
pub(crate) fn name_excluded(groups: &StepGroups, places: &[usize]) {
    let question = |&place: &usize| groups.demonstrated.get(place);
    let excluded = places.iter().filter_map(question);
    warn(excluded, "is excluded by learner.rollout.constraint");
}

/// Warns of questions whose solution has a problem, if there are any.
fn warn<'a>(question_ids: impl Iterator<Item = &'a String>, problem: &str) {
    let all: Vec<&String> = question_ids.collect();
    if !all.is_empty() {
        let question_ids = &all[..all.len().min(NAMED_QUESTIONS)];
        tracing::warn!(
            count = all.len(),
            ?question_ids,
            "a step goes on without demonstrations of questions whose solution {problem}"
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
