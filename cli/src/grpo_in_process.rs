//! GRPO in one process: the same clients and services as over TCP, connected by the in-process
//! transport.

use actor::ActorConfig;
use anyhow::{Context as _, Result};
use learner::{Learner, ReportedEvent};
use policy::Placement;
use proto::Transport;
use tokio::{runtime::Handle, sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// The number of events that may wait for their reader. The trainer waits when the channel is full.
const EVENTS: usize = 2;

/// A running learner with its actors.
pub(crate) struct LocalRun {
    events: mpsc::Receiver<ReportedEvent>,
    learner: Learner,
    training: tokio::task::JoinHandle<learner::Result<u64>>,
    actors: JoinSet<Result<(), actor::ActorError>>,
}

impl LocalRun {
    /// Starts the training with `actors` actors, each on a thread of its own. Must be called inside
    /// a runtime.
    pub(crate) fn start(
        learner: Learner,
        env: &Transport,
        actors: usize,
        config: &ActorConfig,
        placement: Placement,
        shutdown: &CancellationToken,
    ) -> Self {
        let served = Transport::in_process(learner.service());
        let mut running = JoinSet::new();
        for number in 0..actors {
            let (env, served, config) = (env.clone(), served.clone(), config.clone());
            let stop = shutdown.clone().cancelled_owned();
            let runtime = Handle::current();
            running.spawn_blocking(move || {
                runtime.block_on(actor::run(
                    env,
                    served,
                    &format!("actor-{number}"),
                    config,
                    placement,
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
            actors: running,
        }
    }

    /// Returns the next event, or `None` after the last one. Fails if an actor fails, because the
    /// learner would wait for its groups for ever.
    pub(crate) async fn next(&mut self) -> Result<Option<ReportedEvent>> {
        loop {
            tokio::select! {
                biased;
                event = self.events.recv() => return Ok(event),
                Some(ended) = self.actors.join_next() => {
                    ended.context("an actor panicked")?.context("an actor failed")?;
                }
            }
        }
    }

    /// Waits for the end of the training and returns the number of learner steps.
    pub(crate) async fn finish(mut self) -> Result<u64> {
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
