//! The supervised warm start: imitation of the oracle, then of demonstrators with mixed habits.
//!
//! Two policies come out. The warm start, which GRPO begins with, has seen careful and careless players, as pretrained
//! models and real logs have. The other one has imitated the oracle alone for as many tokens: the row of the report that
//! keeps GRPO's gain from being oversold.

use std::{ops::ControlFlow, path::Path, sync::Arc};

use actor::{EpisodeSettings, EpisodeSpec, run_episode};
use anyhow::{Result, anyhow, bail, ensure};
use baselines::{Demonstrations, Demonstrator, DemonstratorMix, ScriptedPolicy, demonstrate};
use candle_core::{DType, Device};
use learner::sft::{self, SftConfig};
use policy::{Chat, Coordinates, Model, random::derive_seed};
use proto::v1::Segment;
use report::{LearnerStepRecord, RunFolder, TrainingStage};

use crate::{
    evaluation::{Evaluator, shuffled},
    shutdown::{Interrupted, unless_interrupted},
};

/// The policies of the warm start.
pub struct WarmStart {
    /// What GRPO begins with.
    pub warm: Model,
    /// What imitation of the oracle alone reaches with the same tokens.
    pub oracle_only: Option<Model>,
}

/// Trains the warm start; its steps are recorded in `folder`, if one is given.
///
/// # Errors
/// There is nothing to imitate, training diverged, or a signal broke it off ([`Interrupted`]).
pub async fn warm_start(
    evaluator: &Evaluator<'_>,
    base: &Model,
    folder: Option<&RunFolder>,
) -> Result<WarmStart> {
    let config = &evaluator.config.warm_start;
    let school = School { evaluator, folder };
    let careful = DemonstratorMix {
        error_share: config.recovery_share,
        ..DemonstratorMix::default()
    };
    let oracle = school.demonstrations("oracle", base, careful).await?;
    let (first, effort) = school.imitate(
        "imitating the oracle",
        base,
        &oracle,
        &config.oracle,
        Some(Effort::default()),
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
    };
    let habits = school.demonstrations("mixed habits", base, mixed).await?;
    let (warm, _) = school.imitate(
        "imitating mixed habits",
        &first,
        &habits,
        &config.demonstrators,
        Some(effort),
    )?;
    let mut oracle_only = None;
    if config.compare_oracle_only {
        let (model, _) = school.imitate(
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

/// What training took so far.
#[derive(Clone, Copy, Default)]
struct Effort {
    steps: u64,
    tokens: u64,
}

/// What the stages of a warm start share.
struct School<'a> {
    evaluator: &'a Evaluator<'a>,
    folder: Option<&'a RunFolder>,
}

impl School<'_> {
    /// One demonstration of each training question, by players with these habits.
    async fn demonstrations(
        &self,
        name: &str,
        model: &Model,
        mix: DemonstratorMix,
    ) -> Result<Vec<Segment>> {
        let setup = self.evaluator.setup;
        let config = &self.evaluator.config.warm_start;
        let chat: Arc<Chat> = Arc::new(model.chat.clone());
        let demonstrator = Demonstrator::new(Arc::clone(&setup.solutions), mix);
        let policy = ScriptedPolicy::new(Arc::clone(&chat), demonstrator);
        let mut question_ids: Vec<String> = shuffled(setup, "train")
            .into_iter()
            .map(|question| question.question_id)
            .collect();
        if config.demonstrations > 0 {
            question_ids.truncate(config.demonstrations);
        }
        ensure!(
            !question_ids.is_empty(),
            "the train split has no questions to demonstrate; choose other data or other --databases"
        );
        let title = format!("demonstrations, {name}");
        let stage = self
            .evaluator
            .progress
            .stage(&title, question_ids.len() as u64, "episodes");
        let wanted = Demonstrations {
            question_ids: &question_ids,
            seed: derive_seed(self.evaluator.config.seed, name),
            concurrency: self.evaluator.config.evaluation.concurrency,
        };
        let settings = self.evaluator.episode_settings(&chat);
        let play = demonstrate(&policy, &settings, &wanted, |done| stage.set(done as u64));
        let episodes = unless_interrupted(self.evaluator.shutdown, play).await?;
        if episodes.is_empty() {
            return Err(self
                .why_unusable(&policy, &settings, &question_ids[0])
                .await?);
        }
        stage.finish(&format!("{} usable", episodes.len()));
        Ok(episodes
            .into_iter()
            .flat_map(|episode| episode.segments)
            .collect())
    }

    /// Why a demonstration cannot be used, by playing one again.
    async fn why_unusable(
        &self,
        policy: &ScriptedPolicy<Demonstrator>,
        settings: &EpisodeSettings,
        question_id: &str,
    ) -> Result<anyhow::Error> {
        let spec = EpisodeSpec {
            question_id: question_id.to_owned(),
            coordinates: Coordinates::default(),
        };
        let episode = run_episode(policy, settings, &spec);
        let outcome = unless_interrupted(self.evaluator.shutdown, episode).await?;
        Ok(if outcome.trajectory.failure.is_empty() {
            anyhow!(
                "no demonstration fits into one context; raise learner.rollout.max_context_tokens"
            )
        } else {
            anyhow!(
                "every demonstration broke off; {question_id}: {}",
                outcome.trajectory.failure
            )
        })
    }

    /// Trains on demonstrations; answers with the model and what it took. Steps are recorded as following on `before`, if
    /// given.
    fn imitate(
        &self,
        title: &str,
        start: &Model,
        episodes: &[Segment],
        config: &SftConfig,
        before: Option<Effort>,
    ) -> Result<(Model, Effort)> {
        let stage = self
            .evaluator
            .progress
            .stage(title, config.budget_tokens, "tokens");
        let mut failure = None;
        let run = self.evaluator.config;
        let arguments = run.arguments(derive_seed(run.seed, title));
        let placed = run.placement().place(start)?;
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
            weights: outcome.weights.to(&Device::Cpu, DType::F32)?,
            ..start.clone()
        };
        let effort = Effort {
            steps: outcome.steps,
            tokens: outcome.tokens,
        };
        Ok((model, effort))
    }

    fn record(&self, before: Option<Effort>, state: &sft::SftProgress) -> Result<()> {
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

    /// The models that an earlier part of the run left in `run_dir`, if it got so far.
    ///
    /// # Errors
    /// A folder is there but broken.
    pub fn open(run_dir: &Path) -> Result<Option<Self>> {
        let open = |name: &str| -> Result<Option<Model>> {
            let dir = run_dir.join(name);
            let found = dir
                .is_dir()
                .then(|| Model::open(&dir, &Device::Cpu, DType::F32))
                .transpose()?;
            Ok(found)
        };
        let oracle_only = open(Self::ORACLE_ONLY)?;
        Ok(open(Self::WARM)?.map(|warm| Self { warm, oracle_only }))
    }

    /// Writes the models into `run_dir`; the warm start comes last, as the sign that all are there.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn save(&self, run_dir: &Path) -> Result<()> {
        if let Some(model) = &self.oracle_only {
            model.save(&run_dir.join(Self::ORACLE_ONLY))?;
        }
        self.warm.save(&run_dir.join(Self::WARM))?;
        Ok(())
    }
}
