//! The one error of the crate.
//!
//! Invariant: every message names the field, file or address at fault and what to do. What an actor does wrong is
//! answered with a gRPC status and never ends the run.

use std::{
    io,
    path::{Path, PathBuf},
};

/// What can go wrong in the learner.
#[derive(Debug, thiserror::Error)]
pub enum LearnerError {
    /// A setting cannot be used. Remedy: change the named field.
    #[error("learner setting {field}: {problem}")]
    Setting {
        /// The field, as spelled in the configuration file.
        field: &'static str,
        /// The value met and what is accepted.
        problem: String,
    },
    /// A file could not be read or written. Remedy: check the path, its permissions and the room on the disk.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    File {
        /// What was being done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file is there but not what it should be. Remedy: the reason tells.
    #[error("{path}: {reason}", path = path.display())]
    Broken {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },
    /// A group could not be journalled, so nothing more can be counted. Remedy: free the disk, then resume.
    #[error("cannot append to the journal {path}: {source}; free the disk, then resume the run", path = path.display())]
    Journal {
        /// The journal.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Every episode of a step broke off for a reason outside the agent. Remedy: mend it, then resume; the step's groups
    /// are then played again.
    #[error(
        "step {step}: none of its {episodes} episodes was played to its end; the first: {failure}; see that the environment runs, then resume the run"
    )]
    Unscored {
        /// The step that cannot be made.
        step: u64,
        /// Episodes of all groups that it looked at.
        episodes: usize,
        /// Why the first of them broke off.
        failure: String,
    },
    /// The policy could not be built or run.
    #[error(transparent)]
    Policy(#[from] policy::PolicyError),
    /// The tensor library failed, most likely for want of memory. Remedy: fewer threads and gradient checkpointing, which a
    /// resumed run may have, or a lower `micro_batch_tokens`, which only a new run may have.
    #[error(
        "tensor computation failed: {0}; if memory ran out, resume with gradient_checkpointing or fewer threads, or lower \
         micro_batch_tokens in a new run, which starts from the last checkpoint's hf folder by --model"
    )]
    Tensor(#[from] candle_core::Error),
    /// Training blew up. Remedy: a lower learning rate, a longer warm-up or a lower `max_grad_norm` in a new run; this one
    /// would meet the same numbers again.
    #[error(
        "update {update} is not finite in its gradient or the weights it makes; lower the learning rate or lengthen its \
         warm-up in a new run, which may start from the last checkpoint's hf folder by --model"
    )]
    Diverged {
        /// The update, counted from 1.
        update: u64,
    },
    /// Another rank is gone, silent or confused. Remedy: see its log, then start all ranks again; the run resumes.
    #[error(
        "rank {rank} of the run {problem}; see its log, then start the learner and its ranks again: the run resumes"
    )]
    Rank {
        /// Its number.
        rank: usize,
        /// What it does, as the rest of a sentence.
        problem: String,
    },
    /// Ranks did not come. Remedy: start them.
    #[error(
        "{there} of {count} ranks (learner.ranks.count) are there after {seconds} s; start the others by `sqlenv rank \
         --leader ADDRESS`, then the learner again"
    )]
    RanksMissing {
        /// Ranks that are there, the learner included.
        there: usize,
        /// Ranks of the run.
        count: usize,
        /// How long they were waited for.
        seconds: u32,
    },
    /// A rank's weights drifted off. Remedy: ranks that compute alike.
    #[error(
        "rank {rank} holds other weights than the learner after step {step}; run the same program on like devices on all \
         ranks, then start them again: the run resumes before this step"
    )]
    RankDiffers {
        /// Its number.
        rank: usize,
        /// The step, whose version is not published.
        step: u64,
    },
    /// For a rank: the learner is gone or out of reach. Remedy: see its log; a rank that finds it again takes part again.
    #[error("the learner {problem}; see its log, start it again and then this rank")]
    LeaderAway {
        /// What it does, as the rest of a sentence.
        problem: String,
    },
    /// For a rank: the run has all that it needs. Remedy: none; one that waits takes a place that another leaves.
    #[error(
        "the learner has no place for this rank: {problem}; it is not needed unless another goes"
    )]
    NoPlace {
        /// What the learner answers.
        problem: String,
    },
    /// For a rank: the learner refuses it or says what it should not. Remedy: the same program and a run with room.
    #[error("the learner {problem}")]
    Leader {
        /// What it does, as the rest of a sentence.
        problem: String,
    },
    /// NCCL failed. Remedy: see that the GPUs reach each other, or sum over gRPC.
    #[error(
        "NCCL: {problem}; set NCCL_DEBUG=INFO to learn more, or sum by learner.ranks.reduce=grpc in a new run"
    )]
    Nccl {
        /// What it reports.
        problem: String,
    },
    /// The service could not be served. Remedy: check that the port is free.
    #[error("cannot serve the learner: {0}; check that the address is free")]
    Serve(#[from] tonic::transport::Error),
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

/// Names the file in an I/O error.
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
