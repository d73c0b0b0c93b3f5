//! The run folder: what a run leaves on disk, and how it is written and read back.
//!
//! Invariant: every file is either whole (written in one go) or a log of JSON lines that a crash may cut short; reading
//! accepts both. Checkpoints and the journal belong to the learner.

mod folder;
mod info;
mod records;

pub use folder::{Records, RunFolder};
pub use info::Asked;
pub use records::{
    CURVE_SPLIT, Evaluation, Mode, PlayedStep, PolicyName, RewardComponents, RunInfo, RunStatus,
    Stage, StageTime, StepRecord, Tally, Transcript,
};
