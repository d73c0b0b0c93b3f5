//! GRPO in one process: the same clients and services as over TCP, joined by the in-process transport.

use std::path::Path;

use actor::ActorConfig;
use anyhow::{Context as _, Result};
use candle_core::{DType, Device};
use learner::{Learner, TrainEvent};
use policy::Model;
use proto::{EnvClient, LearnerClient, Transport};
use tokio::{runtime::Handle, sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Events that may wait for their reader; the trainer then waits too.
const EVENTS: usize = 2;

/// A learner and its actors, running.
pub struct LocalRun {
    /// What the learner reports.
    pub events: mpsc::Receiver<TrainEvent>,
    learner: Learner,
    training: tokio::task::JoinHandle<learner::Result<u64>>,
    actors: JoinSet<Result<(), actor::ActorError>>,
}

impl LocalRun {
    /// Starts to train, with `actors` actors that play on `env`, each on a thread of its own. Must be called inside a
    /// runtime.
    #[must_use]
    pub fn start(
        learner: Learner,
        env: &EnvClient,
        actors: usize,
        config: &ActorConfig,
        shutdown: &CancellationToken,
    ) -> Self {
        let transport = Transport::in_process(learner.service());
        let mut playing = JoinSet::new();
        for number in 0..actors {
            let (env, client, config) = (
                env.clone(),
                LearnerClient::new(transport.clone()),
                config.clone(),
            );
            let stop = shutdown.clone().cancelled_owned();
            let runtime = Handle::current();
            playing.spawn_blocking(move || {
                runtime.block_on(actor::run(
                    env,
                    client,
                    &format!("actor-{number}"),
                    config,
                    stop,
                ))
            });
        }
        let (sender, events) = mpsc::channel(EVENTS);
        let training = tokio::spawn({
            let (learner, stop) = (learner.clone(), shutdown.clone().cancelled_owned());
            async move { learner.train(sender, stop).await }
        });
        Self {
            events,
            learner,
            training,
            actors: playing,
        }
    }

    /// The next event; `None` after the last.
    ///
    /// # Errors
    /// An actor failed: without it the learner would wait for ever.
    pub async fn next(&mut self) -> Result<Option<TrainEvent>> {
        loop {
            tokio::select! {
                biased;
                event = self.events.recv() => return Ok(event),
                Some(ended) = self.actors.join_next() => ended.context("an actor panicked")?.context("an actor failed")?,
            }
        }
    }

    /// Waits for the end and answers with the number of steps made.
    ///
    /// # Errors
    /// A step, a checkpoint or an actor failed.
    pub async fn finish(mut self) -> Result<u64> {
        let step = self.training.await.context("the trainer panicked")??;
        self.learner.close_streams();
        while let Some(ended) = self.actors.join_next().await {
            ended
                .context("an actor panicked")?
                .context("an actor failed")?;
        }
        Ok(step)
    }
}

/// The model of a checkpoint.
///
/// # Errors
/// The checkpoint's model folder cannot be read.
pub fn checkpoint_model(path: &Path) -> Result<Model> {
    Ok(Model::open(&path.join("hf"), &Device::Cpu, DType::F32)?)
}

/// The model of a run's newest whole checkpoint, if there is one.
///
/// # Errors
/// A checkpoint cannot be read.
pub fn newest_model(run_dir: &Path) -> Result<Option<Model>> {
    let newest = learner::checkpoint::load_latest(&run_dir.join("checkpoints"))?;
    newest
        .map(|checkpoint| checkpoint_model(&checkpoint.path))
        .transpose()
}
