//! Questions the report asks of a run's evaluations. Pure.

use crate::records::{CURVE_SPLIT, DecodingMode, Evaluation, PolicyName};

/// The split that the headline and the curves are about.
pub(super) const EVAL: &str = "eval";

/// A run's evaluations, ordered by policy, split, mode, step.
#[derive(Clone, Copy)]
pub(super) struct Evaluations<'a>(pub(super) &'a [Evaluation]);

impl<'a> Evaluations<'a> {
    /// The newest evaluation of a policy. Scripted policies have no modes; whatever was written counts as greedy.
    pub(super) fn last(
        self,
        policy: PolicyName,
        split: &str,
        mode: DecodingMode,
    ) -> Option<&'a Evaluation> {
        let mode_of = |e: &Evaluation| {
            if policy.is_scripted() {
                DecodingMode::Greedy
            } else {
                e.mode
            }
        };
        self.0
            .iter()
            .filter(|e| e.policy == policy && e.split == split && mode_of(e) == mode)
            .max_by_key(|e| e.step)
    }

    /// The split of the learning curve: questions of their own where the run asked any.
    pub(super) fn curve_split(self) -> &'static str {
        let has_own = self.0.iter().any(|e| e.split == CURVE_SPLIT);
        if has_own { CURVE_SPLIT } else { EVAL }
    }

    /// GRPO's evaluations by step, the warm start in front as step 0.
    pub(super) fn history(self, split: &str, mode: DecodingMode) -> Vec<&'a Evaluation> {
        let mut found: Vec<_> = self
            .0
            .iter()
            .filter(|e| matches!(e.policy, PolicyName::WarmStart | PolicyName::Grpo))
            .filter(|e| e.split == split && e.mode == mode)
            .collect();
        found.sort_by_key(|e| (e.step, e.policy));
        // GRPO evaluated before its first step is the warm start again.
        found.dedup_by_key(|e| e.step);
        found
    }
}
