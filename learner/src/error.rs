//! The one error of the crate.
//!
//! Invariant: every message names the field, file or address at fault and the remedy. What an actor
//! does wrong is refused with a gRPC status and never ends the run.

use std::{
    io,
    path::{Path, PathBuf},
};

use policy::durable;

use crate::group::RefusedGroup;

/// What can go wrong in the learner.
#[derive(Debug, thiserror::Error)]
pub enum LearnerError {
    /// A setting cannot be used. Remedy: change the named field.
    #[error("setting {field}: {problem}")]
    Setting {
        /// The field, as spelled in its section of the configuration file.
        field: &'static str,
        /// The value met and what is accepted.
        problem: String,
    },
    /// A file could not be read or written. Remedy: check the path, its permissions and the room on
    /// the disk.
    #[error("cannot {action} {path}: {source}{}", remedy(source), path = path.display())]
    File {
        /// What was attempted, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file or folder does not hold what it should. Remedy: see the reason.
    #[error("{path}: {reason}", path = path.display())]
    Broken {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },
    /// The run in a folder has other settings, questions, another base model or another dtype.
    /// Remedy: those of the run, or another folder.
    #[error(
        "{path}: was written under other settings, questions, another base model or another \
         dtype; resume with those of the run, or start a new run in another folder",
        path = path.display()
    )]
    OtherSettings {
        /// The newest checkpoint of the run.
        path: PathBuf,
    },
    /// An earlier group could not be journaled. Remedy: that of the failure, then resume.
    #[error("the journal takes no more groups after a failure: {failure}")]
    JournalEnded {
        /// The error of that group, with its remedy.
        failure: String,
    },
    /// Another learner has opened the run. Remedy: decide which of them runs.
    #[error(
        "another learner has opened the run {run} after this one, so this one stops; what it \
         acknowledged and published before is part of the run; let only one learner have the run"
    )]
    Replaced {
        /// The folder or address of the run.
        run: String,
    },
    /// The address of a run in an object store cannot be used. Remedy: see the problem.
    #[error("{address}: {problem}")]
    ObjectAddress {
        /// The address, or the object below it.
        address: String,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// An object store does not answer or refuses. Remedy: check address, credentials and network.
    #[error(
        "cannot {action} {address}: {source}; check the address, the network, and the credentials \
         in the environment (AWS_*, GOOGLE_* or AZURE_*), then give the same command again"
    )]
    ObjectStore {
        /// What was attempted, as a verb.
        action: &'static str,
        /// The object or folder.
        address: String,
        /// The store's answer.
        source: Box<object_store::Error>,
    },
    /// Every episode of a step failed for a reason outside the agent. Remedy: fix the environment,
    /// then resume, which rolls out the step's groups again.
    #[error(
        "step {step}: none of its {episodes} episodes was completed; the first failed with: \
         {failure}; if the environment was away, resume the run"
    )]
    Unscored {
        /// The step that cannot be made.
        step: u64,
        /// Episodes of all groups that the step looked at.
        episodes: usize,
        /// Why the first of them failed.
        failure: String,
    },
    /// The reader of the run's events could not record one, or is gone. Remedy: that of its
    /// failure, then resume.
    #[error("an event of the run could not be recorded; resume the run, which repeats the step")]
    Unrecorded,
    /// A question of a step could not be solved. Remedy: that of the failure, then resume.
    #[error(
        "the oracle could not demonstrate the question {question_id:?}: {failure}; if the \
         environment was away, resume the run"
    )]
    Demonstration {
        /// The question.
        question_id: String,
        /// Why its episode failed.
        failure: String,
    },
    /// A supervised training has nothing to learn. Remedy: episodes with text of the assistant.
    #[error(
        "none of {episodes} episodes has a token to learn; give demonstrations or conversations \
         with text of the assistant"
    )]
    NothingToLearn {
        /// The number of episodes that were given.
        episodes: usize,
    },
    /// The policy could not be built or run.
    #[error(transparent)]
    Policy(#[from] policy::PolicyError),
    /// The tensor library failed, most likely because memory ran out. Remedy: fewer threads or
    /// gradient checkpointing, which a resumed run may change, or a lower `micro_batch_tokens`,
    /// which only a new run may change.
    #[error(
        "tensor computation failed: {0}; if memory ran out, use gradient_checkpointing, fewer \
         threads, or lower micro_batch_tokens in a new run, which starts from the last \
         checkpoint's hf folder by --model (`sqlenv learner` may resume with the first two)"
    )]
    Tensor(#[from] candle_core::Error),
    /// Training diverged. Remedy: a lower learning rate, a longer warm-up or a lower
    /// `max_grad_norm` in a new run; this run would compute the same numbers again.
    #[error(
        "update {update} is not finite in its gradient or its weights; lower the learning rate or \
         lengthen its warm-up in a new run, which may start from the last checkpoint's hf folder \
         by --model"
    )]
    Diverged {
        /// The update, counted from 1.
        update: u64,
    },
    /// The gradient of a step's demonstrations is not finite. Remedy: a lower
    /// `demonstration_weight` or learning rate in a new run; this run would compute the same
    /// numbers again.
    #[error(
        "update {update} is not finite in the gradient of its demonstrations; lower \
         learner.demonstration_weight or the learning rate in a new run, which may start from the \
         last checkpoint's hf folder by --model"
    )]
    DemonstrationsDiverged {
        /// The update, counted from 1.
        update: u64,
    },
    /// Groups of a step cannot be trained on. A run takes them back and makes the step without
    /// them.
    #[error("{} of the step's groups cannot be trained on; the first: {}", .0.len(),
        .0.first().map_or("", |first| &first.problem))]
    Refused(Vec<RefusedGroup>),
    /// The run is being stopped in the middle of a step, which a resumed run makes again.
    #[error("stopped in the middle of a step; resume the run")]
    Stopped,
    /// For a rank: it was to end before it took part in a step. Remedy: none.
    #[error("stopped before this rank took part in the run")]
    NotJoined,
    /// Another rank is gone, is silent or breaks the protocol. Remedy: see its log, then start all
    /// ranks again; the run resumes.
    #[error(
        "rank {rank} of the run {problem}; see its log, then start the learner and its ranks \
         again: the run resumes"
    )]
    Rank {
        /// Its number.
        rank: usize,
        /// What happened, as the rest of a sentence.
        problem: String,
    },
    /// Ranks did not join in time. Remedy: start them.
    #[error(
        "{joined} of {count} ranks (learner.ranks.count) have joined after {seconds} s; start the \
         others by `sqlenv rank --learner ADDRESS`, then the learner again"
    )]
    RanksMissing {
        /// Ranks that have joined, the learner included.
        joined: usize,
        /// Ranks of the run.
        count: usize,
        /// How long the learner waited.
        seconds: u32,
    },
    /// A rank's weights differ. Remedy: the same program on devices of the same kind.
    #[error(
        "rank {rank} has other weights than the learner at step {step}; run the same program on \
         devices of the same kind, then start all ranks again: the run resumes"
    )]
    RankDiffers {
        /// Its number.
        rank: usize,
        /// The step after which they were compared, or from which the ranks were to begin.
        step: u64,
    },
    /// For a rank: the learner is gone or cannot be reached. Remedy: see its log; a rank that
    /// reaches it again rejoins.
    #[error("the learner {0}; see its log, start it again and then this rank")]
    LeaderAway(String),
    /// For a rank: the run has all its ranks. Remedy: none; a waiting rank replaces one that
    /// disconnects.
    #[error("the learner refuses this rank: {0}; it is not needed unless another leaves")]
    RunFull(String),
    /// For a rank: the learner refuses it or breaks the protocol. Remedy: the same program on both
    /// sides.
    #[error("the learner {0}")]
    Leader(String),
    /// NCCL failed. Remedy: check that the GPUs reach each other, or sum over gRPC.
    #[error(
        "NCCL: {0}; set NCCL_DEBUG=INFO for details, or sum by learner.ranks.reduce=grpc in a \
         new run"
    )]
    Nccl(String),
    /// A thread of the learner ended unexpectedly.
    #[error("the {0} thread ended unexpectedly: this is a bug")]
    Thread(&'static str),
}

/// Results of this crate.
pub type Result<T, E = LearnerError> = std::result::Result<T, E>;

impl LearnerError {
    pub(crate) fn setting(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Setting {
            field,
            problem: problem.into(),
        }
    }

    pub(crate) fn broken(path: &Path, reason: impl Into<String>) -> Self {
        Self::Broken {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}

/// Returns what to do about a failure of the disk, if that is clear.
fn remedy(cause: &io::Error) -> &'static str {
    match durable::is_full(cause) {
        true => "; free space on this disk, and continue the run from its last checkpoint",
        false => "",
    }
}

/// Adds what was attempted and the path to an I/O error.
pub(crate) trait AtPath<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| LearnerError::File {
            action,
            path: path.to_owned(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_has_a_remedy() {
        let failed = |kind| {
            let failed: io::Result<()> = Err(io::Error::from(kind));
            failed
                .at("write", Path::new("file"))
                .unwrap_err()
                .to_string()
        };
        let full = failed(io::ErrorKind::StorageFull);
        assert!(full.starts_with("cannot write file: "), "{full}");
        assert!(full.contains("free space on this disk"), "{full}");
        assert!(!failed(io::ErrorKind::NotFound).contains("space"));
    }
}
