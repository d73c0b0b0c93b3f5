//! Queries on the evaluations of a run. Pure.

use crate::records::{CURVE_SPLIT, DecodingMode, EVAL_SPLIT, Evaluation, PolicyName};

/// The split of all databases that are new to a run, in layouts without domains: Spider and BIRD.
pub(super) const UNSEEN_SPLIT: &str = "eval-unseen";

/// The split of new databases of known domains.
pub(super) const UNSEEN_DATABASE_SPLIT: &str = "eval-unseen/database";

/// The split of domains that no training has.
pub(super) const UNSEEN_DOMAIN_SPLIT: &str = "eval-unseen/domain";

/// The evaluations of a run.
#[derive(Clone, Copy)]
pub(crate) struct Evaluations<'a>(pub(crate) &'a [Evaluation]);

impl<'a> Evaluations<'a> {
    /// Returns the newest evaluation of a policy. The decoding mode means nothing for scripted
    /// policies, so theirs counts as greedy.
    pub(crate) fn last(
        self,
        policy: PolicyName,
        split: &str,
        mode: DecodingMode,
    ) -> Option<&'a Evaluation> {
        let has_mode = |e: &Evaluation| {
            if policy.is_scripted() {
                mode == DecodingMode::Greedy
            } else {
                e.mode == mode
            }
        };
        self.0
            .iter()
            .filter(|e| e.policy == policy && e.split == split && has_mode(e))
            .max_by_key(|e| e.step)
    }

    /// Returns [`Self::last`] with greedy decoding on new queries.
    pub(crate) fn greedy(self, policy: PolicyName) -> Option<&'a Evaluation> {
        self.last(policy, EVAL_SPLIT, DecodingMode::Greedy)
    }

    /// Returns the policy from which GRPO started: the warm start, or the base if there is none.
    pub(crate) fn start(self) -> PolicyName {
        let has_warm_start = self.0.iter().any(|e| e.policy == PolicyName::WarmStart);
        if has_warm_start {
            PolicyName::WarmStart
        } else {
            PolicyName::Base
        }
    }

    /// Returns the split of the learning curve. Runs with few questions have none of its own.
    pub(crate) fn curve_split(self) -> &'static str {
        let has_own = self.0.iter().any(|e| e.split == CURVE_SPLIT);
        if has_own { CURVE_SPLIT } else { EVAL_SPLIT }
    }

    /// Returns the split of new databases, under the name that was evaluated.
    pub(super) fn new_databases_split(self) -> &'static str {
        let is_divided = self.0.iter().any(|e| e.split == UNSEEN_DATABASE_SPLIT);
        if is_divided {
            UNSEEN_DATABASE_SPLIT
        } else {
            UNSEEN_SPLIT
        }
    }

    /// Returns the evaluations of GRPO by step, with its start as step 0.
    pub(crate) fn history(self, split: &str, mode: DecodingMode) -> Vec<&'a Evaluation> {
        let start = self.start();
        let mut found: Vec<_> = self
            .0
            .iter()
            .filter(|e| e.policy == start || e.policy == PolicyName::Grpo)
            .filter(|e| e.split == split && e.mode == mode)
            .collect();
        found.sort_by_key(|e| (e.step, e.policy));
        // An evaluation of GRPO before its first step repeats that of its start.
        found.dedup_by_key(|e| e.step);
        found
    }
}
