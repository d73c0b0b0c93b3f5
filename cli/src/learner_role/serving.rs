//! The learner while it trains and serves: what it records of each event.

use anyhow::{Context as _, Result, bail};
use learner::{Learner, LearnerError, ReportedEvent, ServerCredentials, TrainEvent};
use proto::v1::Trajectory;
use report::{LearnerStepRecord, RunFolder};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::Readiness, config::ModelConfig, live::LiveRun, model_folder,
    played_evaluation::PlayedEvaluations, progress::Progress, roles::stop,
};

/// A learner that trains and serves at the same time.
pub(super) struct ServingLearner<'a> {
    pub(super) learner: Learner,
    pub(super) steps: u64,
    /// What the run started from.
    pub(super) base: &'a ModelConfig,
    pub(super) folder: &'a RunFolder,
    pub(super) evaluations: PlayedEvaluations<'a>,
    pub(super) progress: &'a Progress,
    pub(super) live: LiveRun,
}

impl ServingLearner<'_> {
    /// Serves and trains until the last step or `shutdown`.
    ///
    /// # Errors
    /// The training or the server failed, or a step or an evaluation cannot be recorded.
    pub(super) async fn train(
        &self,
        listener: TcpListener,
        credentials: ServerCredentials,
        ready: &Readiness,
        shutdown: CancellationToken,
    ) -> Result<()> {
        let served = CancellationToken::new();
        let mut serving = tokio::spawn(learner::serve(
            listener,
            self.learner.clone(),
            credentials,
            served.clone().cancelled_owned(),
        ));
        let (sender, events) = mpsc::channel(2);
        // A signal and a record that cannot be written stop the run in the same way.
        let stopped = shutdown.child_token();
        let work = async {
            tokio::join!(
                self.learner
                    .train(sender, stop(stopped.clone(), ready.clone())),
                self.record(events, &stopped)
            )
        };
        tokio::pin!(work);
        let (trained, recorded) = tokio::select! {
            worked = &mut work => worked,
            ended = &mut serving => {
                // The training ends first: it writes to the folder whose end is recorded next.
                stopped.cancel();
                let (trained, recorded) = work.await;
                let faults = [trained.err().map(anyhow::Error::from), recorded.err()];
                for fault in faults.into_iter().flatten() {
                    tracing::error!("{fault:#}");
                }
                ended.context("the server panicked")?;
                bail!("the server ended before the run; start the learner again to resume the run");
            }
        };
        ready.set(false);
        if self.learner.is_finished() && !self.learner.has_been_joined() {
            // The run was over when it was opened. Actors that wait for a learner learn that at
            // their next attempt.
            tokio::time::sleep(2 * actor::LONGEST_PAUSE).await;
        }
        // The server first sends every connected actor the end of the run.
        served.cancel();
        let ended = serving.await.context("the server panicked");
        match (trained, recorded) {
            // The record says more.
            (Err(LearnerError::Unrecorded) | Ok(_), recorded) => ended.and(recorded),
            (Err(fault), recorded) => {
                if let Err(unrecorded) = recorded {
                    tracing::error!("{unrecorded:#}");
                }
                Err(fault.into())
            }
        }
    }

    /// Records the steps and the evaluations in the run folder and displays them. Stops the run if
    /// one cannot be recorded: a resumed run repeats it.
    async fn record(
        &self,
        mut events: mpsc::Receiver<ReportedEvent>,
        stopped: &CancellationToken,
    ) -> Result<()> {
        let mut fault = None;
        let stage = self.progress.stage("GRPO", self.steps, "steps");
        stage.continue_from(self.learner.snapshot().policy_version);
        while let Some((event, recorded)) = events.recv().await {
            let written = match event {
                TrainEvent::Checkpoint { .. } => Ok(()),
                TrainEvent::Evaluation {
                    version,
                    name,
                    episodes,
                } => self
                    .record_evaluation(version, &name, &episodes)
                    .context("an evaluation cannot be recorded"),
                TrainEvent::Step { step, metrics } => {
                    stage.set(step);
                    let record = LearnerStepRecord::of_grpo(step, metrics);
                    self.live.step(&record);
                    self.folder.append_step(&record).with_context(|| {
                        format!(
                            "the metrics of step {step} cannot be recorded; mend this and start \
                             the learner again to resume the run"
                        )
                    })
                }
            };
            match written {
                Ok(()) => {
                    // The run may have ended.
                    let _ = recorded.send(());
                }
                Err(error) => {
                    fault.get_or_insert(error);
                    stopped.cancel();
                }
            }
        }
        stage.finish("");
        fault.map_or(Ok(()), Err)
    }

    /// Records and displays an evaluation, and records the policy if it is the best so far: no
    /// other version is published before the evaluation is recorded.
    fn record_evaluation(&self, version: u64, name: &str, episodes: &[Trajectory]) -> Result<()> {
        self.evaluations.record(version, name, episodes, |new| {
            let model = self.learner.newest_model()?;
            let licences = model_folder::licence_of_base(self.base);
            let name = model_folder::BEST;
            model_folder::save(self.folder, name, &model, &licences, version, Some(new))
        })?;
        self.live.evaluated(self.folder);
        Ok(())
    }
}
