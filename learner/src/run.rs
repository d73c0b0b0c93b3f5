//! The loop of the trainer's thread.
//!
//! Invariant: a step is made, its snapshot published, its groups dropped, in this order; a checkpoint holds the state
//! after whole steps only. A stop lets the running step end and leaves a checkpoint.

use std::{collections::BTreeMap, sync::Arc};

use policy::Model;
use tokio::sync::mpsc;

use crate::{
    checkpoint::{self, State},
    driver::{Ending, Event, Shared, now},
    error::{LearnerError, Result},
    metrics,
    ranks::Ranks,
    trainer::{StepGroups, Trainer},
    weights::Snapshot,
};

/// The trainer's thread.
pub(crate) struct Run {
    pub(crate) shared: Arc<Shared>,
    pub(crate) trainer: Trainer,
    pub(crate) events: mpsc::Sender<Event>,
}

impl Run {
    /// Makes all steps that are left, or those before a stop, and returns how many were made in all.
    pub(crate) fn all_steps(&mut self) -> Result<u64> {
        let steps = self.shared.config.steps;
        let version = self.shared.intake.version();
        // A finished run needs nobody.
        if version < steps
            && let Some(others) = self.shared.lobby.wait()?
        {
            let (config, model) = (&self.shared.config, &self.shared.model);
            let network = &self.trainer.network;
            self.trainer.ranks = Ranks::lead(others, config, model, network, version)?;
        }
        // A run is opened at a checkpoint, its base if it is new.
        let mut saved = Some(version);
        while self.shared.intake.version() < steps {
            let version = match self.one_step() {
                Ok(Some(version)) => version,
                Ok(None) => break,
                Err(unscored @ LearnerError::Unscored { .. }) => {
                    self.shared.intake.forget_groups();
                    self.checkpoint()?;
                    return Err(unscored);
                }
                Err(fault) => return Err(fault),
            };
            let every = self.shared.config.checkpoint.every_steps;
            if every > 0 && version % every == 0 {
                saved = Some(self.checkpoint()?);
            }
        }
        let step = self.shared.intake.version();
        if saved != Some(step) {
            self.checkpoint()?;
        }
        if step >= steps {
            self.trainer.ranks.finish();
            self.shared.lobby.finish();
            // Not before the checkpoint: a learner that dies here needs its actors again.
            self.shared.end(Ending::Finished);
        }
        self.emit(Event::Finished {
            step,
            interrupted: step < steps,
        });
        Ok(step)
    }

    /// Waits for a batch, trains on it and publishes the new version; none if the run is being stopped.
    fn one_step(&mut self) -> Result<Option<u64>> {
        let began = now();
        let Some((batch, groups)) = self.shared.intake.wait_for_batch()? else {
            return Ok(None);
        };
        let waited = now();
        let version = self.shared.intake.version() + 1;
        some_scored(version, &groups)?;
        self.trainer.ranks.hand_out(&groups, version - 1)?;
        let mut figures = self.trainer.step(&groups, version - 1)?;
        self.publish(version)?;
        self.shared.intake.advance(&batch);
        let wait_seconds = (waited - began).as_secs_f64();
        let step_seconds = (now() - began).as_secs_f64();
        metrics::step_made(version, wait_seconds, step_seconds);
        figures.extend(BTreeMap::from([
            ("step_time".to_owned(), step_seconds),
            ("time/wait_for_batch".to_owned(), wait_seconds),
            ("time/train".to_owned(), step_seconds - wait_seconds),
        ]));
        self.emit(Event::Step {
            step: version,
            metrics: figures,
        });
        Ok(Some(version))
    }

    fn publish(&self, version: u64) -> Result<()> {
        let body = self.trainer.weights().to_bytes()?;
        self.shared
            .snapshots
            .send_replace(Snapshot::new(version, body));
        Ok(())
    }

    /// Writes a checkpoint of the state after the last whole step, and returns that step.
    fn checkpoint(&self) -> Result<u64> {
        let shared = &self.shared;
        let (next_group_index, journal_offset) = shared.intake.cursor();
        let state = State {
            step: shared.intake.version(),
            next_group_index,
            journal_offset,
            updates: self.trainer.network.optimizer.updates,
            tokens_seen: self.trainer.tokens_seen,
            fingerprint: shared.fingerprint.clone(),
            files: BTreeMap::new(),
        };
        let step = state.step;
        let model = Model {
            weights: self.trainer.weights(),
            ..shared.model.clone()
        };
        let keep_last = shared.config.checkpoint.keep_last;
        let path = checkpoint::save(
            &shared.checkpoints,
            state,
            &model,
            &self.trainer.network,
            keep_last,
        )?;
        metrics::checkpoint_written();
        self.emit(Event::Checkpoint { step, path });
        Ok(step)
    }

    /// Waits while the events' reader is behind; goes on without it if it went away.
    fn emit(&self, event: Event) {
        if self.events.blocking_send(event).is_err() {
            tracing::debug!("nobody reads the run's events");
        }
    }
}

/// Refuses a step in which nothing was played: an environment that is away would else use up the run.
fn some_scored(step: u64, groups: &StepGroups) -> Result<()> {
    let groups = groups.kept.iter().chain(&groups.left_out);
    let trajectories: Vec<_> = groups.flat_map(|group| &group.trajectories).collect();
    if trajectories.iter().any(|trajectory| trajectory.scored) {
        return Ok(());
    }
    let failure = trajectories.first().map_or("", |first| &first.failure);
    Err(LearnerError::Unscored {
        step,
        episodes: trajectories.len(),
        failure: failure.to_owned(),
    })
}
