//! The learner's settings, with TRL's defaults except where a field says otherwise. Fields with
//! another name than TRL's say that one; the program accepts it as well.
//!
//! Invariant: a configuration that passes [`LearnerConfig::validate`] cannot fail for its numbers
//! later. In particular no sample is longer than a micro-batch. Actors get their [`RolloutConfig`]
//! from here.

mod warnings;

use policy::{Constraint, SamplingSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use smart_default::SmartDefault;

use crate::{
    advantage::{AdvantageSettings, RewardAggregation},
    bounds::{count, finite, range},
    curriculum::CurriculumStage,
    error::{LearnerError, Result},
    loss::{LossSettings, SamplerCorrection},
    optimizer::OptimizerSettings,
    questions::RepeatSettings,
    ranks::RankSettings,
    schedule::{ScheduleKind, ScheduleSettings},
    server::{config::LearnerServerConfig, trust::TrustConfig},
};

/// The most tokens of a pass, a context or a completion.
pub(crate) const MAX_TOKENS: u64 = 1 << 24;
/// The most trajectories of a group. The wire has 32 bits for a member.
const MAX_GROUP_SIZE: u64 = 1 << 12;
/// The most groups of a batch.
const MAX_GROUPS_PER_STEP: u64 = 1 << 16;
/// The most steps of a run. Evaluations are planned for all of them.
const MAX_STEPS: u64 = 1_000_000;
/// The most actions of an episode: env-node accepts no more.
const MAX_STEP_BUDGET: u64 = 1_000;

/// Arguments of a training that are no settings of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunArguments {
    /// Seed of every random number of the training.
    pub seed: u64,
    /// Threads that compute micro-batches; changes speed, never results. 0 counts as 1.
    pub threads: usize,
}

/// Settings of GRPO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct LearnerConfig {
    /// Learner steps; step s makes policy version s. TRL: `max_steps`.
    #[default(40)]
    pub steps: u64,
    /// Groups of a full batch. With `dynamic_sampling` each has reward variance.
    #[default(16)]
    pub groups_per_step: u64,
    /// Trajectories per group. TRL: `num_generations`.
    #[default(8)]
    pub group_size: usize,
    /// Largest number of groups rolled out for one step; the step then trains on those with reward
    /// variance. 0: 4 times `groups_per_step`.
    pub max_groups_per_step: u64,
    /// Whether further groups are drawn in place of groups without reward variance (DAPO); TRL does
    /// not.
    #[default(true)]
    pub dynamic_sampling: bool,
    /// Groups that actors sample at a time, for each group that a step still lacks. 1 samples none
    /// in vain, but a replacement of a group without reward variance begins only after that group.
    /// If half of the groups have none, 2 samples the replacements at once. Changes speed, and no
    /// result unless `max_staleness` is above 0.
    #[default(1.0)]
    pub oversampling: f64,
    /// Policy versions that a trajectory may lag behind the step that trains on it; 0: synchronous.
    pub max_staleness: u64,
    /// Seconds after which a claimed group is given to another actor. `sqlenv train` loses no actor
    /// and does not read this.
    #[default(300)]
    pub lease_seconds: u32,
    /// Weight of demonstrations: a step is also trained on the oracle's solution of each question
    /// that an episode answered wrongly, whose tokens have this advantage. 0: none.
    pub demonstration_weight: f64,
    /// Optimizer updates per batch. With several, the step's metrics of the loss, the gradient, the
    /// entropy and the clipping are those of the last update.
    #[default(1)]
    pub num_iterations: u64,
    /// Policy in the denominator of the importance ratio. `sampler`: the one that sampled, by the
    /// log-probabilities that actors recorded. `learner`: the learner's before the step, as in
    /// TRL's `GRPOTrainer`.
    pub ratio_against: RatioAgainst,
    /// Largest number of tokens in a forward pass, which bounds memory; at least
    /// `rollout.max_context_tokens`.
    #[default(4096)]
    pub micro_batch_tokens: usize,
    /// Whether a layer keeps only its input and computes the rest again in the backward pass: less
    /// memory, more time, same results. A GPU with too little memory for a micro-batch does so
    /// anyway.
    pub gradient_checkpointing: bool,
    /// Whether a common prefix of neighbouring trajectories, such as the prompt of a group, is
    /// computed once. Changes the last bits of a gradient, by the order of its sums. With
    /// `loss.top_entropy_quantile` below 1 it also changes which tokens are trained.
    #[default(true)]
    pub share_prefixes: bool,
    /// Stages in which the run trains on questions of some difficulties only; then it trains on
    /// all. Each stage is a table of `groups`, which it lasts, and `difficulties`, as the dataset
    /// names them.
    pub curriculum: Vec<CurriculumStage>,
    /// In synchronous runs, questions come back until they are answered.
    pub repeat: RepeatSettings,
    /// Weights of the rewards.
    pub rewards: RewardWeights,
    /// Advantages.
    pub advantage: AdvantageSettings,
    /// The policy loss.
    pub loss: LossSettings,
    /// AdamW and gradient clipping.
    pub optimizer: OptimizerSettings,
    /// The learning rate over time.
    pub schedule: ScheduleSettings,
    /// Sampling by actors.
    pub rollout: RolloutConfig,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// The processes that compute gradients together.
    pub ranks: RankSettings,
    /// How far actors are trusted. `sqlenv train` reads only `max_logprob_difference`.
    pub trust: TrustConfig,
    /// The learner's server.
    pub server: LearnerServerConfig,
}

/// The policy in the denominator of the importance ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RatioAgainst {
    /// The policy that sampled, by its recorded log-probabilities (TRL's asynchronous trainer): the
    /// ratio measures staleness.
    #[default]
    Sampler,
    /// The learner's policy before the step (TRL's synchronous trainer); the sampler correction
    /// covers staleness.
    Learner,
}

/// Weights of the reward columns. TRL's counterpart is one reward function for each column, with
/// `reward_weights`. `shaping` is `progress` and `operational` together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct RewardWeights {
    /// Weight of the answer: 1 if it is correct, else 0.
    #[default(1.0)]
    pub correct: f64,
    /// Weight of the return without its terminal component.
    #[default(1.0)]
    pub shaping: f64,
    /// Weight of the whole return.
    #[serde(rename = "return")]
    pub episode_return: f64,
    /// Weight of the rewards for rows that come closer to the gold rows.
    pub progress: f64,
    /// Weight of the rewards for statements that run and show something new, less the costs of
    /// steps and repetitions.
    pub operational: f64,
}

impl RewardWeights {
    /// Names of the columns in the order of [`Self::weights`].
    pub const COLUMNS: [&str; 5] = ["correct", "shaping", "return", "progress", "operational"];

    /// Returns the weights in the order of the columns.
    pub fn weights(&self) -> [f64; 5] {
        [
            self.correct,
            self.shaping,
            self.episode_return,
            self.progress,
            self.operational,
        ]
    }

    fn validate(&self) -> Result<()> {
        finite("rewards.correct", self.correct)?;
        finite("rewards.shaping", self.shaping)?;
        finite("rewards.return", self.episode_return)?;
        finite("rewards.progress", self.progress)?;
        finite("rewards.operational", self.operational)?;
        if self.weights().iter().all(|weight| *weight == 0.0) {
            let problem = "all weights are 0; give one another value";
            return Err(LearnerError::setting("rewards", problem));
        }
        Ok(())
    }
}

/// Sampling by actors, which get this from `Join`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutConfig {
    /// Temperature, which is above 0 here, and filters, which the loss does not see.
    pub sampling: SamplingSettings,
    /// Largest number of tokens in a turn's completion. TRL's `max_completion_length` counts a
    /// whole episode instead.
    #[default(512)]
    pub max_completion_tokens: u32,
    /// Largest number of tokens in a context. When an episode needs more, notes replace old tool
    /// results, and then old turns are left out. The policy is trained on what it sees then. The
    /// newest turn stays as long as 48 tokens fit behind it, and a quarter of
    /// `max_completion_tokens`. An episode whose prompt leaves no more room gets no score.
    #[default(4096)]
    pub max_context_tokens: u32,
    /// Actions per episode.
    #[default(15)]
    pub step_budget: u32,
    /// Reward profile of the environment; empty: `env.reward_profile`.
    pub reward_profile: String,
    /// Solved examples before each question: 0, 1 or 3.
    pub shots: u32,
    /// Whether prompts invite the model to think before each call (`enable_thinking` of chat
    /// templates such as Qwen3's; others ignore it). Thoughts count as tokens of the completion and
    /// stay in the context.
    pub thinking: bool,
    /// What completions are constrained to: nothing, one tool call, or one tool call whose SQL has
    /// only names that the episode has shown.
    pub constraint: Constraint,
}

/// Checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Steps between checkpoints; 0: only at the end of the run or when it is stopped. TRL:
    /// `save_steps`.
    #[default(10)]
    pub every_steps: u64,
    /// Number of checkpoints that are kept, at least 1. `sqlenv train` keeps at least 2 if the
    /// learning curve has points, so that a resumed run can evaluate the checkpoint whose
    /// evaluation was interrupted. TRL: `save_total_limit`.
    #[default(2)]
    pub keep_last: usize,
}

impl LearnerConfig {
    /// Returns the largest number of groups rolled out for one step.
    pub(crate) fn max_groups_of_step(&self) -> u64 {
        match self.max_groups_per_step {
            0 => self.groups_per_step.saturating_mul(4),
            most => most,
        }
    }

    /// Checks every number, and refuses settings that have no effect. The error names the first
    /// field that cannot be used and what it may be.
    pub fn validate(&self) -> Result<()> {
        count("steps", self.steps, MAX_STEPS)?;
        count("groups_per_step", self.groups_per_step, MAX_GROUPS_PER_STEP)?;
        count("num_iterations", self.num_iterations, 1_000)?;
        range("demonstration_weight", self.demonstration_weight, 0.0, 1e3)?;
        count("lease_seconds", self.lease_seconds.into(), u32::MAX.into())?;
        let kept = self.checkpoint.keep_last as u64;
        count("checkpoint.keep_last", kept, MAX_STEPS)?;
        let pass_tokens = self.micro_batch_tokens as u64;
        count("micro_batch_tokens", pass_tokens, MAX_TOKENS)?;
        self.ranks.validate()?;
        self.trust.validate()?;
        self.server.validate()?;
        self.validate_groups()?;
        self.rollout.validate()?;
        if self.micro_batch_tokens < self.rollout.max_context_tokens as usize {
            let problem = format!(
                "{} is less than rollout.max_context_tokens ({}), so a long sample would not fit; \
                 raise the first or lower the second",
                self.micro_batch_tokens, self.rollout.max_context_tokens
            );
            return Err(LearnerError::setting("micro_batch_tokens", problem));
        }
        self.loss.validate()?;
        self.optimizer.validate()?;
        self.schedule.validate()?;
        self.refuse_unused()
    }

    /// Refuses settings that have no effect, since they would look as if they had one.
    fn refuse_unused(&self) -> Result<()> {
        let default = LossSettings::default();
        let unused = [default.sampler_correction, SamplerCorrection::Off];
        let sets_correction = !unused.contains(&self.loss.sampler_correction);
        let sets_max = self.loss.sampler_clip_max != default.sampler_clip_max;
        let sets_min = self.loss.sampler_clip_min != default.sampler_clip_min;
        for (field, is_set) in [
            ("loss.sampler_correction", sets_correction),
            ("loss.sampler_clip_max", sets_max),
            ("loss.sampler_clip_min", sets_min),
        ] {
            if self.ratio_against == RatioAgainst::Sampler && is_set {
                let problem = "is set, but the ratio is against the sampler and contains the \
                               mismatch already; set ratio_against = \"learner\", or leave it out";
                return Err(LearnerError::setting(field, problem));
            }
        }
        let advantage = &self.advantage;
        if advantage.aggregation == RewardAggregation::NormalizeThenSum
            && advantage.scale_rewards != AdvantageSettings::default().scale_rewards
        {
            let problem =
                "is set, but aggregation = \"normalize_then_sum\" does not use it; leave it out";
            return Err(LearnerError::setting("advantage.scale_rewards", problem));
        }
        if !self.dynamic_sampling && self.oversampling != 1.0 {
            let problem = "is set, but without dynamic_sampling no group is replaced; leave it out";
            return Err(LearnerError::setting("oversampling", problem));
        }
        Ok(())
    }

    fn validate_groups(&self) -> Result<()> {
        if self.group_size < 2 {
            let size = self.group_size;
            let problem =
                format!("is {size}; advantages compare the members of a group, give at least 2");
            return Err(LearnerError::setting("group_size", problem));
        }
        count("group_size", self.group_size as u64, MAX_GROUP_SIZE)?;
        let groups = self.max_groups_of_step();
        count("max_groups_per_step", groups, 64 * MAX_GROUPS_PER_STEP)?;
        if self.max_groups_of_step() < self.groups_per_step {
            let problem = format!(
                "is {}, less than groups_per_step ({}); raise it or give 0 for 4 x groups_per_step",
                self.max_groups_per_step, self.groups_per_step
            );
            return Err(LearnerError::setting("max_groups_per_step", problem));
        }
        range("oversampling", self.oversampling, 1.0, 64.0)?;
        let is_synchronous = self.max_staleness == 0;
        self.repeat.validate(groups, is_synchronous)?;
        self.rewards.validate()
    }

    /// Returns the SHA-256, in hexadecimal, of everything that shapes the weights: a run resumes
    /// only under the same.
    ///
    /// Left out are oversampling, gradient checkpointing, leases, checkpoints, the timeout of
    /// ranks, the server, the trust in actors, and the number of steps where the learning rate does
    /// not depend on it.
    pub fn fingerprint(&self, run_seed: u64) -> String {
        let shaping = Self {
            steps: match self.schedule.kind {
                ScheduleKind::Constant => 0,
                ScheduleKind::Linear | ScheduleKind::Cosine => self.steps,
            },
            oversampling: 1.0,
            lease_seconds: 0,
            gradient_checkpointing: false,
            checkpoint: CheckpointConfig::default(),
            ranks: self.ranks.shaping(),
            server: LearnerServerConfig::default(),
            trust: TrustConfig::default(),
            ..self.clone()
        };
        let json = serde_json::to_string(&(run_seed, shaping));
        let json = json.expect("plain settings serialise: this is a bug");
        hex::encode(Sha256::digest(json))
    }
}

impl RolloutConfig {
    fn validate(&self) -> Result<()> {
        self.sampling.validate()?;
        let temperature = self.sampling.temperature.into();
        range("rollout.sampling.temperature", temperature, 1e-3, 1e3)?;
        let completion_tokens = self.max_completion_tokens.into();
        count(
            "rollout.max_completion_tokens",
            completion_tokens,
            MAX_TOKENS,
        )?;
        let context_tokens = self.max_context_tokens.into();
        count("rollout.max_context_tokens", context_tokens, MAX_TOKENS)?;
        count(
            "rollout.step_budget",
            self.step_budget.into(),
            MAX_STEP_BUDGET,
        )?;
        if self.max_context_tokens <= self.max_completion_tokens {
            let problem = format!(
                "is {}, no more than rollout.max_completion_tokens ({}); a context holds a prompt \
                 too",
                self.max_context_tokens, self.max_completion_tokens
            );
            return Err(LearnerError::setting("rollout.max_context_tokens", problem));
        }
        if ![0, 1, 3].contains(&self.shots) {
            let problem = format!("is {}; give 0, 1 or 3", self.shots);
            return Err(LearnerError::setting("rollout.shots", problem));
        }
        if self.thinking && self.constraint != Constraint::None {
            let problem =
                "leaves no room for thoughts; turn rollout.thinking off, or give \"none\"";
            return Err(LearnerError::setting("rollout.constraint", problem));
        }
        Ok(())
    }
}

/// Converts sampling settings to their message.
pub(crate) fn sampling_message(sampling: &SamplingSettings) -> proto::v1::SamplingSettings {
    proto::v1::SamplingSettings {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
    }
}
