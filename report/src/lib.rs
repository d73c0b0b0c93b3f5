//! Reads and writes the records in a run folder, and turns them into the HTML report of the run.
//!
//! The records are the only input of the report, so `sqlenv report` can rebuild it from any run
//! folder.

mod chart;
mod error;
mod folder;
mod live;
mod model_card;
pub mod number;
mod page;
mod policy_comparison;
mod records;
mod run_lock;
mod run_records;
mod tensorboard;

pub use error::ReportError;
pub use folder::{RunFolder, SETTINGS};
pub use live::{
    ActorStatus, EnvNodeStatus, Finding, LiveEpisode, LiveStatus, RunSettings, Severity, diagnose,
    live_fragment, live_page, live_security_policy, shorten_steps,
};
pub use model_card::{PolicyLicences, model_card};
pub use page::{render, safe_line, safe_text, summary, write};
pub use policy_comparison::{
    ComparisonRow, EpisodeLimits, PairedDifference, PolicyComparison, SampledAccuracy,
};
pub use records::{
    CURVE_SPLIT, CorrectCount, DecodingMode, EVAL_SPLIT, EnvStepRecord, EpisodeRecord, Evaluation,
    EvaluationMetrics, LearnerStepRecord, MESSY_SCHEMAS_SPLIT, NEW_WORDS_SPLIT, PolicyName,
    RefusedActorRecord, RunInfo, RunStatus, StageTime, SuccessRate, TrainingStage, Transcript,
};
pub use run_records::RunRecords;
