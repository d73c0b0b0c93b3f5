//! What the services, the trainer's thread and its owner share of a run.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use policy::{Constraint, Model};
use proto::{
    RareWarning, Snapshot,
    v1::{JoinResponse, ModelFile, RolloutSettings},
};
use tokio::sync::{Semaphore, watch};

use crate::{
    clock::now,
    config::{LearnerConfig, RolloutConfig, sampling_message},
    demonstrations::Demonstrate,
    ranks::RankRegistry,
    run::{evaluator::Evaluator, intake::Intake, traces::GroupTraces},
    server::{
        actors::ActorRegistry,
        call_limits::CallLimits,
        refusals::{Refusals, WITHOUT_LEASE},
        verifier::Verifier,
    },
    trainer::Trainer,
};

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
    pub(crate) run_seed: u64,
    pub(crate) intake: Intake,
    pub(crate) evaluator: Evaluator,
    /// Where the other ranks wait for the run to begin.
    pub(crate) registry: RankRegistry,
    /// The newest policy version's weights.
    pub(crate) snapshots: watch::Sender<Snapshot>,
    /// For weights that actors receive too slowly.
    pub(crate) unfinished_snapshots: Arc<Mutex<RareWarning>>,
    /// Limits on the calls of the port.
    pub(crate) call_limits: CallLimits,
    /// Submissions that may wait for the journal at a time, each on a thread.
    pub(crate) journal_permits: Arc<Semaphore>,
    /// The traces of the groups whose step is still to be made.
    pub(crate) traces: GroupTraces,
    /// Who has called, for people who watch the run.
    pub(crate) actors: Mutex<ActorRegistry>,
    pub(crate) refusals: Mutex<Refusals>,
    /// Plays the episodes of actors again, and has the identity that they must have; none in one
    /// process.
    pub(crate) verifier: OnceLock<Verifier>,
    /// Solves questions that were answered wrongly, if the settings want it.
    pub(crate) demonstrate: OnceLock<Box<Demonstrate>>,
    /// Ends a step before it is made.
    pub(crate) stopping: Arc<AtomicBool>,
    /// Whether an actor has joined since the run was opened.
    pub(crate) has_been_joined: AtomicBool,
    /// None while the run continues.
    pub(crate) run_end: watch::Sender<Option<RunEnd>>,
    pub(crate) run_id: String,
    pub(crate) opened: Instant,
    pub(crate) model: Model,
    /// The files of the model, which all joins share.
    pub(crate) model_files: Vec<ModelFile>,
    /// Taken by the thread that trains.
    pub(crate) trainer: Mutex<Option<Trainer>>,
    pub(crate) run_dir: PathBuf,
    pub(crate) fingerprint: String,
}

impl RunContext {
    /// Returns the time since the run was opened.
    pub(crate) fn now(&self) -> Duration {
        now().duration_since(self.opened)
    }

    /// Counts a refusal, and says it now and then.
    pub(crate) fn refused(&self, actor_id: &str, problem: &str) {
        if let Some(count) = self.refusals.lock().note(actor_id, problem) {
            tracing::warn!(actor_id = ?actor_id, count, problem = ?problem, "an actor was refused");
        }
    }

    /// Counts a refusal of submitted work under the name of its actor, if the actor was given the
    /// work.
    pub(crate) fn refused_work(&self, actor_id: &str, was_given: bool, problem: &str) {
        match was_given {
            true => self.refused(actor_id, problem),
            false => self.refused(
                WITHOUT_LEASE,
                &format!("names itself {actor_id:?}: {problem}"),
            ),
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

    pub(crate) fn join_response(&self) -> JoinResponse {
        JoinResponse {
            run_id: self.run_id.clone(),
            run_seed: self.run_seed,
            model_files: self.model_files.clone(),
            rollout: Some(rollout_settings(&self.config.rollout)),
            policy_version: self.snapshots.borrow().policy_version,
            max_leases_per_actor: u32::try_from(self.config.trust.max_leases_per_actor)
                .unwrap_or(u32::MAX),
            replay_seconds: self.verifier.get().map_or(0, |it| it.patience_seconds),
        }
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
        thinking: rollout.thinking,
        constraint: match rollout.constraint {
            Constraint::None => proto::v1::Constraint::Unspecified,
            Constraint::ToolCall => proto::v1::Constraint::ToolCall,
            Constraint::Sql => proto::v1::Constraint::Sql,
        }
        .into(),
    }
}
