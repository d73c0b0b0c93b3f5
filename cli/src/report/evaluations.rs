//! Questions the report asks of a run's evaluations. Pure.

use crate::run::{CURVE_SPLIT, Evaluation, Mode, PolicyName};

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
        mode: Mode,
    ) -> Option<&'a Evaluation> {
        let mode_of = |e: &Evaluation| {
            if policy.is_scripted() {
                Mode::Greedy
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
    pub(super) fn history(self, split: &str, mode: Mode) -> Vec<&'a Evaluation> {
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

/// Wilson's interval at 95 % for `correct` of `questions`; the whole range where nothing was asked.
///
/// Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
pub(super) fn wilson(correct: u64, questions: u64) -> (f64, f64) {
    if questions == 0 {
        return (0.0, 1.0);
    }
    const Z: f64 = 1.959_963_984_540_054;
    let n = questions as f64;
    let p = (correct as f64 / n).min(1.0);
    let centre = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    (
        ((centre - half) / scale).max(0.0),
        ((centre + half) / scale).min(1.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_matches_published_values() {
        // Newcombe, Statistics in Medicine 17 (1998), table I: 81/263, 15/148, 0/20, 1/29.
        for (correct, questions, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ] {
            let (l, h) = wilson(correct, questions);
            assert!((l - low).abs() < 5e-5 && (h - high).abs() < 5e-5, "{l} {h}");
        }
        assert_eq!(wilson(0, 0), (0.0, 1.0));
    }
}
