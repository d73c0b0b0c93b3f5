//! Settings that can be used, but hardly as they are.
//!
//! They are not refused: a preset may give a setting its value, and another one that is given on
//! the command line may leave it without an effect.

use super::LearnerConfig;
use crate::schedule::ScheduleKind;

impl LearnerConfig {
    /// Returns what should be said of the settings before a run trains, each with its remedy.
    pub fn warnings(&self) -> Vec<String> {
        let found = [self.filters(), self.warmup(), self.least_rate()];
        found.into_iter().flatten().collect()
    }

    fn filters(&self) -> Option<String> {
        let sampling = &self.rollout.sampling;
        let filters = [
            ("top_k", sampling.top_k > 0),
            ("top_p", sampling.top_p < 1.0),
            ("min_p", sampling.min_p > 0.0),
        ];
        let used: Vec<&str> = filters.iter().filter(|it| it.1).map(|it| it.0).collect();
        (!used.is_empty()).then(|| {
            format!(
                "learner.rollout.sampling filters tokens by {}, but log-probabilities are recorded \
                 before the filters; neither the importance ratio nor the metrics sampling/ see \
                 that the policy is trained on another distribution than its own. To sample from \
                 the policy itself, give top_k = 0, top_p = 1 and min_p = 0",
                used.join(", ")
            )
        })
    }

    fn warmup(&self) -> Option<String> {
        let updates = self.steps.saturating_mul(self.num_iterations);
        let warmup = self.schedule.warmup_steps;
        (warmup > 0 && warmup >= updates).then(|| {
            format!(
                "learner.schedule.warmup_steps is {warmup}, but the run makes {updates} updates in \
                 all, so the learning rate never reaches learner.optimizer.learning_rate; give \
                 fewer"
            )
        })
    }

    fn least_rate(&self) -> Option<String> {
        let least = self.schedule.min_factor;
        let is_unused = self.schedule.kind == ScheduleKind::Constant && least != 0.0;
        is_unused.then(|| {
            format!(
                "learner.schedule.min_factor is {least}, but learner.schedule.kind is constant, \
                 which does not fall; give linear or cosine, or leave it out"
            )
        })
    }
}
