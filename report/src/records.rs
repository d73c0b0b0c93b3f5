//! The records of a run folder as serde structs: one line each of the `.jsonl` files, and `run.json`, `timing.json`.
//!
//! Invariant: what is unknown is absent, never a made-up zero. Metric names are TRL's; the struct does not know them.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize};

/// What was trained, on what: `run.json`, rewritten when the status changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Name of the run; its folder's name.
    pub name: String,
    /// How far it came.
    pub status: RunStatus,
    /// The model in words: the embedded default, or the folder given by `--model`.
    pub model: String,
    /// Trainable parameters.
    pub parameters: u64,
    /// The dataset in words.
    pub dataset: String,
    /// Databases the questions are asked of.
    pub databases: u64,
    /// Questions by split.
    pub questions: BTreeMap<String, u64>,
    /// Questions of `eval` whose SQL a training question has too; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_queries_in_train: Option<u64>,
    /// The seed all randomness derives from.
    pub run_seed: u64,
    /// Version of the program.
    pub version: String,
    /// The machine in words: cores, device.
    pub machine: String,
    /// The command line that started the run.
    pub command: String,
}

/// How far a run came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    /// Started, no end written yet.
    Running,
    /// Stopped early; it resumes from its last checkpoint.
    Interrupted,
    /// All steps done.
    Finished,
}

/// One learner step, a line of `metrics.jsonl`: flat, TRL's metric names beside `step`, `stage`, `policy_version`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnerStepRecord {
    /// Learner step within its stage, 1-based.
    pub step: u64,
    /// What was being trained.
    pub stage: TrainingStage,
    /// The version this step produced.
    pub policy_version: u64,
    /// Name to number. Values that are not finite are written as `null` and read as absent.
    #[serde(flatten, deserialize_with = "numbers")]
    pub metrics: BTreeMap<String, f64>,
}

fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let all = BTreeMap::<String, serde_json::Value>::deserialize(from)?;
    Ok(all
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_f64()?)))
        .collect())
}

/// A stage of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainingStage {
    /// Supervised warm start.
    Sft,
    /// Reinforcement learning.
    Grpo,
}

/// Whose play a record describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    /// Random actions over the tables seen.
    Random,
    /// The model before any training.
    Base,
    /// The model after imitating the oracle alone.
    #[serde(rename = "oracle imitation")]
    OracleImitation,
    /// The model that GRPO starts from.
    #[serde(rename = "warm start")]
    WarmStart,
    /// The model after GRPO.
    Grpo,
    /// The policy that knows the gold SQL.
    Oracle,
    /// A model folder that was evaluated by itself.
    Model,
}

impl PolicyName {
    /// Every policy, in the order tables and legends show them.
    pub const ALL: [Self; 7] = [
        Self::Random,
        Self::Base,
        Self::OracleImitation,
        Self::WarmStart,
        Self::Grpo,
        Self::Oracle,
        Self::Model,
    ];

    /// True for policies without a model, for which greedy and sampled play are the same.
    #[must_use]
    pub fn is_scripted(self) -> bool {
        matches!(self, Self::Random | Self::Oracle)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::Base => "base",
            Self::OracleImitation => "oracle imitation",
            Self::WarmStart => "warm start",
            Self::Grpo => "GRPO",
            Self::Oracle => "oracle",
            Self::Model => "model",
        })
    }
}

/// How a model chose its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecodingMode {
    /// The likeliest token, always.
    Greedy,
    /// Drawn at the rollout temperature.
    Sampled,
}

/// The split name of the learning curve's questions, which are held out like `eval`'s and apart from the table's.
pub const CURVE_SPLIT: &str = "eval/curve";

impl fmt::Display for DecodingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Greedy => "greedy",
            Self::Sampled => "sampled",
        })
    }
}

/// One evaluation, a line of `evaluations.jsonl`. Rates lie in 0..=1; the interval is Wilson's at 95 %.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Whose play.
    pub policy: PolicyName,
    /// The version that played; 0 for scripted policies and the base.
    pub policy_version: u64,
    /// GRPO steps done before it.
    pub step: u64,
    /// The split asked: `eval`, `eval-unseen/database`, `eval-unseen/domain`.
    pub split: String,
    /// How tokens were chosen.
    pub mode: DecodingMode,
    /// Episodes played.
    pub questions: u64,
    /// Episodes that ended with a right answer.
    pub correct: u64,
    /// `correct / questions`; 0 where nothing was asked.
    pub success_rate: f64,
    /// Lower end of the interval.
    pub wilson_low: f64,
    /// Upper end of the interval.
    pub wilson_high: f64,
    /// Mean return.
    pub mean_reward: f64,
    /// Mean env steps per episode.
    pub mean_steps: f64,
    /// Share of turns without a well-formed tool call.
    pub malformed_rate: f64,
    /// Episodes that broke off for a reason outside the policy; they count as wrong. Absent where there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// By difficulty.
    #[serde(default)]
    pub by_level: BTreeMap<String, Tally>,
    /// By database name.
    #[serde(default)]
    pub by_database: BTreeMap<String, Tally>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Right answers out of questions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Episodes played.
    pub questions: u64,
    /// Episodes that ended with a right answer.
    pub correct: u64,
}

/// One episode as it was played, a line of `transcripts.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transcript {
    /// Whose play.
    pub policy: PolicyName,
    /// The question's id.
    pub question_id: String,
    /// The question's text.
    pub question: String,
    /// The database's name.
    pub database: String,
    /// The question's level.
    pub difficulty: String,
    /// The SQL the question was made from.
    pub gold_sql: String,
    /// The right answer, as a policy would submit it.
    pub gold_answer: String,
    /// Whether the episode ended with a right answer.
    pub correct: bool,
    /// The episode's return.
    pub reward: f64,
    /// Its steps, oldest first.
    pub steps: Vec<PlayedStep>,
}

/// One env step of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlayedStep {
    /// The model's own text; absent for scripted policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<String>,
    /// DESCRIBE, SAMPLE, QUERY or ANSWER.
    pub action_type: String,
    /// Table, SQL or answer.
    pub argument: String,
    /// True where the completion held no well-formed tool call.
    #[serde(default)]
    pub malformed: bool,
    /// What came back after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// What came back after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The step's reward: the sum of its components.
    pub reward: f64,
    /// The reward by layer.
    pub components: RewardComponents,
}

/// A step's reward by layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RewardComponents {
    /// Execution, new information, repetition, step cost.
    pub operational: f64,
    /// Change of closeness to the gold rows.
    pub progress: f64,
    /// The answer.
    pub terminal: f64,
    /// What clipping added or took.
    pub clip: f64,
}

/// Seconds spent in one stage of a run, an element of `timing.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageTime {
    /// The stage in a few words.
    pub stage: String,
    /// Wall-clock seconds.
    pub seconds: f64,
}
