//! The sections of a run's settings that belong to no other crate.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use learner::LearnerConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

/// Questions and databases.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DataConfig {
    /// Folder of questions and databases, of `data build`, `data draft` or `data import`, or in the
    /// layout of Spider, BIRD or SQLEnv; absent: the project's own data, built on demand.
    pub(crate) dir: Option<PathBuf>,
    /// Databases to use, by name, or `all`; absent: the layout's default.
    pub(crate) databases: Option<Vec<String>>,
}

/// The policy to start from.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ModelConfig {
    /// Hugging Face model folder; absent: the embedded base policy.
    pub(crate) dir: Option<PathBuf>,
    /// Whether the embedded policy starts from random weights instead of the base policy's.
    pub(crate) random_weights: bool,
}

impl ModelConfig {
    /// Names the model for display.
    pub(crate) fn name(&self) -> String {
        match &self.dir {
            Some(dir) => dir.display().to_string(),
            None if self.random_weights => "the embedded policy with random weights".to_owned(),
            None => "the embedded base policy".to_owned(),
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        if self.random_weights && self.dir.is_some() {
            bail!(
                "model.random_weights is for the embedded policy, and model.dir names another; \
                 remove one of them"
            );
        }
        Ok(())
    }
}

/// The supervised warm start: imitation of the oracle, then of its corrections, then of careful and
/// hasty demonstrators.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WarmStartConfig {
    /// Whether there is a warm start. Without one GRPO starts from the base model.
    #[default(true)]
    pub(crate) enabled: bool,
    /// Demonstrations in the first and in the third stage; 0: one per training question.
    pub(crate) demonstrations: usize,
    /// Training questions at the beginning of the shuffled order that no stage uses. A second
    /// training can so use the questions that the first has not used.
    pub(crate) skip_questions: usize,
    /// First stage: demonstrations of the oracle.
    pub(crate) oracle: learner::sft::SftConfig,
    /// Second stage: training questions that the policy then plays itself. Whenever its last action
    /// has visibly failed, the oracle takes the turn, and of these episodes only such turns are
    /// learned (DAgger). 0: none. A training that is interrupted plays them again.
    pub(crate) corrected_questions: usize,
    /// Training on the episodes with a correction, and on up to as many demonstrations of the
    /// oracle.
    pub(crate) corrections: learner::sft::SftConfig,
    /// Third stage: demonstrations of careful and hasty demonstrators; a budget of 0 tokens
    /// skips it.
    pub(crate) demonstrators: learner::sft::SftConfig,
    /// Share of the third stage's episodes by a hasty demonstrator, which answers without a query.
    #[default(0.5)]
    pub(crate) hasty_share: f64,
    /// Share of the careful episodes in the third stage that run a subtly wrong query.
    #[default(0.25)]
    pub(crate) wrong_query_share: f64,
    /// Share of the careful episodes that make an SQL error and recover from it.
    #[default(0.07)]
    pub(crate) recovery_share: f64,
}

impl WarmStartConfig {
    pub(super) fn validate(&self) -> Result<()> {
        for (name, share) in [
            ("hasty_share", self.hasty_share),
            ("wrong_query_share", self.wrong_query_share),
            ("recovery_share", self.recovery_share),
        ] {
            if !(0.0..=1.0).contains(&share) {
                bail!("warm_start.{name} is {share}; a share lies between 0 and 1");
            }
        }
        for (stage, settings) in [
            ("oracle", &self.oracle),
            ("corrections", &self.corrections),
            ("demonstrators", &self.demonstrators),
        ] {
            let checked = settings.validate();
            checked.with_context(|| format!("in [warm_start.{stage}]"))?;
        }
        Ok(())
    }
}

/// Imitation of the oracle, from the model from which GRPO starts. The report compares it with
/// GRPO, so that GRPO's gain is not confused with that of more training.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ImitationConfig {
    /// Whether to train it.
    #[default(true)]
    pub(crate) enabled: bool,
    /// Settings of its training. Here a `budget_tokens` of 0 means as many tokens as GRPO trained
    /// on.
    pub(crate) sft: learner::sft::SftConfig,
}

/// The training of the base policy on procedural databases (`sqlenv pretrain`).
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PretrainConfig {
    /// Shards; each is a number of databases that the policy meets once.
    #[default(32)]
    pub(crate) shards: u64,
    /// Shards at the beginning whose databases are small and whose questions are simple.
    pub(crate) simple_shards: u64,
    /// Databases of a shard.
    #[default(512)]
    pub(crate) databases_per_shard: usize,
    /// Questions about a database.
    #[default(8)]
    pub(crate) questions_per_database: usize,
    /// Percentage of databases of a declared domain that is trained on.
    #[default(25)]
    pub(crate) declared_percent: usize,
    /// Percentage of the other databases whose schema is messy: more tables and columns, names in
    /// several spellings, some of which SQL reads in quotation marks only.
    pub(crate) messy_percent: u64,
    /// Shards at the beginning without messy schemas.
    pub(crate) tidy_shards: u64,
    /// Share of the demonstrations that make an SQL error and recover from it.
    #[default(0.03)]
    pub(crate) recovery_share: f64,
    /// Shards at the end that also have episodes of the model itself, in which the oracle corrects
    /// visible failures (DAgger).
    pub(crate) corrected_shards: u64,
    /// Episodes of the model in such a shard. Those without a failure are left out.
    #[default(1000)]
    pub(crate) corrected_episodes: usize,
    /// Shards between two evaluations; 0: only one at the end.
    #[default(4)]
    pub(crate) evaluate_every_shards: u64,
    /// Optimizer, schedule and batches. The budget of tokens has no effect.
    pub(crate) sft: learner::sft::SftConfig,
}

impl PretrainConfig {
    /// Returns the number of optimizer updates on demonstrations, over which the learning rate
    /// follows its schedule. Updates on corrected episodes come on top; the last ones have the
    /// schedule's lowest rate.
    pub(crate) fn planned_steps(&self) -> u64 {
        let episodes = self.databases_per_shard * self.questions_per_database;
        self.shards * episodes.div_ceil(self.sft.batch_episodes) as u64
    }

    pub(super) fn validate(&self) -> Result<()> {
        const MOST: usize = 1 << 20;
        for (name, value) in [
            ("databases_per_shard", self.databases_per_shard),
            ("questions_per_database", self.questions_per_database),
        ] {
            if !(1..=MOST).contains(&value) {
                bail!("pretrain.{name} is {value}; set it to 1 to {MOST}");
            }
        }
        for (name, percent) in [
            ("declared_percent", self.declared_percent as u64),
            ("messy_percent", self.messy_percent),
        ] {
            if percent > 100 {
                bail!("pretrain.{name} is {percent}; give 0 to 100");
            }
        }
        if !(0.0..=1.0).contains(&self.recovery_share) {
            bail!(
                "pretrain.recovery_share is {}; a share lies between 0 and 1",
                self.recovery_share
            );
        }
        self.sft.validate().context("in [pretrain.sft]")
    }
}

/// Evaluations of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EvaluationConfig {
    /// Questions of the split `eval` in the comparison table. Their ids decide, so they are the
    /// same in every run.
    #[default(400)]
    pub(crate) questions: usize,
    /// Questions of each part of the split `eval-unseen` in the comparison table.
    #[default(200)]
    pub(crate) unseen_questions: usize,
    /// Questions of the learning curve: questions of `eval` that are not in the table, the same in
    /// every run.
    #[default(200)]
    pub(crate) curve_questions: usize,
    /// Learner steps between two points of the learning curve; 0: no points. Checkpoints are
    /// evaluated, so this is a multiple of `learner.checkpoint.every_steps`.
    #[default(10)]
    pub(crate) every_steps: u64,
    /// Episodes that run at once.
    #[default(64)]
    pub(crate) concurrency: usize,
}

impl EvaluationConfig {
    /// Returns whether the learning curve has a point at a step of a run with `last` steps.
    pub(crate) fn is_due(&self, step: u64, last: u64) -> bool {
        self.every_steps > 0 && (step.is_multiple_of(self.every_steps) || step == last)
    }

    /// Returns the first and the last step of a run, and those between them at which the learning
    /// curve has a point.
    pub(crate) fn evaluated_steps(&self, last: u64) -> impl Iterator<Item = u64> {
        let every = match self.every_steps {
            0 => last.max(1),
            every => every,
        };
        (0..last).step_by(every as usize).chain([last])
    }

    /// Checks that evaluations have the questions of those that the run `begun` has.
    ///
    /// # Errors
    /// Names the setting that differs.
    pub(crate) fn check_questions_of(&self, begun: &Self) -> Result<()> {
        for (name, own, begun) in [
            ("questions", self.questions, begun.questions),
            (
                "unseen_questions",
                self.unseen_questions,
                begun.unseen_questions,
            ),
            (
                "curve_questions",
                self.curve_questions,
                begun.curve_questions,
            ),
        ] {
            ensure!(
                own == begun,
                "evaluation.{name} is {own}, and {begun} in the run that is resumed, whose table \
                 compares policies on the same questions; give {begun}, or the preset and the file \
                 that the run began with"
            );
        }
        Ok(())
    }

    /// Checks that the points of the learning curve have checkpoints.
    pub(super) fn validate(&self, learner: &LearnerConfig) -> Result<()> {
        let (points, checkpoints) = (self.every_steps, learner.checkpoint.every_steps);
        if points > 0 && (checkpoints == 0 || !points.is_multiple_of(checkpoints)) {
            bail!(
                "evaluation.every_steps is {points} and learner.checkpoint.every_steps \
                 {checkpoints}; checkpoints are what is evaluated, so give a multiple of it, or 0 \
                 for no points"
            );
        }
        Ok(())
    }
}
