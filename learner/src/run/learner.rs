//! A training run, as its owner sees it: training, evaluations, and who takes part. The loop over
//! the steps is in `training_loop`.

use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    thread,
};

use policy::{Model, Weights};
use proto::{
    EnvClient, Snapshot,
    v1::{ActorIdentity, Trajectory},
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    demonstrations::Demonstrate,
    error::{AtPath as _, LearnerError, Result},
    metrics::Metrics,
    object_storage::ObjectLog,
    run::{
        context::{RunContext, RunEnd},
        evaluator::EvaluationPlan,
        training_loop::Run,
    },
    server::{
        actors::{ObservedActor, ObservedEnvNode, RecentEpisode},
        refusals::RefusedActor,
        verifier::Verifier,
    },
};

/// What a run reports while it trains.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainEvent {
    /// A step was made and its version published.
    Step {
        /// The step, which is the new policy version.
        step: u64,
        /// The step's metrics under TRL's names.
        metrics: Metrics,
    },
    /// Actors have played an evaluation set. The run continues when it is recorded.
    Evaluation {
        /// The policy version that was evaluated.
        version: u64,
        /// The name of the set.
        name: String,
        /// One episode of each question, in the order of the questions.
        episodes: Vec<Trajectory>,
    },
    /// A checkpoint was written.
    Checkpoint {
        /// The step after which it was written.
        step: u64,
        /// Its folder.
        path: PathBuf,
    },
}

/// An event, and the sender by which its reader says that the event is recorded. A reader that
/// cannot record it drops the sender and stops the run. After a step that is not recorded the run
/// writes no checkpoint. A resumed run then repeats the steps after the last checkpoint, and
/// records them.
pub type ReportedEvent = (TrainEvent, oneshot::Sender<()>);

/// Where a run is kept.
#[derive(Debug)]
pub struct RunStorage {
    /// The run folder.
    pub folder: PathBuf,
    /// The log in an object store that the folder was fetched from, if the run has one.
    pub objects: Option<ObjectLog>,
}

impl From<&Path> for RunStorage {
    fn from(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            objects: None,
        }
    }
}

/// A training run; cheap to clone. It serves actors from the moment it is opened and trains while
/// [`Learner::train`] runs.
#[derive(Clone)]
pub struct Learner {
    pub(crate) context: Arc<RunContext>,
}

impl Learner {
    /// Returns the newest policy version's weights.
    pub fn snapshot(&self) -> Snapshot {
        self.context.snapshots.borrow().clone()
    }

    /// Returns the base model with the weights of the newest policy version.
    ///
    /// # Errors
    /// The weights cannot be read: this is a bug.
    pub fn newest_model(&self) -> Result<Model> {
        let snapshot = self.snapshot();
        Ok(Model {
            weights: Weights::from_bytes_as_stored(snapshot.body())?,
            ..self.context.model.clone()
        })
    }

    /// Returns whether all steps and planned evaluations are made.
    pub fn is_finished(&self) -> bool {
        self.context.is_finished()
    }

    /// Plans evaluations, which actors play between steps of [`Learner::train`]. Those of versions
    /// before the newest are left out with a warning.
    pub fn plan_evaluations(&self, plan: EvaluationPlan) {
        let version = self.context.intake.version();
        self.context.evaluator.plan(plan, version);
    }

    /// Checks that no other learner has opened the run. Blocks.
    ///
    /// # Errors
    /// [`LearnerError::Replaced`], or the place of the run does not answer.
    pub fn check_newest(&self) -> Result<()> {
        self.context.intake.check_newest()
    }

    /// Returns whether the training waits for an evaluation: for the actors that play it, or for
    /// the reader that records it.
    pub fn is_evaluating(&self) -> bool {
        self.context.evaluator.is_evaluating()
    }

    /// Returns what identifies the run: the name of its folder and its fingerprint.
    pub fn run_id(&self) -> &str {
        &self.context.run_id
    }

    /// Returns whether an actor has joined since the run was opened.
    pub fn has_been_joined(&self) -> bool {
        self.context.has_been_joined.load(Ordering::Relaxed)
    }

    /// Returns the actors that have called lately, and the env-nodes that they report.
    pub fn observe_actors(&self) -> (Vec<ObservedActor>, Vec<ObservedEnvNode>) {
        let now = self.context.now();
        let leased = self.context.intake.leased_by_actor(now);
        let actors = self.context.actors.lock();
        (actors.actors(now, &leased), actors.env_nodes(now))
    }

    /// Returns episodes of the groups that were accepted last, newest first.
    pub fn recent_episodes(&self) -> Vec<RecentEpisode> {
        self.context.actors.lock().recent_episodes()
    }

    /// Accepts only actors of this identity from now on, and plays their episodes again at `env`.
    /// Without it all actors are trusted, which suits those of this process.
    pub fn guard(&self, identity: ActorIdentity, env: EnvClient) {
        let context = &self.context;
        let verifier = Verifier::new(env, identity, &context.config, context.run_seed);
        if context.verifier.set(verifier).is_err() {
            tracing::warn!("the run has an identity already, which stays");
        }
    }

    /// Trains also on demonstrations by `demonstrate`, as the setting `demonstration_weight` wants.
    pub fn demonstrate_by(&self, demonstrate: Box<Demonstrate>) {
        if self.context.demonstrate.set(demonstrate).is_err() {
            tracing::warn!("the run has demonstrations already, which stay");
        }
    }

    /// Returns the actors whose groups or calls were refused since the run was opened.
    pub fn refused_actors(&self) -> Vec<RefusedActor> {
        self.context.refusals.lock().actors()
    }

    /// Ends all open weights streams and waiting claims, so that a server can stop.
    pub fn close_streams(&self) {
        self.context.end(RunEnd::Closed);
    }

    /// Trains until the last step, until `shutdown`, or until an evaluation cannot be recorded.
    /// Reports to `events`, and returns the number of steps made in all. A shutdown ends the
    /// running step before it is made. A run can be trained once in the life of a `Learner`. Logs
    /// the [warnings](crate::LearnerConfig::warnings) of its settings.
    ///
    /// # Errors
    /// The settings need demonstrations, and nobody gives them. Or a step or a checkpoint failed,
    /// or an event before a checkpoint could not be recorded; what was written before is whole.
    pub async fn train(
        &self,
        events: mpsc::Sender<ReportedEvent>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<u64> {
        if self.context.config.demonstration_weight > 0.0
            && self.context.demonstrate.get().is_none()
        {
            let problem = "is set, but nothing solves the questions of this run; leave it out";
            return Err(LearnerError::setting("demonstration_weight", problem));
        }
        let trainer = self.context.trainer.lock().take();
        let trainer = trainer.ok_or(LearnerError::Thread("trainer"))?;
        for warning in self.context.config.warnings() {
            tracing::warn!("{warning}");
        }
        let (done, mut ended) = oneshot::channel();
        let mut run = Run {
            context: Arc::clone(&self.context),
            trainer,
            events,
            reported: Vec::new(),
            unscored_steps: 0,
        };
        let body = move || {
            let result = run.all_steps();
            // Releases the folder's lock first: the caller may open the run again when this call
            // returns.
            drop(run);
            // The receiver is gone if the caller dropped the future.
            let _ = done.send(result);
        };
        let spawned = thread::Builder::new()
            .name("trainer".to_owned())
            .spawn(body);
        spawned.at("start the trainer of", &self.context.run_dir)?;
        let result = tokio::select! {
            result = &mut ended => result,
            () = shutdown => {
                self.context.stopping.store(true, Ordering::Relaxed);
                self.context.intake.stop();
                self.context.evaluator.stop();
                self.context.registry.close();
                ended.await
            }
        };
        result.unwrap_or(Err(LearnerError::Thread("trainer")))
    }
}
