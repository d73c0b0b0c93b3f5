//! The supervised warm start: imitates the oracle, then careful and hasty demonstrators.
//!
//! It trains two policies. The warm start, from which GRPO continues, has seen careful and hasty
//! demonstrations, as pretrained models and real logs have. The other policy has imitated the
//! oracle alone for as many tokens. Its row in the report shows how much of GRPO's gain a better
//! teacher would give.

use std::{ops::ControlFlow, path::Path};

use anyhow::{Result, bail};
use baselines::DemonstratorMix;
use candle_core::Device;
use learner::sft::{self, SftConfig};
use policy::{Model, Placement, random::derive_seed};
use proto::v1::Segment;
use report::{LearnerStepRecord, RunFolder, TrainingStage};

use crate::{
    demonstrations::demonstrations, evaluation::Evaluator, setup::open_model, shutdown::Interrupted,
};

/// The policies of the warm start.
pub(crate) struct WarmStart {
    /// The model from which GRPO continues.
    pub(crate) warm: Model,
    /// The model that has imitated only the oracle, for as many tokens.
    pub(crate) oracle_only: Option<Model>,
}

/// Trains the warm start, and records its steps in `folder` if one is given.
pub(crate) async fn warm_start(
    evaluator: &Evaluator<'_>,
    base: &Model,
    folder: Option<&RunFolder>,
) -> Result<WarmStart> {
    let config = &evaluator.config.warm_start;
    let trainer = WarmStartTrainer { evaluator, folder };
    let careful = DemonstratorMix {
        error_share: config.recovery_share,
        ..DemonstratorMix::default()
    };
    let oracle = demonstrations(evaluator, "oracle", base, careful).await?;
    let (first, totals) = trainer.imitate(
        "imitating the oracle",
        base,
        &oracle,
        &config.oracle,
        Some(TrainingTotals::default()),
    )?;
    if config.demonstrators.budget_tokens == 0 {
        return Ok(WarmStart {
            warm: first,
            oracle_only: None,
        });
    }
    let mixed = DemonstratorMix {
        hasty_share: config.hasty_share,
        wrong_query_share: config.wrong_query_share,
        error_share: config.recovery_share,
        ..DemonstratorMix::default()
    };
    // These two labels also seed random numbers, so other words would give other weights.
    let mixed = demonstrations(evaluator, "mixed habits", base, mixed).await?;
    let (warm, _) = trainer.imitate(
        "imitating mixed habits",
        &first,
        &mixed,
        &config.demonstrators,
        Some(totals),
    )?;
    let mut oracle_only = None;
    if config.compare_oracle_only {
        let (model, _) = trainer.imitate(
            "oracle alone, to compare",
            &first,
            &oracle,
            &config.demonstrators,
            None,
        )?;
        oracle_only = Some(model);
    }
    Ok(WarmStart { warm, oracle_only })
}

/// The steps and tokens of the training so far.
#[derive(Clone, Copy, Default)]
struct TrainingTotals {
    steps: u64,
    tokens: u64,
}

/// Runs the stages of a warm start.
struct WarmStartTrainer<'a> {
    evaluator: &'a Evaluator<'a>,
    folder: Option<&'a RunFolder>,
}

impl WarmStartTrainer<'_> {
    /// Trains on demonstrations, and returns the model and the totals of this training. If `before`
    /// is given, the steps are recorded and counted from there. `title` is the label of the random
    /// seed, too.
    fn imitate(
        &self,
        title: &str,
        start: &Model,
        episodes: &[Segment],
        config: &SftConfig,
        before: Option<TrainingTotals>,
    ) -> Result<(Model, TrainingTotals)> {
        let stage = self
            .evaluator
            .progress
            .stage(title, config.budget_tokens, "tokens");
        let mut failure = None;
        let run = self.evaluator.config;
        let arguments = run.arguments(derive_seed(run.seed, title));
        let (device, dtype) = run.placement().open()?;
        let placed = start.to(&device, dtype)?;
        let outcome = tokio::task::block_in_place(|| {
            sft::train(&placed, episodes, config, arguments, &mut |state| {
                stage.set(state.tokens.min(config.budget_tokens));
                stage.note(&format!("loss {:.3}", state.loss));
                failure = self.record(before, &state).err();
                if failure.is_some() || self.evaluator.shutdown.is_cancelled() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        if !outcome.finished {
            bail!(Interrupted);
        }
        stage.finish("");
        let model = Model {
            weights: outcome.weights.to(&Device::Cpu, dtype)?,
            ..start.clone()
        };
        let totals = TrainingTotals {
            steps: outcome.steps,
            tokens: outcome.tokens,
        };
        Ok((model, totals))
    }

    fn record(&self, before: Option<TrainingTotals>, state: &sft::SftProgress) -> Result<()> {
        let (Some(before), Some(folder)) = (before, self.folder) else {
            return Ok(());
        };
        folder.append_step(&LearnerStepRecord {
            step: before.steps + state.step,
            stage: TrainingStage::Sft,
            policy_version: 0,
            metrics: [
                ("loss", state.loss),
                ("grad_norm", state.grad_norm),
                ("learning_rate", state.learning_rate),
                ("num_tokens", (before.tokens + state.tokens) as f64),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        })?;
        Ok(())
    }
}

impl WarmStart {
    const WARM: &str = "warm-start";
    const ORACLE_ONLY: &str = "oracle-imitation";

    /// Opens the models that an earlier part of the run wrote to `run_dir`, if there are any.
    pub(crate) fn open(run_dir: &Path, placement: Placement) -> Result<Option<Self>> {
        let open = |name: &str| -> Result<Option<Model>> {
            let dir = run_dir.join(name);
            let found = dir
                .is_dir()
                .then(|| open_model(&dir, placement))
                .transpose()?;
            Ok(found)
        };
        let oracle_only = open(Self::ORACLE_ONLY)?;
        Ok(open(Self::WARM)?.map(|warm| Self { warm, oracle_only }))
    }

    /// Writes the models into `run_dir`. The warm start is written last: its presence means that
    /// all models are complete.
    pub(crate) fn save(&self, run_dir: &Path) -> Result<()> {
        if let Some(model) = &self.oracle_only {
            model.save(&run_dir.join(Self::ORACLE_ONLY))?;
        }
        self.warm.save(&run_dir.join(Self::WARM))?;
        Ok(())
    }
}
