//! Settings of the policy loss: TRL 1.16.0's options and defaults under this project's names, TRL's accepted as aliases.

use serde::{Deserialize, Serialize};

use crate::{
    bounds::{at_least_one, finite, positive, range},
    error::{LearnerError, Result},
};

/// The losses of TRL's `loss_type`; they differ in the policy term, the aggregation over tokens, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// Clipped ratio, mean over each row, mean over rows.
    Grpo,
    /// Clipped ratio, mean over tokens.
    Bnpo,
    /// Clipped ratio, sum over tokens by a constant length, `dr_grpo_length`.
    DrGrpo,
    /// Clipped ratio, sum over tokens by the tokens of the whole generation batch.
    #[default]
    Dapo,
    /// Truncated importance weight times log-probability; aggregated as `Dapo`.
    Cispo,
    /// Soft gate in place of the clip; aggregated as `Grpo`.
    Sapo,
    /// Clipped ratio, sum over each row, mean over rows.
    Luspo,
    /// Gamma-shaped sequence weight times log-probability; aggregated as `Dapo`.
    Vespo,
}

/// Whether a ratio belongs to a token or to its whole row (GSPO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RatioLevel {
    /// One ratio a token.
    #[default]
    Token,
    /// One ratio a row: exp of the mean log ratio.
    Sequence,
}

/// What the ratio between learner and sampler does to the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplerCorrection {
    /// Nothing.
    Off,
    /// Token ratios, clamped to the bounds.
    TokenTruncate,
    /// Token ratios, 0 outside the bounds.
    TokenMask,
    /// Row ratios (products), clamped to the bounds.
    SequenceTruncate,
    /// Row ratios (products), 0 outside the bounds.
    #[default]
    SequenceMask,
}

/// Everything the loss depends on besides its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossSettings {
    /// The loss.
    pub loss_type: LossType,
    /// The ratio is clipped below 1 - `clip_low`.
    #[serde(alias = "epsilon")]
    pub clip_low: f64,
    /// The ratio is clipped above 1 + `clip_high`; absent: `clip_low`. For `cispo` the ratio's absolute cap,
    /// which must be given.
    #[serde(alias = "epsilon_high")]
    pub clip_high: Option<f64>,
    /// What `dr_grpo` divides each row's sum by, in tokens; absent: `rollout.max_context_tokens`.
    // Left out where absent, so that a run without it keeps its fingerprint.
    #[serde(
        alias = "max_completion_length",
        skip_serializing_if = "Option::is_none"
    )]
    pub dr_grpo_length: Option<u32>,
    /// Cap of the unclipped ratio (two-sided clipping); absent: none.
    pub delta: Option<f64>,
    /// Token or sequence ratios.
    #[serde(alias = "importance_sampling_level")]
    pub ratio_level: RatioLevel,
    /// Weight of the k3 KL divergence to the reference; 0 loads no reference.
    #[serde(alias = "beta")]
    pub kl_coef: f64,
    /// Whether the KL is multiplied by the (differentiable) ratio.
    #[serde(alias = "use_bias_correction_kl")]
    pub kl_bias_correction: bool,
    /// Correction of the mismatch between learner and sampler. Without effect where `ratio_against` is `sampler`: the
    /// ratio then holds the mismatch, and the clip bounds it.
    #[serde(alias = "vllm_importance_sampling_mode")]
    pub sampler_correction: SamplerCorrection,
    /// Lower bound of the correction ratio; absent: none.
    #[serde(alias = "vllm_importance_sampling_clip_min")]
    pub sampler_clip_min: Option<f64>,
    /// Upper bound of the correction ratio; absent: none.
    #[serde(alias = "vllm_importance_sampling_clip_max")]
    pub sampler_clip_max: Option<f64>,
    /// Rows of negative advantage whose mean log-prob fell by more than this are dropped; absent: none.
    pub off_policy_mask_threshold: Option<f64>,
    /// Share of the tokens of a micro-batch, by entropy, that bear the policy term; 1 is all. As in TRL the threshold is
    /// each micro-batch's own, so with less than 1 the result depends on `micro_batch_tokens`.
    pub top_entropy_quantile: f64,
    /// Weight of the entropy bonus: the mean over each micro-batch's tokens in that share, weighted by its tokens.
    pub entropy_coef: f64,
    /// Steepness of SAPO's gate where the advantage is positive.
    pub sapo_temperature_pos: f64,
    /// Steepness of SAPO's gate elsewhere.
    pub sapo_temperature_neg: f64,
    /// VESPO's k where the advantage is not negative.
    pub vespo_k_pos: f64,
    /// VESPO's lambda where the advantage is not negative.
    pub vespo_lambda_pos: f64,
    /// VESPO's k where the advantage is negative.
    pub vespo_k_neg: f64,
    /// VESPO's lambda where the advantage is negative.
    pub vespo_lambda_neg: f64,
    /// Whether rows cut by a token limit bear no loss.
    pub mask_truncated_completions: bool,
}

impl Default for LossSettings {
    fn default() -> Self {
        Self {
            loss_type: LossType::default(),
            clip_low: 0.2,
            clip_high: None,
            dr_grpo_length: None,
            delta: None,
            ratio_level: RatioLevel::default(),
            kl_coef: 0.0,
            kl_bias_correction: true,
            sampler_correction: SamplerCorrection::default(),
            sampler_clip_min: None,
            sampler_clip_max: Some(3.0),
            off_policy_mask_threshold: None,
            top_entropy_quantile: 1.0,
            entropy_coef: 0.0,
            sapo_temperature_pos: 1.0,
            sapo_temperature_neg: 1.05,
            vespo_k_pos: 2.0,
            vespo_lambda_pos: 3.0,
            vespo_k_neg: 3.0,
            vespo_lambda_neg: 2.0,
            mask_truncated_completions: false,
        }
    }
}

impl LossSettings {
    /// `clip_high`, or `clip_low` where it is absent.
    #[must_use]
    pub fn high(&self) -> f64 {
        self.clip_high.unwrap_or(self.clip_low)
    }

    /// Checks every number.
    ///
    /// # Errors
    /// [`LearnerError::Setting`] names the field and what it may be.
    pub fn validate(&self) -> Result<()> {
        let most = f64::MAX;
        range("loss.clip_low", self.clip_low, 0.0, 1.0)?;
        range("loss.clip_high", self.high(), 0.0, most)?;
        if self.loss_type == LossType::Cispo && self.clip_high.is_none() {
            let problem =
                "is not given; cispo caps the ratio itself there, give a number above 1 such as 5";
            return Err(LearnerError::setting("loss.clip_high", problem));
        }
        let length = self.dr_grpo_length.unwrap_or(1);
        at_least_one("loss.dr_grpo_length", length.into())?;
        range("loss.kl_coef", self.kl_coef, 0.0, most)?;
        range("loss.entropy_coef", self.entropy_coef, 0.0, most)?;
        range(
            "loss.top_entropy_quantile",
            self.top_entropy_quantile,
            0.0,
            1.0,
        )?;
        let above_zero = [
            ("loss.delta", self.delta),
            ("loss.sampler_clip_max", self.sampler_clip_max),
            ("loss.sapo_temperature_pos", Some(self.sapo_temperature_pos)),
            ("loss.sapo_temperature_neg", Some(self.sapo_temperature_neg)),
        ];
        for (field, value) in above_zero {
            value.map_or(Ok(()), |value| positive(field, value))?;
        }
        let highest = self.sampler_clip_max.unwrap_or(most);
        range(
            "loss.sampler_clip_min",
            self.sampler_clip_min.unwrap_or(0.0),
            0.0,
            highest,
        )?;
        finite(
            "loss.off_policy_mask_threshold",
            self.off_policy_mask_threshold.unwrap_or(0.0),
        )?;
        finite("loss.vespo_k_pos", self.vespo_k_pos)?;
        finite("loss.vespo_lambda_pos", self.vespo_lambda_pos)?;
        finite("loss.vespo_k_neg", self.vespo_k_neg)?;
        finite("loss.vespo_lambda_neg", self.vespo_lambda_neg)
    }

    /// What a loss of `rows` rows and `tokens` loss tokens is divided by (TRL 1.16.0), before accumulation factors.
    /// `dr_grpo_length` is TRL's `max_completion_length`.
    #[must_use]
    pub fn divisor(&self, rows: f64, tokens: f64, dr_grpo_length: f64) -> f64 {
        match self.loss_type {
            LossType::Grpo | LossType::Sapo | LossType::Luspo => rows,
            LossType::DrGrpo => rows * dr_grpo_length,
            LossType::Bnpo | LossType::Dapo | LossType::Cispo | LossType::Vespo => tokens.max(1.0),
        }
    }

    /// Whether each row's loss is first averaged over its own tokens.
    pub(super) fn averages_rows(&self) -> bool {
        matches!(self.loss_type, LossType::Grpo | LossType::Sapo)
    }
}
