//! Settings that can be used, but hardly as they are.
//!
//! They are not refused: a preset may give a setting its value, and another one that is given on
//! the command line may leave it without an effect.

use super::{LearnerConfig, RatioAgainst};
use crate::{
    loss::{LossSettings, LossType, SamplerCorrection},
    schedule::ScheduleKind,
};

impl LearnerConfig {
    /// Returns what should be said of the settings before a run trains, each with its remedy.
    pub fn warnings(&self) -> Vec<String> {
        let found = [
            self.filters(),
            self.warmup(),
            self.least_rate(),
            self.bounds_of_no_ratio(),
            self.uncorrected_staleness(),
        ];
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

    /// The policy before the only update of a step is the one that is trained.
    fn bounds_of_no_ratio(&self) -> Option<String> {
        let (loss, default) = (&self.loss, LossSettings::default());
        let is_one = self.ratio_against == RatioAgainst::Learner && self.num_iterations == 1;
        // A clip at 1 itself halves the gradient. The cap of cispo must be given.
        let clips = loss.clip_low > 0.0 && loss.clip_high.unwrap_or(1.0) > 0.0;
        let caps = loss.loss_type == LossType::Cispo;
        let sets = [
            ("clip_low", clips && loss.clip_low != default.clip_low),
            (
                "clip_high",
                clips && !caps && loss.clip_high != default.clip_high,
            ),
            ("delta", loss.delta != default.delta),
            (
                "sapo_temperature_pos",
                loss.sapo_temperature_pos != default.sapo_temperature_pos,
            ),
            (
                "sapo_temperature_neg",
                loss.sapo_temperature_neg != default.sapo_temperature_neg,
            ),
        ];
        let unused: Vec<&str> = sets.iter().filter(|it| it.1).map(|it| it.0).collect();
        (is_one && !unused.is_empty()).then(|| {
            format!(
                "learner.loss sets {}, but with learner.ratio_against = \"learner\" and \
                 learner.num_iterations = 1 the importance ratio is always 1, so the gradient does \
                 not depend on that; leave it out, give more iterations, or give ratio_against = \
                 \"sampler\"",
                unused.join(", ")
            )
        })
    }

    fn uncorrected_staleness(&self) -> Option<String> {
        let is_uncorrected = self.ratio_against == RatioAgainst::Learner
            && self.loss.sampler_correction == SamplerCorrection::Off;
        let staleness = self.max_staleness;
        (is_uncorrected && staleness > 0).then(|| {
            format!(
                "learner.max_staleness is {staleness}, but with learner.ratio_against = \
                 \"learner\" and learner.loss.sampler_correction = \"off\" nothing corrects for \
                 trajectories of older policies; leave out one of the two settings"
            )
        })
    }
}
