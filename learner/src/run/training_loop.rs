//! The loop of the trainer's thread: wait for a batch, train on it, publish the new weights
//! version.
//!
//! Invariant: a step is made, its snapshot published and its groups dropped, in this order; a
//! checkpoint holds the state after whole steps only, and is written when their events are
//! recorded. A stop ends the running step before it is made and writes a checkpoint; a resumed run
//! makes the step from the journal. Groups that a step cannot train on are taken back, and the step
//! is made without them. A learner whose run another one has opened stops before it publishes or
//! writes anything further.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use policy::Model;
use proto::{Snapshot, v1::Trajectory};
use tokio::sync::{mpsc, oneshot};

use crate::{
    checkpoint::{self, CHECKPOINTS, CheckpointState},
    clock::now,
    demonstrations,
    error::{LearnerError, Result},
    group::{RefusalReason, RefusedGroup, StepGroups},
    metrics::{self, Metrics, RunInProgress, SAVING, Stopwatch, TRAINING, WAITING},
    ranks::Ranks,
    run::{
        context::{RunContext, RunEnd},
        learner::{ReportedEvent, TrainEvent},
    },
    trainer::Trainer,
};

/// So many steps in a row may have no episode that can be scored. If this goes on, for example
/// because all prompts are too long, the run would end without having trained.
const MAX_UNSCORED_STEPS: u32 = 10;

/// The trainer's thread.
pub(crate) struct Run {
    pub(crate) context: Arc<RunContext>,
    pub(crate) trainer: Trainer,
    pub(crate) events: mpsc::Sender<ReportedEvent>,
    /// Each receives a message when the reader has recorded its event. There is one for the last
    /// checkpoint, and one for each step since.
    pub(crate) reported: Vec<oneshot::Receiver<()>>,
    /// The last steps in a row without a scored episode.
    pub(crate) unscored_steps: u32,
}

impl Run {
    /// Makes the steps that are left, or those before a stop or before an evaluation that cannot be
    /// recorded. Returns how many were made in all.
    pub(crate) fn all_steps(&mut self) -> Result<u64> {
        let steps = self.context.config.steps;
        let version = self.context.intake.version();
        // A finished run needs no ranks.
        if version < steps
            && let Some(others) = self.context.registry.wait()?
        {
            let (config, model) = (&self.context.config, &self.context.model);
            let network = &self.trainer.network;
            self.trainer.ranks = Ranks::lead(others, config, model, network, version)?;
        }
        // No actor is needed before.
        let _in_progress = RunInProgress::begin();
        // Every run is opened at a checkpoint. A new run has written one of its base model.
        let mut saved = Some(version);
        let mut is_evaluated = self.evaluate(version)?;
        while is_evaluated && self.context.intake.version() < steps {
            let version = match self.one_step() {
                Ok(Some(version)) => version,
                Ok(None) => break,
                // The groups of this step are in the journal without a score. The checkpoint lies
                // behind them, so that a resumed run rolls them out again.
                Err(unscored @ LearnerError::Unscored { .. }) => {
                    self.context.intake.forget_groups();
                    self.checkpoint()?;
                    return Err(unscored);
                }
                // The groups are in the journal: a resumed run makes the step with them.
                Err(failed @ LearnerError::Demonstration { .. }) => {
                    self.checkpoint()?;
                    return Err(failed);
                }
                Err(fault) => return Err(fault),
            };
            let every = self.context.config.checkpoint.every_steps;
            if every > 0 && version % every == 0 {
                saved = Some(self.checkpoint()?);
            }
            is_evaluated = self.evaluate(version)?;
        }
        let step = self.context.intake.version();
        if saved == Some(step) {
            // The caller writes to the run's folder after this.
            self.context.intake.check_newest()?;
        } else {
            self.checkpoint()?;
        }
        if step >= steps && is_evaluated {
            self.trainer.ranks.finish();
            self.context.registry.finish();
            // After the checkpoint: a learner that is killed before needs its actors again when it
            // resumes.
            self.context.end(RunEnd::Finished);
        }
        Ok(step)
    }

    /// Waits until actors have played the evaluations that are planned for the newest version, and
    /// the reader has recorded them. Returns false if the run is being stopped before, or if the
    /// reader has failed.
    ///
    /// # Errors
    /// The run is stopped because a group could not be journaled, or another learner has opened it.
    fn evaluate(&self, version: u64) -> Result<bool> {
        let context = &self.context;
        for set in context.evaluator.take_sets(version) {
            let name = set.name.clone();
            context.evaluator.begin(context.now(), set, version);
            context.intake.wake_claims();
            metrics::set_evaluating(true);
            let episodes = context.evaluator.wait(|| context.intake.check_newest());
            metrics::set_evaluating(false);
            let Some(episodes) = episodes? else {
                // Returns at once, with the reason of the stop.
                context.intake.wait_for_batch(|| context.now())?;
                return Ok(false);
            };
            context.intake.check_newest()?;
            metrics::evaluation_played(&name, version, accuracy(&episodes));
            let recorded = self.emit(TrainEvent::Evaluation {
                version,
                name,
                episodes,
            });
            // Otherwise a run that is killed could resume after an evaluation whose result is lost.
            if recorded.blocking_recv().is_err() {
                return Ok(false);
            }
            context.evaluator.recorded();
        }
        Ok(true)
    }

    /// Waits for a batch, trains on it and publishes the new weights version; none if the run is
    /// being stopped.
    fn one_step(&mut self) -> Result<Option<u64>> {
        let began = now();
        let mut wait_seconds = 0.0;
        let (batch, mut metrics) = loop {
            let (context, waiting_since) = (&self.context, now());
            let Some((batch, mut groups)) = context.intake.wait_for_batch(|| context.now())? else {
                return Ok(None);
            };
            let prepared = self.prepare(&mut groups);
            wait_seconds += (now() - waiting_since).as_secs_f64();
            match prepared.and_then(|()| self.train_on(&groups)) {
                Ok(metrics) => break (batch, metrics),
                Err(LearnerError::Refused(refused)) => self.take_back(&refused),
                Err(LearnerError::Stopped) => return Ok(None),
                Err(fault) => return Err(fault),
            }
        };
        let mut stopwatch = Stopwatch::start();
        let version = self.context.intake.version() + 1;
        let body = self.trainer.network.weights().to_bytes()?;
        let snapshot = Snapshot::new(version, body);
        self.context.intake.publish(version)?;
        // Published before the scheduler hands out work for it: an actor that claims such a group
        // can then get the weights.
        self.context.snapshots.send_replace(snapshot);
        let repeated = self.context.intake.advance(self.context.now(), &batch);
        self.context.intake.report(self.context.now());
        stopwatch.lap(&TRAINING);
        let step_seconds = (now() - began).as_secs_f64();
        metrics.extend(BTreeMap::from([
            ("step_time".to_owned(), step_seconds),
            ("groups/repeated".to_owned(), repeated as f64),
            ("time/wait_for_batch".to_owned(), wait_seconds),
            ("time/train".to_owned(), step_seconds - wait_seconds),
        ]));
        metrics::step_made(version, &metrics);
        let recorded = self.emit(TrainEvent::Step {
            step: version,
            metrics,
        });
        self.reported.push(recorded);
        Ok(Some(version))
    }

    /// Checks the groups of a step, and adds demonstrations of the questions that were answered
    /// wrongly, if the settings want any.
    ///
    /// # Errors
    /// Those of [`Self::some_scored`] and of [`Demonstrate`](crate::demonstrations::Demonstrate).
    fn prepare(&mut self, groups: &mut StepGroups) -> Result<()> {
        let step = self.context.intake.version() + 1;
        self.some_scored(step, groups)?;
        let wanted = self.context.config.demonstration_weight > 0.0;
        let questions = groups.wrongly_answered();
        if let Some(demonstrate) = self.context.demonstrate.get()
            && wanted
            && !questions.is_empty()
        {
            let mut stopwatch = Stopwatch::start();
            let shown = demonstrate(&questions)?;
            demonstrations::name_undemonstrated(&questions, &shown);
            let shown = questions.into_iter().zip(shown);
            let shown = shown.filter_map(|(question_id, shown)| Some((question_id, shown?)));
            (groups.demonstrated, groups.demonstrations) = shown.unzip();
            stopwatch.lap(&WAITING);
        }
        Ok(())
    }

    /// Makes the update of a step.
    ///
    /// # Errors
    /// [`LearnerError::Refused`] if the step is to be made without some of the groups;
    /// [`LearnerError::Stopped`].
    fn train_on(&mut self, groups: &StepGroups) -> Result<Metrics> {
        let mut stopwatch = Stopwatch::start();
        let version = self.context.intake.version();
        let _traced = self.context.traces.train(groups, version + 1);
        self.trainer.ranks.hand_out(groups, version)?;
        let made = self.trainer.step(groups, version);
        stopwatch.lap(&TRAINING);
        if made.is_ok() {
            demonstrations::name_excluded(groups, &self.trainer.excluded_demonstrations);
        }
        // A step that is refused is made again, and then has its own suspects.
        let is_made_again = matches!(made, Err(LearnerError::Refused(_)));
        for suspect in self.trainer.suspects.drain(..).filter(|_| !is_made_again) {
            metrics::groups_refused(suspect.reason, 1);
            self.context.refused(&suspect.actor_id, &suspect.problem);
        }
        made
    }

    /// Counts groups that the step cannot train on, names their actors, and takes the groups back.
    fn take_back(&self, refused: &[RefusedGroup]) {
        for group in refused {
            metrics::groups_refused(group.reason, 1);
            self.context.refused(&group.actor_id, &group.problem);
        }
        let context = &self.context;
        context.intake.take_back(context.now(), refused);
    }

    /// Refuses a step without a scored episode: otherwise a run would use up its steps while the
    /// environment is away. If there are actors that have not contributed to it, the groups are
    /// taken back: the environment may be away for one actor only. If there are none, and no other
    /// try changes any of the failures, the step trains on nothing: an error would end each resumed
    /// run again.
    ///
    /// # Errors
    /// [`LearnerError::Refused`] or [`LearnerError::Unscored`].
    fn some_scored(&mut self, step: u64, groups: &StepGroups) -> Result<()> {
        let groups = || groups.kept.iter().chain(&groups.left_out);
        let trajectories = || groups().flat_map(|group| &group.trajectories);
        if trajectories().any(|trajectory| trajectory.scored) {
            self.unscored_steps = 0;
            return Ok(());
        }
        let may_pass = trajectories().find(|it| !it.failure_is_final);
        let named = may_pass.or_else(|| trajectories().next());
        let failure = named.map_or("", |it| it.failure.as_str());
        let contributors: BTreeSet<&str> = groups().map(|it| it.head.actor_id.as_str()).collect();
        let now = self.context.now();
        let intake = &self.context.intake;
        let is_left = groups().any(|it| intake.may_be_rolled_out_again(it.head.number));
        if is_left && self.context.actors.lock().has_others(now, &contributors) {
            let problem = format!("none of its episodes was completed: {failure}");
            let refused =
                groups().map(|group| RefusedGroup::new(group, RefusalReason::Unscored, &problem));
            return Err(LearnerError::Refused(refused.collect()));
        }
        if may_pass.is_none() && self.unscored_steps < MAX_UNSCORED_STEPS {
            self.unscored_steps += 1;
            let ids = trajectories().map(|it| it.question_id.as_str());
            let all: BTreeSet<&str> = ids.collect();
            let named = all.iter().copied().take(demonstrations::NAMED_QUESTIONS);
            let question_ids: Vec<&str> = named.collect();
            tracing::warn!(
                step,
                count = all.len(),
                ?question_ids,
                failure,
                "a step trains on nothing, because its questions can never be scored; leave them \
                 out, or do what the failure says"
            );
            return Ok(());
        }
        Err(LearnerError::Unscored {
            step,
            episodes: groups().map(|group| group.trajectories.len()).sum(),
            failure: failure.to_owned(),
        })
    }

    /// Writes a checkpoint of the state after the last whole step, and returns that step. Waits
    /// until the reader has recorded all events: a resumed run does not make these steps again.
    ///
    /// # Errors
    /// [`LearnerError::Unrecorded`] if the reader could not record an event or is gone. Or the
    /// checkpoint cannot be written.
    fn checkpoint(&mut self) -> Result<u64> {
        let context = &self.context;
        let (next_group_index, journal_offset) = context.intake.cursor();
        let state = CheckpointState {
            step: context.intake.version(),
            next_group_index,
            journal_offset,
            updates: self.trainer.network.optimizer.updates,
            tokens_seen: self.trainer.tokens_seen,
            questions: context.intake.questions(),
            fingerprint: context.fingerprint.clone(),
            ..CheckpointState::default()
        };
        let step = state.step;
        for recorded in self.reported.drain(..) {
            if recorded.blocking_recv().is_err() {
                return Err(LearnerError::Unrecorded);
            }
        }
        let model = Model {
            weights: self.trainer.network.weights(),
            ..context.model.clone()
        };
        let mut stopwatch = Stopwatch::start();
        let keep_last = context.config.checkpoint.keep_last;
        let path = checkpoint::save(
            &context.run_dir.join(CHECKPOINTS),
            state,
            &model,
            &self.trainer.network,
            keep_last,
            || context.intake.check_newest(),
        )?;
        context
            .intake
            .upload_checkpoint(step, &path, &context.run_dir, keep_last)?;
        stopwatch.lap(&SAVING);
        metrics::checkpoint_written();
        let recorded = self.emit(TrainEvent::Checkpoint { step, path });
        self.reported.push(recorded);
        Ok(step)
    }

    /// Reports an event. Waits for a slow reader. The receiver gets a message when the event is
    /// recorded, and an error if it cannot be recorded or the reader is gone.
    fn emit(&self, event: TrainEvent) -> oneshot::Receiver<()> {
        let (sender, mut recorded) = oneshot::channel();
        let sent = self.events.blocking_send((event, sender));
        // A reader that goes away during the send may leave the event in the channel.
        if sent.is_err() || self.events.is_closed() {
            tracing::debug!("the receiver of the run's events is gone");
            recorded.close();
        }
        recorded
    }
}

/// Returns the share of correct episodes. One without a score counts as wrong.
fn accuracy(episodes: &[Trajectory]) -> f64 {
    let correct = episodes.iter().filter(|it| it.scored && it.correct);
    correct.count() as f64 / episodes.len() as f64
}
