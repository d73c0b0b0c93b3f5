//! Settings of the policy loss: the options and defaults of TRL 1.16.0 under this project's names.
//!
//! Invariant: a setting that the loss does not use has its default. Names and order of the fields
//! are part of a run's fingerprint.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::{
    bounds::{count, finite, positive, range},
    error::{LearnerError, Result},
};

/// The losses of TRL's `loss_type`; they differ in the policy term, the aggregation over tokens, or
/// both. Means and sums are over whole episodes, also where these have several rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// Clipped ratio, mean over the tokens of an episode, mean over episodes (arXiv:2402.03300).
    Grpo,
    /// Clipped ratio, mean over the tokens of the batch (arXiv:2506.02864). A step is one batch, so
    /// this is [`Self::Dapo`].
    Bnpo,
    /// Clipped ratio, sum over tokens divided by episodes and a constant length (arXiv:2503.20783).
    DrGrpo,
    /// Clipped ratio, sum over tokens divided by the loss tokens of the whole step
    /// (arXiv:2503.14476).
    #[default]
    Dapo,
    /// Capped importance weight times log-probability, aggregated as `dapo` (arXiv:2506.13585).
    Cispo,
    /// Soft gate in place of the clip, aggregated as `grpo` (arXiv:2511.20347).
    Sapo,
    /// Clipped ratio, sum over the tokens of an episode, mean over episodes (arXiv:2602.05261, with
    /// [`RatioLevel::Sequence`]).
    Luspo,
    /// Gamma-shaped weight of the row times log-probability, aggregated as `dapo`
    /// (arXiv:2602.10693).
    Vespo,
}

/// Bounds of the importance ratio (PPO's clip).
#[derive(Clone, Copy)]
pub(super) struct ClipRange {
    /// Least ratio that is not clipped.
    pub(super) low: f64,
    /// Largest ratio that is not clipped.
    pub(super) high: f64,
    /// Cap of the ratio where the clip does not apply (two-sided clipping, arXiv:2505.07291);
    /// infinite if there is none.
    pub(super) delta: f64,
}

/// Whether a ratio belongs to a token or to its whole row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RatioLevel {
    /// One ratio per token.
    #[default]
    Token,
    /// One ratio per row: exp of the mean log ratio (GSPO, arXiv:2507.18071).
    Sequence,
}

/// What the ratio between learner and sampler does to the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SamplerCorrection {
    /// Nothing.
    Off,
    /// Ratios of tokens, clamped to the bounds.
    TokenTruncate,
    /// Ratios of tokens, 0 outside the bounds.
    TokenMask,
    /// Ratios of rows (products over tokens), clamped to the bounds.
    SequenceTruncate,
    /// Ratios of rows (products over tokens), 0 outside the bounds.
    #[default]
    SequenceMask,
}

/// Everything the loss depends on besides its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct LossSettings {
    /// The loss, and how it is averaged. `grpo`: over the tokens of an episode, then over episodes.
    /// `dapo`, and here also `bnpo`: over all tokens of a step that have a loss. `dr_grpo`: the sum
    /// over tokens, divided by episodes and a constant length. The others are those of TRL with the
    /// same names.
    pub loss_type: LossType,
    /// The ratio is clipped below 1 - `clip_low`. For losses that clip. TRL: `epsilon`.
    #[default(0.2)]
    pub clip_low: f64,
    /// The ratio is clipped above 1 + `clip_high`; absent: `clip_low`. For losses that clip. For
    /// `cispo` the largest importance weight, which must be given. TRL: `epsilon_high`.
    pub clip_high: Option<f64>,
    /// Divisor of an episode's sum, in tokens; absent: `rollout.max_context_tokens`. For `dr_grpo`.
    /// TRL: `max_completion_length`.
    pub dr_grpo_length: Option<u32>,
    /// Cap of the ratio where the clip does not apply (two-sided clipping), above 1 + `clip_high`;
    /// absent: none. For losses that clip.
    pub delta: Option<f64>,
    /// Whether a ratio belongs to a token or to its whole row. A row is what an episode sampled in
    /// one context; an episode has several if parts of its context were left out. `luspo` is meant
    /// for `sequence`; with `token` it is `dr_grpo` with a `dr_grpo_length` of 1. TRL:
    /// `importance_sampling_level`.
    pub ratio_level: RatioLevel,
    /// Weight of the KL divergence to the reference policy (estimator k3); 0 loads no reference.
    /// TRL: `beta`.
    pub kl_coef: f64,
    /// Whether the KL divergence is multiplied by the differentiable ratio. TRL:
    /// `use_bias_correction_kl`.
    #[default(true)]
    pub kl_bias_correction: bool,
    /// Correction of the mismatch between learner and sampler, of tokens or of rows (see
    /// `ratio_level`). It needs `ratio_against = "learner"`: the ratio against the sampler contains
    /// the mismatch, and the clip bounds it. TRL: `vllm_importance_sampling_mode`.
    pub sampler_correction: SamplerCorrection,
    /// Lower bound of the correction, at most 1; absent: none. TRL:
    /// `vllm_importance_sampling_clip_min`.
    pub sampler_clip_min: Option<f64>,
    /// Upper bound of the correction, at least 1; for none give 1e300. TRL:
    /// `vllm_importance_sampling_clip_max`.
    #[default(Some(3.0))]
    pub sampler_clip_max: Option<f64>,
    /// Rows (see `ratio_level`) of negative advantage whose mean log-probability fell by more than
    /// this have no loss; absent: none.
    pub off_policy_mask_threshold: Option<f64>,
    /// Share of a micro-batch's tokens, by entropy, that have the policy term; 1: all
    /// (arXiv:2506.01939). The threshold is the micro-batch's own, as in TRL. Below 1, how a step
    /// is cut into micro-batches therefore decides which tokens are trained: `micro_batch_tokens`,
    /// `share_prefixes`, `ranks.count`, and whether a GPU computes.
    #[default(1.0)]
    pub top_entropy_quantile: f64,
    /// Weight of the entropy bonus: the mean over a micro-batch's tokens in that share, weighted by
    /// their number.
    pub entropy_coef: f64,
    /// Steepness of the gate where the advantage is positive. For `sapo`.
    #[default(1.0)]
    pub sapo_temperature_pos: f64,
    /// Steepness of the gate elsewhere. For `sapo`.
    #[default(1.05)]
    pub sapo_temperature_neg: f64,
    /// k of the weight of a row (see `ratio_level`) where the advantage is not negative. For
    /// `vespo`.
    #[default(2.0)]
    pub vespo_k_pos: f64,
    /// lambda where the advantage is not negative. For `vespo`.
    #[default(3.0)]
    pub vespo_lambda_pos: f64,
    /// k where the advantage is negative. For `vespo`.
    #[default(3.0)]
    pub vespo_k_neg: f64,
    /// lambda where the advantage is negative. For `vespo`.
    #[default(2.0)]
    pub vespo_lambda_neg: f64,
    /// Whether an episode that was cut has no loss: the token limit cut its last completion, or its
    /// step budget ran out before an answer. An episode that goes on after a cut completion and
    /// answers has its loss. In TRL a completion is a whole episode.
    pub mask_truncated_completions: bool,
}

impl LossSettings {
    /// Returns the bounds of the ratio, for losses that clip.
    pub(super) fn clip(&self) -> ClipRange {
        ClipRange {
            low: 1.0 - self.clip_low,
            high: 1.0 + self.clip_high.unwrap_or(self.clip_low),
            delta: self.delta.unwrap_or(f64::INFINITY),
        }
    }

    /// Checks every number, and refuses settings that the loss does not use. The error names the
    /// field and what it may be.
    pub fn validate(&self) -> Result<()> {
        if self.loss_type == LossType::Cispo && self.clip_high.is_none() {
            let problem =
                "is not given; cispo caps the ratio itself there, give a number above 1 such as 5";
            return Err(LearnerError::setting("loss.clip_high", problem));
        }
        let most = f64::MAX;
        range("loss.clip_low", self.clip_low, 0.0, 1.0)?;
        let high = self.clip_high.unwrap_or(self.clip_low);
        range("loss.clip_high", high, 0.0, most)?;
        let length = self.dr_grpo_length.unwrap_or(1).into();
        count("loss.dr_grpo_length", length, u32::MAX.into())?;
        range("loss.kl_coef", self.kl_coef, 0.0, most)?;
        range("loss.entropy_coef", self.entropy_coef, 0.0, most)?;
        let quantile = self.top_entropy_quantile;
        range("loss.top_entropy_quantile", quantile, 0.0, 1.0)?;
        let above_zero = [
            ("loss.delta", self.delta),
            ("loss.sapo_temperature_pos", Some(self.sapo_temperature_pos)),
            ("loss.sapo_temperature_neg", Some(self.sapo_temperature_neg)),
        ];
        for (field, value) in above_zero {
            value.map_or(Ok(()), |value| positive(field, value))?;
        }
        // A ratio of 1 is that of equal log-probabilities, which need no correction.
        let highest = self.sampler_clip_max.unwrap_or(1.0);
        range("loss.sampler_clip_max", highest, 1.0, most)?;
        let lowest = self.sampler_clip_min.unwrap_or(1.0);
        range("loss.sampler_clip_min", lowest, 0.0, 1.0)?;
        let threshold = self.off_policy_mask_threshold.unwrap_or(0.0);
        finite("loss.off_policy_mask_threshold", threshold)?;
        finite("loss.vespo_k_pos", self.vespo_k_pos)?;
        finite("loss.vespo_lambda_pos", self.vespo_lambda_pos)?;
        finite("loss.vespo_k_neg", self.vespo_k_neg)?;
        finite("loss.vespo_lambda_neg", self.vespo_lambda_neg)?;
        self.refuse_unused()
    }

    /// Refuses settings that the loss does not use, and numbers that make no sense for it.
    fn refuse_unused(&self) -> Result<()> {
        use LossType::{Cispo, DrGrpo, Sapo, Vespo};
        let (loss, default) = (self.loss_type, Self::default());
        let clips = ![Cispo, Sapo, Vespo].contains(&loss);
        let has_kl = self.kl_coef != 0.0;
        let corrects = self.sampler_correction != SamplerCorrection::Off;
        macro_rules! check {
            ($($is_used:expr, $user:literal => $($field:ident)+;)+) => {$($(
                if !$is_used && self.$field != default.$field {
                    let problem = concat!("is set, but ", $user, " does not use it; leave it out");
                    let field = concat!("loss.", stringify!($field));
                    return Err(LearnerError::setting(field, problem));
                }
            )+)+};
        }
        check! {
            clips, "loss_type" => clip_low delta;
            clips || loss == Cispo, "loss_type" => clip_high;
            loss == DrGrpo, "loss_type" => dr_grpo_length;
            loss == Sapo, "loss_type" => sapo_temperature_pos sapo_temperature_neg;
            loss == Vespo, "loss_type" => vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg;
            loss != Vespo || (has_kl && self.kl_bias_correction),
                "vespo without kl_coef and kl_bias_correction" => ratio_level;
            has_kl, "kl_coef = 0" => kl_bias_correction;
            corrects, "sampler_correction = \"off\"" => sampler_clip_min sampler_clip_max;
        }
        // verl adds 1 to its setting of that name.
        if loss == Cispo && self.clip_high.is_some_and(|high| high < 1.0) {
            let problem = "is below 1, but cispo caps the ratio itself there, so that every ratio \
                           would be cut; give a number above 1 such as 5";
            return Err(LearnerError::setting("loss.clip_high", problem));
        }
        let clipped_above = self.clip().high;
        match self.delta {
            // Below 1, no token with a positive advantage would have a gradient.
            Some(delta) if delta <= clipped_above => {
                let problem = format!(
                    "is {delta}, but a cap up to 1 + clip_high ({clipped_above}) takes the gradient of \
                     tokens that the clip leaves; give a larger number, or leave it out"
                );
                Err(LearnerError::setting("loss.delta", problem))
            }
            _ => Ok(()),
        }
    }

    /// Returns the divisor of a loss of some completions and `tokens` loss tokens (TRL 1.16.0),
    /// before accumulation factors. `context_tokens` is the length of `dr_grpo` where the settings
    /// have none.
    pub fn divisor(&self, completions: f64, tokens: f64, context_tokens: u32) -> f64 {
        match self.loss_type {
            LossType::Grpo | LossType::Sapo | LossType::Luspo => completions,
            LossType::DrGrpo => {
                completions * f64::from(self.dr_grpo_length.unwrap_or(context_tokens))
            }
            LossType::Bnpo | LossType::Dapo | LossType::Cispo | LossType::Vespo => tokens.max(1.0),
        }
    }

    /// Whether each completion's loss is first averaged over its own tokens.
    pub(crate) fn averages_completions(&self) -> bool {
        matches!(self.loss_type, LossType::Grpo | LossType::Sapo)
    }
}
