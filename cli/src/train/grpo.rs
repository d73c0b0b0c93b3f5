//! The GRPO stage: trains in this process, records each step, and draws the learning curve.

use std::sync::Arc;

use anyhow::{Result, bail};
use learner::{Learner, TrainEvent};
use policy::Model;

use crate::{
    evaluation::{Candidate, Examiner, HeldOut},
    local::{LocalRun, checkpoint_model, newest_model},
    progress,
    run::{CURVE_SPLIT, Mode, PolicyName, RunFolder, Stage, StepRecord},
    shutdown::Interrupted,
    threads,
};

/// Trains from `warm`, or from the newest checkpoint in the folder; answers with the model and its number of steps.
pub(super) async fn grpo(
    folder: &RunFolder,
    examiner: &Examiner<'_>,
    warm: Model,
) -> Result<(Model, u64)> {
    let config = examiner.config;
    let curve = Curve {
        folder,
        examiner,
        questions: HeldOut::draw(config, examiner.setup).curve,
    };
    let question_ids = examiner
        .setup
        .dataset
        .split("train")
        .map(|question| question.question_id.clone())
        .collect();
    curve.point(&warm, 0).await?;
    let learner = Learner::open(
        config.learner_of_run(),
        config.placed(&warm)?,
        question_ids,
        folder.path(),
        true,
    )?;
    curve.catch_up(learner.snapshot().policy_version).await?;
    let stage = examiner
        .progress
        .stage("GRPO", config.learner.steps, "steps");
    let mut run = LocalRun::start(
        learner,
        &examiner.setup.env(),
        threads::engines(config)?,
        &config.actor_of_run(),
        examiner.shutdown,
    );
    let mut newest = None;
    let mut interrupted = false;
    while let Some(event) = run.next().await? {
        match event {
            TrainEvent::Step { step, metrics } => {
                note(&stage, step, &metrics);
                folder.append_step(&StepRecord {
                    step,
                    stage: Stage::Grpo,
                    policy_version: step,
                    metrics,
                })?;
            }
            TrainEvent::Checkpoint { step, path } => {
                let model = checkpoint_model(&path)?;
                match curve.point_at(&model, step).await {
                    // The trainer has heard of the signal too; its last checkpoint is waited for.
                    Err(error) if error.is::<Interrupted>() => {}
                    drawn => drawn?,
                }
                newest = Some(path);
            }
            TrainEvent::Finished {
                interrupted: early, ..
            } => interrupted = early,
        }
    }
    let step = run.finish().await?;
    stage.finish("");
    if interrupted {
        bail!(Interrupted);
    }
    let model = match &newest {
        Some(path) => checkpoint_model(path)?,
        None => newest_model(folder.path())?.unwrap_or(warm),
    };
    Ok((model, step))
}

fn note(stage: &progress::Stage, step: u64, metrics: &learner::metrics::Metrics) {
    stage.set(step);
    let figure = |name: &str| metrics.get(name).copied().unwrap_or(f64::NAN);
    stage.note(&format!(
        "correct {:.0} %, reward {:.2}",
        100.0 * figure("rewards/correct/mean"),
        figure("reward")
    ));
}

/// The learning curve: greedy and sampled accuracy on questions apart from the table's.
struct Curve<'a> {
    folder: &'a RunFolder,
    examiner: &'a Examiner<'a>,
    questions: Vec<proto::v1::Question>,
}

impl Curve<'_> {
    /// Draws the points at checkpoints up to `version` that a signal broke off.
    async fn catch_up(&self, version: u64) -> Result<()> {
        for step in 1..=version {
            let checkpoint = self.folder.path().join(format!("checkpoints/step_{step}"));
            if checkpoint.is_dir() {
                self.point_at(&checkpoint_model(&checkpoint)?, step).await?;
            }
        }
        Ok(())
    }

    async fn point_at(&self, model: &Model, step: u64) -> Result<()> {
        let every = self.examiner.config.evaluation.every_steps;
        let is_due =
            every > 0 && (step.is_multiple_of(every) || step == self.examiner.config.learner.steps);
        if is_due {
            self.point(model, step).await
        } else {
            Ok(())
        }
    }

    async fn point(&self, model: &Model, step: u64) -> Result<()> {
        if self.examiner.config.evaluation.every_steps == 0 || self.questions.is_empty() {
            return Ok(());
        }
        let policy = if step == 0 {
            PolicyName::WarmStart
        } else {
            PolicyName::Grpo
        };
        let chat = Arc::new(model.chat.clone());
        let engine = self.examiner.engine(model, step)?;
        for mode in [Mode::Greedy, Mode::Sampled] {
            let candidate = Candidate {
                policy,
                policy_version: step,
                step,
                mode,
            };
            if candidate.is_recorded(self.folder, CURVE_SPLIT)? {
                continue;
            }
            let policy = self.examiner.model(&engine, mode);
            let (evaluation, _) = self
                .examiner
                .examine(candidate, &policy, &chat, CURVE_SPLIT, &self.questions)
                .await?;
            self.folder.append_evaluation(&evaluation)?;
        }
        Ok(())
    }
}
