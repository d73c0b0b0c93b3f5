//! A training run: how it is opened or resumed, and what the services and the trainer's thread
//! share.
//!
//! Invariant: a run folder belongs to one base model, one list of questions and one set of
//! settings; a run that does not match the folder's is refused. The loop over the steps is in
//! `run`.

use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use policy::{Model, SamplingSettings, Weights, durable};
use proto::{
    EnvClient, Snapshot,
    v1::{ActorIdentity, JoinResponse, ModelFile, RolloutSettings, Trajectory},
};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    actors::{ActorRegistry, ObservedActor, ObservedEnvNode, RecentEpisode},
    call_limits::CallLimits,
    checkpoint::{self, CheckpointState},
    clock::now,
    config::{LearnerConfig, RolloutConfig, RunArguments},
    curriculum::{QuestionOrder, TrainingQuestion},
    error::{AtPath as _, LearnerError, Result},
    evaluator::{EvaluationPlan, Evaluator},
    group::GroupRules,
    identity,
    intake::Intake,
    journal::{self, NewTerm},
    metrics::{self, Metrics},
    object_storage::ObjectLog,
    ranks::{RankRegistry, model_files},
    refusals::{Refusals, RefusedActor},
    run::Run,
    scheduler::{Scheduler, SchedulerSettings},
    traces::GroupTraces,
    trainer::Trainer,
    verifier::Verifier,
};

const CHECKPOINTS: &str = "checkpoints";

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
    /// Actors have played an evaluation set. The run continues after
    /// [`Learner::evaluation_recorded`].
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

/// Why claims and weights streams end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    /// The last step is made and its checkpoint is on disk: no actor is needed any more.
    Finished,
    /// The server stops; another process may continue the run.
    Closed,
}

/// What the services and the trainer's thread share.
pub(crate) struct RunContext {
    pub(crate) config: LearnerConfig,
    run_seed: u64,
    pub(crate) intake: Intake,
    pub(crate) evaluator: Evaluator,
    /// Where the other ranks wait for the run to begin.
    pub(crate) registry: RankRegistry,
    /// The newest policy version's weights.
    pub(crate) snapshots: watch::Sender<Snapshot>,
    /// Limits on the calls of the port.
    pub(crate) call_limits: CallLimits,
    /// The traces of the groups whose step is still to be made.
    pub(crate) traces: GroupTraces,
    /// Who has called, for people who watch the run.
    actors: Mutex<ActorRegistry>,
    refusals: Mutex<Refusals>,
    /// What actors must be to take part, and who plays their episodes again; none in one process.
    gate: OnceLock<(ActorIdentity, Verifier)>,
    /// Ends a step before it is made.
    stopping: Arc<AtomicBool>,
    /// Whether an actor has joined since the run was opened.
    pub(crate) has_been_joined: AtomicBool,
    /// None while the run continues.
    pub(crate) run_end: watch::Sender<Option<RunEnd>>,
    questions: Vec<TrainingQuestion>,
    order: Mutex<QuestionOrder>,
    pub(crate) run_id: String,
    opened: Instant,
    pub(crate) model: Model,
    /// The files of the model, which all joins share.
    model_files: Vec<ModelFile>,
    /// Taken by the thread that trains.
    trainer: Mutex<Option<Trainer>>,
    pub(crate) run_dir: PathBuf,
    pub(crate) checkpoints: PathBuf,
    pub(crate) fingerprint: String,
}

impl Learner {
    /// Opens the run in `storage`, or begins one there.
    ///
    /// `model` is the base model in both cases; a resumed run takes its weights from the newest
    /// whole checkpoint. A learner that already has the run open, on this machine or another,
    /// stops at its next write.
    ///
    /// Blocks, and must not be called on a thread that runs async tasks if the run is in an object
    /// store.
    ///
    /// # Errors
    /// A setting cannot be used; there are no questions; the folder holds a run with other
    /// settings, questions or base model; a file cannot be read or written.
    pub fn open(
        config: LearnerConfig,
        arguments: RunArguments,
        model: Model,
        questions: Vec<TrainingQuestion>,
        storage: impl Into<RunStorage>,
    ) -> Result<Self> {
        config.validate()?;
        if questions.is_empty() {
            let problem = "none are given; choose a split that has some";
            return Err(LearnerError::setting("questions", problem));
        }
        let order = QuestionOrder::new(&questions, &config.curriculum, arguments.seed)?;
        let RunStorage {
            folder: run_dir,
            mut objects,
        } = storage.into();
        let checkpoints = run_dir.join(CHECKPOINTS);
        std::fs::create_dir_all(&run_dir).at("create", &run_dir)?;
        durable::sync_parent(&run_dir).at("sync the folder of", &run_dir)?;
        let fingerprint = fingerprint(&config, arguments.seed, &model, &questions)?;
        let mut trainer = Trainer::new(&config, arguments.threads, &model)?;
        let (term, state) = begin_term(&run_dir, &fingerprint, &model, &mut trainer, &mut objects)?;
        let settings = scheduler_settings(&config);
        let scheduler = Scheduler::new(settings, state.step, state.next_group_index);
        let rules = GroupRules::new(&config, model.config.vocab_size);
        let journal = (run_dir.as_path(), term);
        let intake = Intake::open(scheduler, rules, journal, objects, state.journal_offset)?;
        let run_name = run_dir.file_name().unwrap_or_default().to_owned();
        let snapshot = Snapshot::new(state.step, trainer.network.weights().to_bytes()?);
        metrics::run_opened(state.step, config.steps);
        let learner = Self {
            context: Arc::new(RunContext {
                intake,
                evaluator: Evaluator::new(),
                registry: RankRegistry::new(&config.ranks),
                snapshots: watch::Sender::new(snapshot),
                call_limits: CallLimits::new(&config.server),
                traces: GroupTraces::default(),
                actors: Mutex::default(),
                refusals: Mutex::default(),
                gate: OnceLock::new(),
                stopping: trainer.network.stopping(),
                has_been_joined: AtomicBool::new(false),
                run_end: watch::Sender::new(None),
                order: Mutex::new(order),
                questions,
                run_id: format!("{}-{}", run_name.to_string_lossy(), &fingerprint[..16]),
                opened: now(),
                model_files: model_files(&model),
                model,
                trainer: Mutex::new(Some(trainer)),
                run_dir,
                checkpoints,
                fingerprint,
                run_seed: arguments.seed,
                config,
            }),
        };
        Ok(learner)
    }

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

    /// Lets the run continue after the event of an evaluation.
    pub fn evaluation_recorded(&self) {
        self.context.evaluator.recorded();
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
        let actors = self.context.actors();
        (actors.actors(now), actors.env_nodes(now))
    }

    /// Returns episodes of the groups that were accepted last, newest first.
    pub fn recent_episodes(&self) -> Vec<RecentEpisode> {
        self.context.actors().recent_episodes()
    }

    /// Accepts only actors of this identity from now on, and plays their episodes again at `env`.
    /// Without it all actors are trusted, which suits those of this process.
    pub fn guard(&self, identity: ActorIdentity, env: EnvClient) {
        let verifier = Verifier::new(env, &self.context.config, self.context.run_seed);
        if self.context.gate.set((identity, verifier)).is_err() {
            tracing::warn!("the run has an identity already, which stays");
        }
    }

    /// Returns the actors whose groups or calls were refused since the run was opened.
    pub fn refused_actors(&self) -> Vec<RefusedActor> {
        self.context.refusals().actors()
    }

    /// Ends all open weights streams and waiting claims, so that a server can stop.
    pub fn close_streams(&self) {
        self.context.end(RunEnd::Closed);
    }

    /// Trains until the last step or `shutdown`, reporting to `events`, and returns the number of
    /// steps made in all. A shutdown ends the running step before it is made. A run can be trained
    /// once in the life of a `Learner`.
    ///
    /// # Errors
    /// A step or a checkpoint failed; what was written before is whole.
    pub async fn train(
        &self,
        events: mpsc::Sender<TrainEvent>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<u64> {
        let trainer = self
            .context
            .trainer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let trainer = trainer.ok_or(LearnerError::Thread("trainer"))?;
        let (done, mut ended) = oneshot::channel();
        let mut run = Run {
            context: Arc::clone(&self.context),
            trainer,
            events,
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
        spawned.at("start the trainer of", &self.context.checkpoints)?;
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

impl RunContext {
    /// Returns the time since the run was opened.
    pub(crate) fn now(&self) -> Duration {
        now().duration_since(self.opened)
    }

    /// Locks what is known of the actors.
    pub(crate) fn actors(&self) -> MutexGuard<'_, ActorRegistry> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses an actor of another identity than the run's.
    ///
    /// # Errors
    /// Names what differs and the remedy.
    pub(crate) fn check_identity(&self, found: Option<&ActorIdentity>) -> Result<(), String> {
        match self.gate.get() {
            None => Ok(()),
            Some((own, _)) => identity::compare(found, own),
        }
    }

    /// Returns who plays episodes again, if anybody does.
    pub(crate) fn verifier(&self) -> Option<&Verifier> {
        self.gate.get().map(|(_, verifier)| verifier)
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        let refusals = self.refusals.lock();
        refusals.unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a refusal, and says it now and then.
    pub(crate) fn refused(&self, actor_id: &str, problem: &str) {
        if let Some(count) = self.refusals().note(actor_id, problem) {
            tracing::warn!(actor_id = ?actor_id, count, problem = ?problem, "an actor was refused");
        }
    }

    /// Ends claims and weights streams; the first reason stays.
    pub(crate) fn end(&self, reason: RunEnd) {
        self.run_end.send_if_modified(|run_end| {
            let is_first = run_end.is_none();
            run_end.get_or_insert(reason);
            is_first
        });
    }

    /// Returns whether the run has made its last step and written its last checkpoint.
    pub(crate) fn is_finished(&self) -> bool {
        *self.run_end.borrow() == Some(RunEnd::Finished)
    }

    pub(crate) fn question_id(&self, group_index: u64) -> String {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.questions[order.question(group_index)].id.clone()
    }

    pub(crate) fn join_response(&self) -> JoinResponse {
        JoinResponse {
            run_id: self.run_id.clone(),
            run_seed: self.run_seed,
            model_files: self.model_files.clone(),
            rollout: Some(rollout_settings(&self.config.rollout)),
            policy_version: self.snapshots.borrow().policy_version,
            max_leases_per_actor: u32::try_from(self.config.trust.max_leases_per_actor)
                .unwrap_or(u32::MAX),
        }
    }
}

/// Converts sampling settings to their message.
pub(crate) fn sampling_message(sampling: &SamplingSettings) -> proto::v1::SamplingSettings {
    proto::v1::SamplingSettings {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
    }
}

fn rollout_settings(rollout: &RolloutConfig) -> RolloutSettings {
    RolloutSettings {
        sampling: Some(sampling_message(&rollout.sampling)),
        max_completion_tokens: rollout.max_completion_tokens,
        max_context_tokens: rollout.max_context_tokens,
        step_budget: rollout.step_budget,
        reward_profile: rollout.reward_profile.clone(),
        shots: rollout.shots,
    }
}

/// Ends the learners that have the run, and returns the position from which this one continues.
fn begin_term(
    run_dir: &Path,
    fingerprint: &str,
    model: &Model,
    trainer: &mut Trainer,
    objects: &mut Option<ObjectLog>,
) -> Result<(NewTerm, CheckpointState)> {
    let checkpoints = run_dir.join(CHECKPOINTS);
    // Refuses a run with other settings before it stops that run's learner.
    restore(&checkpoints, fingerprint, trainer)?;
    if let Some(objects) = objects {
        objects.begin(run_dir)?;
    }
    let term = NewTerm::begin(run_dir)?;
    // From here on no other learner writes a checkpoint.
    if let Some(state) = restore(&checkpoints, fingerprint, trainer)? {
        return Ok((term, state));
    }
    no_groups_yet(run_dir)?;
    let state = base_checkpoint(run_dir, fingerprint.to_owned(), model, trainer, objects)?;
    Ok((term, state))
}

/// Writes the checkpoint that a new run starts from, so that every resumed run has one.
fn base_checkpoint(
    run_dir: &Path,
    fingerprint: String,
    model: &Model,
    trainer: &Trainer,
    objects: &mut Option<ObjectLog>,
) -> Result<CheckpointState> {
    let state = CheckpointState {
        fingerprint,
        ..CheckpointState::default()
    };
    let (checkpoints, network) = (run_dir.join(CHECKPOINTS), &trainer.network);
    let folder = checkpoint::save(&checkpoints, state.clone(), model, network, 1, || Ok(()))?;
    if let Some(objects) = objects {
        let upload = objects.checkpoint_upload(state.step);
        upload.run(&folder)?;
        upload.run_files(run_dir)?;
        objects.append_checkpoint(upload, 1)?;
    }
    Ok(state)
}

/// Refuses groups without a checkpoint: nothing says under which settings they were rolled out.
fn no_groups_yet(run_dir: &Path) -> Result<()> {
    if !journal::has_groups(run_dir)? {
        return Ok(());
    }
    let reason = "holds groups, but the run has no checkpoint that says under which settings they \
                  were rolled out; restore checkpoints/, or choose another run folder";
    Err(LearnerError::broken(run_dir, reason))
}

/// Restores `trainer` from the newest checkpoint, if there is one.
fn restore(
    checkpoints: &Path,
    fingerprint: &str,
    trainer: &mut Trainer,
) -> Result<Option<CheckpointState>> {
    let Some(checkpoint) = checkpoint::load_latest(checkpoints)? else {
        return Ok(None);
    };
    let state = checkpoint.state.clone();
    if state.fingerprint != fingerprint {
        let reason = "was written under other settings, questions, another base model or another \
                      dtype; resume with those of the run, or start a new run in another folder";
        return Err(LearnerError::broken(&checkpoint.path, reason));
    }
    checkpoint.restore(&mut trainer.network)?;
    trainer.tokens_seen = state.tokens_seen;
    Ok(Some(state))
}

fn scheduler_settings(config: &LearnerConfig) -> SchedulerSettings {
    SchedulerSettings {
        steps: config.steps,
        groups_per_step: config.groups_per_step,
        max_groups_per_step: config.most_groups_per_step(),
        max_staleness: config.max_staleness,
        lease: Duration::from_secs(config.lease_seconds.into()),
        max_leases_per_actor: config.trust.max_leases_per_actor,
    }
}

fn hash_text(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

/// Returns the SHA-256 of settings, questions and base weights in hexadecimal.
fn fingerprint(
    config: &LearnerConfig,
    run_seed: u64,
    model: &Model,
    questions: &[TrainingQuestion],
) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(config.fingerprint(run_seed));
    for question in questions {
        hash_text(&mut hash, &question.id);
        // Without a curriculum, difficulties have no effect on the weights.
        if !config.curriculum.is_empty() {
            hash_text(&mut hash, &question.difficulty);
        }
    }
    hash.update(model.weights.to_bytes()?);
    Ok(hex::encode(hash.finalize()))
}
