//! How a run is opened: begun in a new folder, or continued from its newest checkpoint.
//!
//! Invariant: a run folder belongs to one base model, one list of questions and one set of
//! settings; a run that does not match the folder's is refused before its learner is stopped.

use std::{
    hash::{BuildHasher as _, RandomState},
    path::Path,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use candle_core::Device;
use parking_lot::Mutex;
use policy::{Model, durable};
use proto::Snapshot;
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, watch};

use crate::{
    Learner, RunStorage,
    checkpoint::{self, CHECKPOINTS, CheckpointState},
    clock::now,
    config::{LearnerConfig, RunArguments},
    curriculum::{QuestionOrder, TrainingQuestion},
    error::{AtPath as _, LearnerError, Result},
    group::GroupRules,
    journal::{self, NewTerm},
    metrics,
    object_storage::ObjectLog,
    questions::Questions,
    ranks::{RankRegistry, model_files},
    run::{context::RunContext, evaluator::Evaluator, intake::Intake, traces::GroupTraces},
    scheduler::{Scheduler, SchedulerSettings},
    server::call_limits::CallLimits,
    trainer::Trainer,
};

/// Fewer than the threads for blocking work. If all of them waited for the journal, its holder
/// could not resolve the name of an object store, which takes such a thread.
const JOURNAL_PERMITS: usize = 64;

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
            let problem =
                "are none of the split `train`, on which a run trains; give data that has some";
            return Err(LearnerError::setting("questions", problem));
        }
        let order = QuestionOrder::new(&questions, &config.curriculum, arguments.seed)?;
        let RunStorage {
            folder: run_dir,
            mut objects,
        } = storage.into();
        std::fs::create_dir_all(&run_dir).at("create", &run_dir)?;
        durable::sync_parent(&run_dir).at("sync the folder of", &run_dir)?;
        let fingerprint = fingerprint(&config, arguments.seed, &model, &questions)?;
        let mut trainer = Trainer::new(&config, arguments.threads, &model)?;
        let (term, state) = begin_term(&run_dir, &fingerprint, &model, &mut trainer, &mut objects)?;
        let settings = scheduler_settings(&config);
        let secret = RandomState::new().hash_one("leases");
        let scheduler = Scheduler::new(settings, state.step, state.next_group_index, secret);
        let rules = GroupRules::new(&config, model.config.vocab_size);
        let journal = (run_dir.as_path(), term);
        let questions = first_questions(&config, (questions, order), &state, &run_dir)?;
        let work = (scheduler, questions);
        let intake = Intake::open(work, rules, journal, objects, state.journal_offset)?;
        let run_name = run_name(&run_dir)?;
        let snapshot = Snapshot::new(state.step, trainer.network.weights().to_bytes()?);
        metrics::run_opened(state.step, config.steps);
        // Other ranks get the base model as bytes, and checkpoints have newer weights, so no GPU
        // need hold it.
        let weights = model.weights.to(&Device::Cpu, trainer.network.dtype())?;
        let model = Model { weights, ..model };
        let learner = Self {
            context: Arc::new(RunContext {
                intake,
                evaluator: Evaluator::new(settings.lease, settings.max_leases_per_actor),
                registry: RankRegistry::new(&config.ranks),
                snapshots: watch::Sender::new(snapshot),
                unfinished_snapshots: Arc::default(),
                call_limits: CallLimits::new(&config.server),
                journal_permits: Arc::new(Semaphore::new(JOURNAL_PERMITS)),
                traces: GroupTraces::default(),
                actors: Mutex::default(),
                refusals: Mutex::default(),
                verifier: OnceLock::new(),
                demonstrate: OnceLock::new(),
                stopping: trainer.network.stopping(),
                has_been_joined: AtomicBool::new(false),
                run_end: watch::Sender::new(None),
                run_id: format!("{run_name}-{}", &fingerprint[..16]),
                opened: now(),
                model_files: model_files(&model),
                model,
                trainer: Mutex::new(Some(trainer)),
                run_dir,
                fingerprint,
                run_seed: arguments.seed,
                config,
            }),
        };
        Ok(learner)
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
    let newest = checkpoint::newest(&checkpoints, |state, path| Ok((state, path.to_owned())))?;
    if let Some((state, path)) = newest {
        // Refuses a run with other settings before it stops that run's learner.
        check_fingerprint(&state, &path, fingerprint)?;
    }
    if let Some(objects) = objects {
        objects.begin(run_dir)?;
    }
    let term = NewTerm::begin(run_dir)?;
    // A killed learner may have filled the disk with part of a checkpoint, and the journal of this
    // term needs room. One that still writes may be in the way. The next checkpoint is written only
    // when the part is gone.
    if let Err(fault) = checkpoint::remove_partial(&checkpoints) {
        tracing::warn!(%fault, "the unfinished checkpoint of an earlier learner stays for now");
    }
    if let Some(state) = restore(&checkpoints, fingerprint, trainer)? {
        return Ok((term, state));
    }
    term.check_newest()?;
    no_groups_yet(run_dir)?;
    let state = base_checkpoint(&term, fingerprint.to_owned(), model, trainer, objects)?;
    Ok((term, state))
}

/// Returns the name of a run: that of its folder, also if it is given as `.` or `..`.
///
/// # Errors
/// The folder is given as `.` or `..` of one that does not exist.
pub fn run_name(run_dir: &Path) -> Result<String> {
    let path = match run_dir.file_name() {
        Some(_) => run_dir.to_owned(),
        None => run_dir.canonicalize().at("find", run_dir)?,
    };
    let name = path.file_name().unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// Writes the checkpoint that a new run starts from, so that every resumed run has one.
fn base_checkpoint(
    term: &NewTerm,
    fingerprint: String,
    model: &Model,
    trainer: &Trainer,
    objects: &mut Option<ObjectLog>,
) -> Result<CheckpointState> {
    let state = CheckpointState {
        fingerprint,
        ..CheckpointState::default()
    };
    let (checkpoints, network) = (term.run_dir().join(CHECKPOINTS), &trainer.network);
    let check = || term.check_newest();
    let folder = checkpoint::save(&checkpoints, state.clone(), model, network, 1, check)?;
    if let Some(objects) = objects {
        let upload = objects.checkpoint_upload(state.step);
        upload.run(&folder)?;
        upload.run_files(term.run_dir())?;
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
    check_fingerprint(&state, &checkpoint.path, fingerprint)?;
    checkpoint.restore(&mut trainer.network)?;
    trainer.tokens_seen = state.tokens_seen;
    Ok(Some(state))
}

/// Refuses the checkpoint in `path` of a run with another fingerprint.
fn check_fingerprint(state: &CheckpointState, path: &Path, fingerprint: &str) -> Result<()> {
    match state.fingerprint == fingerprint {
        true => Ok(()),
        false => Err(LearnerError::OtherSettings {
            path: path.to_owned(),
        }),
    }
}

/// Returns the questions from a checkpoint on.
fn first_questions(
    config: &LearnerConfig,
    (questions, order): (Vec<TrainingQuestion>, QuestionOrder),
    state: &CheckpointState,
    run_dir: &Path,
) -> Result<Questions> {
    if !state.questions.fits(questions.len()) {
        let reason = "has a checkpoint with questions that the run does not have; restore the \
                      whole folder";
        return Err(LearnerError::broken(run_dir, reason));
    }
    let position = (state.step, state.next_group_index);
    let state = state.questions.clone();
    Ok(Questions::new(
        config.repeat,
        (questions, order),
        position,
        state,
    ))
}

fn scheduler_settings(config: &LearnerConfig) -> SchedulerSettings {
    SchedulerSettings {
        steps: config.steps,
        groups_per_step: config.groups_per_step,
        max_groups_per_step: config.max_groups_of_step(),
        oversampling: config.oversampling,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_name_of_its_folder_however_it_is_given() {
        let here = std::env::current_dir().unwrap();
        let here = here.file_name().unwrap().to_str().unwrap();
        for (run_dir, name) in [
            (".", here),
            ("src/..", here),
            ("runs/mine", "mine"),
            ("runs/mine/", "mine"),
        ] {
            assert_eq!(run_name(Path::new(run_dir)).unwrap(), name);
        }
        assert!(run_name(Path::new("none/..")).is_err());
    }
}
