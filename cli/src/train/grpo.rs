//! The GRPO stage: trains in this process, records each step, and evaluates the learning curve.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Result, bail};
use learner::{
    Learner, LearnerConfig, TrainEvent, TrainingQuestion, TrustConfig, checkpoint::CHECKPOINTS,
    demonstrations::Demonstrate,
};
use policy::Model;
use report::{CURVE_SPLIT, DecodingMode, LearnerStepRecord, PolicyName};

use super::Stages;
use crate::{
    config::RunConfig,
    demonstrations::demonstrate_by_oracle,
    evaluation::{EvaluatedPolicy, EvaluationQuestions, Evaluator},
    grpo_in_process::LocalRun,
    model_folder::{self, check_text_files, checkpoint_model, is_best, newest_model},
    progress,
    setup::opening_fault,
    shutdown::Interrupted,
    threads,
};

impl Stages<'_> {
    /// Trains from a model, or from the newest checkpoint in the folder. Returns the trained model
    /// and its number of steps.
    pub(super) async fn grpo(&self, start_name: PolicyName, start: Model) -> Result<(Model, u64)> {
        let Self {
            folder,
            live,
            evaluator,
            ..
        } = self;
        let config = evaluator.config;
        let all = evaluator.setup.questions();
        let curve = LearningCurve {
            stages: self,
            start: start_name,
            questions: EvaluationQuestions::draw(&config.evaluation, &all).curve,
        };
        curve.evaluate(&start, &curve.missing(0)?).await?;
        check_text_files(folder.path(), &start)?;
        let (learner, settings) = self.open_learner(&start)?;
        if settings.demonstration_weight > 0.0 {
            learner.demonstrate_by(self.oracle(&start));
        }
        curve.catch_up(learner.snapshot().policy_version).await?;
        let chat = start.chat.clone();
        live.begin(learner.clone(), &self.info, &settings, chat, &all, folder);
        let stage = evaluator
            .progress
            .stage("GRPO", config.learner.steps, "steps");
        stage.continue_from(learner.snapshot().policy_version);
        let mut run = LocalRun::start(
            learner,
            &evaluator.setup.env,
            threads::engines(config)?,
            &config.actor,
            config.placement(),
            evaluator.shutdown,
        );
        let newest_checkpoint = curve.record(&mut run, &stage).await?;
        let step = run.finish().await?;
        live.grpo_ended();
        stage.finish("");
        if step < config.learner.steps {
            bail!(Interrupted);
        }
        let model = match &newest_checkpoint {
            Some(path) => checkpoint_model(path, config.placement())?,
            None => newest_model(folder.path(), config.placement())?.unwrap_or(start),
        };
        Ok((model, step))
    }

    /// Returns what solves the questions that were answered wrongly.
    fn oracle(&self, start: &Model) -> Box<Demonstrate> {
        let evaluator = &self.evaluator;
        demonstrate_by_oracle(
            Arc::clone(&evaluator.setup.solutions),
            evaluator.episode_settings(&Arc::new(start.chat.clone())),
            evaluator.config.evaluation.concurrency,
            evaluator.shutdown.clone(),
        )
    }

    /// Opens the run's learner, and returns also its settings.
    fn open_learner(&self, start: &Model) -> Result<(Learner, LearnerConfig)> {
        let Evaluator { config, setup, .. } = self.evaluator;
        let questions = setup.dataset.split("train").map(env_node::question);
        let questions = questions.map(|it| TrainingQuestion::new(&it.question_id, &it.difficulty));
        let settings = learner_settings(config);
        let learner = Learner::open(
            settings.clone(),
            config.arguments(config.seed),
            config.placement().place(start)?,
            questions.collect(),
            self.folder.path(),
        );
        Ok((learner.map_err(opening_fault)?, settings))
    }
}

/// Returns the settings of the learner in a run of one process.
fn learner_settings(config: &RunConfig) -> LearnerConfig {
    let mut settings = LearnerConfig {
        // The actors are part of this process: none is lost, so no group goes to another one.
        lease_seconds: u32::MAX,
        trust: TrustConfig {
            max_logprob_difference: config.learner.trust.max_logprob_difference,
            ..TrustConfig::of_one_process(config.actor.concurrent_groups)
        },
        ..config.learner.clone()
    };
    if config.evaluation.every_steps > 0 {
        // A run that is stopped while it evaluates a checkpoint writes another one. The resumed run
        // evaluates the earlier one, which must still be there.
        let keep_last = &mut settings.checkpoint.keep_last;
        *keep_last = (*keep_last).max(2);
    }
    settings
}

fn note(stage: &progress::ProgressStage, step: u64, metrics: &learner::metrics::Metrics) {
    let metric = |name: &str| metrics.get(name).copied().unwrap_or(f64::NAN);
    stage.note(&format!(
        "correct {:.0} %, reward {:.2}",
        100.0 * metric("rewards/correct/mean"),
        metric("reward")
    ));
    stage.set(step);
}

/// The learning curve: greedy and sampled accuracy on questions that the comparison table does not
/// use.
struct LearningCurve<'a> {
    stages: &'a Stages<'a>,
    /// The policy before the first step.
    start: PolicyName,
    questions: Vec<proto::v1::Question>,
}

impl LearningCurve<'_> {
    /// Records the steps of the run until its end, and evaluates its checkpoints. Returns the
    /// newest one.
    async fn record(
        &self,
        run: &mut LocalRun,
        stage: &progress::ProgressStage,
    ) -> Result<Option<PathBuf>> {
        let mut newest_checkpoint = None;
        while let Some((event, recorded)) = run.next().await? {
            match event {
                TrainEvent::Step { step, metrics } => {
                    note(stage, step, &metrics);
                    let record = LearnerStepRecord::of_grpo(step, metrics);
                    self.stages.live.step(&record);
                    self.stages.folder.append_step(&record)?;
                }
                // No evaluation is planned: checkpoints are evaluated here.
                TrainEvent::Evaluation { .. } => {}
                TrainEvent::Checkpoint { step, path } => {
                    match self.evaluate_checkpoint(&path, step).await {
                        // The trainer has received the signal as well and writes a last checkpoint.
                        Err(error) if error.is::<Interrupted>() => {}
                        evaluated => evaluated?,
                    }
                    newest_checkpoint = Some(path);
                }
            }
            // The run may have ended.
            let _ = recorded.send(());
        }
        Ok(newest_checkpoint)
    }

    /// Evaluates the checkpoints up to `version` whose evaluation was interrupted.
    async fn catch_up(&self, version: u64) -> Result<()> {
        let checkpoints = self.stages.folder.path().join(CHECKPOINTS);
        for step in 1..=version {
            let checkpoint = checkpoints.join(format!("step_{step}"));
            if checkpoint.is_dir() {
                self.evaluate_checkpoint(&checkpoint, step).await?;
            }
        }
        Ok(())
    }

    /// Evaluates the checkpoint of a step, and reads it only if it is to be evaluated.
    async fn evaluate_checkpoint(&self, path: &Path, step: u64) -> Result<()> {
        let missing = self.missing(step)?;
        if missing.is_empty() {
            return Ok(());
        }
        let placement = self.stages.evaluator.config.placement();
        self.evaluate(&checkpoint_model(path, placement)?, &missing)
            .await
    }

    /// Returns the evaluations of a step, in both modes, that the settings ask for and the run
    /// folder does not have.
    fn missing(&self, step: u64) -> Result<Vec<EvaluatedPolicy>> {
        let config = self.stages.evaluator.config;
        if !config.evaluation.is_due(step, config.learner.steps) || self.questions.is_empty() {
            return Ok(Vec::new());
        }
        let policy = match step {
            0 => self.start,
            _ => PolicyName::Grpo,
        };
        let known = self.stages.folder.evaluations()?;
        let modes = [DecodingMode::Greedy, DecodingMode::Sampled];
        let evaluated = modes.map(|mode| EvaluatedPolicy { policy, step, mode });
        let missing = evaluated
            .into_iter()
            .filter(|it| !it.is_among(&known, CURVE_SPLIT));
        Ok(missing.collect())
    }

    /// Plays and records the missing evaluations of a model.
    async fn evaluate(&self, model: &Model, missing: &[EvaluatedPolicy]) -> Result<()> {
        let Some(first) = missing.first() else {
            return Ok(());
        };
        self.set_evaluating(true);
        let played = self.play(model, first.step, missing).await;
        self.set_evaluating(false);
        played
    }

    fn set_evaluating(&self, is_evaluating: bool) {
        learner::metrics::set_evaluating(is_evaluating);
        self.stages.live.set_evaluating(is_evaluating);
    }

    /// Plays and records them; the caller says that the run is being evaluated.
    async fn play(&self, model: &Model, step: u64, missing: &[EvaluatedPolicy]) -> Result<()> {
        let Stages {
            folder,
            live,
            evaluator,
            ..
        } = self.stages;
        let chat = Arc::new(model.chat.clone());
        let engine = evaluator.engine(model, step)?;
        for evaluated in missing {
            let policy = evaluator.model(&engine, &chat, evaluated.mode)?;
            let (evaluation, _) = evaluator
                .evaluate(*evaluated, &[&policy], &chat, CURVE_SPLIT, &self.questions)
                .await?;
            // The evaluation comes last: a run that stops in between writes both again.
            if is_best(&folder.evaluations()?, &evaluation) {
                let licences = model_folder::licences(evaluator.config);
                let (name, new) = (model_folder::BEST, Some(&evaluation));
                model_folder::save(folder, name, model, &licences, step, new)?;
            }
            folder.append_evaluation(&evaluation)?;
            live.evaluated(folder);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_whose_evaluation_is_interrupted_is_kept() {
        let mut config = RunConfig::default();
        for (points_every, keep_last, kept) in [(10, 1, 2), (10, 3, 3), (0, 1, 1)] {
            config.evaluation.every_steps = points_every;
            config.learner.checkpoint.keep_last = keep_last;
            assert_eq!(learner_settings(&config).checkpoint.keep_last, kept);
        }
    }

    #[test]
    fn differences_of_log_probabilities_have_the_bound_of_the_settings() {
        let mut config = RunConfig::default();
        config.learner.trust.max_logprob_difference = 1e-5;
        let trust = learner_settings(&config).trust;
        assert_eq!(trust.max_logprob_difference, 1e-5);
        assert!(!trust.refuse_logprob_differences);
    }
}
