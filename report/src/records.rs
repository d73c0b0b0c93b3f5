//! The records of a run folder: the lines of its `.jsonl` files, `run.json` and `timing.json`.
//!
//! Evaluations and transcripts contain the records of [`actor`], so the evaluation writes them as
//! they are. Invariant: an unknown value is absent, not zero.

use std::{collections::BTreeMap, fmt};

pub use actor::{CorrectCount, EnvStepRecord, EpisodeRecord, EvaluationMetrics, SuccessRate};
use serde::{Deserialize, Deserializer, Serialize};

/// Model, data and machine of a run: the content of `run.json`. It is written again when the status
/// changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Name of the run and of its folder.
    pub name: String,
    /// Whether it has ended.
    pub status: RunStatus,
    /// Description of the model: the embedded policy, or the folder of `--model`.
    pub model: String,
    /// Trainable parameters.
    pub parameters: u64,
    /// Name of the dataset.
    pub dataset: String,
    /// Hash of the questions and databases, as env-nodes report it.
    pub data_sha256: String,
    /// The version of the environment's rules on the env-node of a distributed run, and its default
    /// reward profile where it counts; none in local runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// Number of databases that the questions are about.
    pub databases: u64,
    /// Number of questions by split.
    pub questions: BTreeMap<String, u64>,
    /// Questions of `eval` whose SQL is also that of a training question, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_queries_in_train: Option<u64>,
    /// How the warm start was trained, as the end of a sentence; none without a warm start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<String>,
    /// The seed that all random numbers derive from.
    pub run_seed: u64,
    /// Version of the program.
    pub version: String,
    /// Description of the machine: cores and device.
    pub machine: String,
    /// The command line that started the run.
    pub command: String,
    /// Actors that the learner refused, in its last process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_actors: Vec<RefusedActorRecord>,
}

/// An actor whose groups or calls the learner refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedActorRecord {
    /// Its name, which it chose.
    pub id: String,
    /// How often it was refused.
    pub count: u64,
    /// Why, the last time.
    pub reason: String,
}

/// Whether a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    /// Started, and no end was recorded.
    Running,
    /// Stopped early; it can be resumed from its last checkpoint.
    Interrupted,
    /// All steps done.
    Finished,
}

/// One learner step: a line of `metrics.jsonl`. The line is flat: metrics with TRL's names beside
/// `step`, `stage` and `policy_version`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnerStepRecord {
    /// Learner step within its stage, 1-based.
    pub step: u64,
    /// The stage of training.
    pub stage: TrainingStage,
    /// The policy version that the step produced.
    pub policy_version: u64,
    /// Metrics by name. Values that are not finite are written as `null`, and `null` is read as
    /// absent.
    #[serde(flatten, deserialize_with = "numbers")]
    pub metrics: BTreeMap<String, f64>,
}

impl LearnerStepRecord {
    /// Returns the record of a step of GRPO.
    pub fn of_grpo(step: u64, metrics: BTreeMap<String, f64>) -> Self {
        Self {
            step,
            stage: TrainingStage::Grpo,
            policy_version: step,
            metrics,
        }
    }
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

/// The policy that a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    /// Random actions on the tables that the episode has shown.
    Random,
    /// The model before any training of the run.
    Base,
    /// The model from which GRPO starts, after imitation of the oracle. By default it has as many
    /// tokens as GRPO trained on.
    #[serde(rename = "oracle imitation")]
    OracleImitation,
    /// The model that GRPO starts from, in a run with a warm start.
    #[serde(rename = "warm start")]
    WarmStart,
    /// The model after GRPO.
    Grpo,
    /// The policy that knows the gold SQL.
    Oracle,
    /// A model folder that `sqlenv eval` evaluates.
    Model,
}

impl PolicyName {
    /// All policies, in the order of tables and legends.
    pub const ALL: [Self; 7] = [
        Self::Random,
        Self::Base,
        Self::OracleImitation,
        Self::WarmStart,
        Self::Grpo,
        Self::Oracle,
        Self::Model,
    ];

    /// Tells whether the policy has no model, so that the decoding mode means nothing.
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
    /// Always the most likely token.
    Greedy,
    /// A token drawn at the temperature of rollouts.
    Sampled,
}

/// The split that headline and breakdown are about: new queries on databases of the training.
pub const EVAL_SPLIT: &str = "eval";

/// The split name of the questions of the learning curve. They come from `eval` and differ from
/// those of the table.
pub const CURVE_SPLIT: &str = "eval/curve";

/// The split of new words: generated databases of words that no pretraining has.
pub const NEW_WORDS_SPLIT: &str = "eval-unseen/words";

/// What evaluations on new words in messy schemas are recorded as.
pub const MESSY_SCHEMAS_SPLIT: &str = "eval-unseen/messy-schemas";

impl fmt::Display for DecodingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Greedy => "greedy",
            Self::Sampled => "sampled",
        })
    }
}

/// One evaluation: a line of `evaluations.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The policy that was evaluated.
    pub policy: PolicyName,
    /// Its version; 0 for scripted policies and the base.
    pub policy_version: u64,
    /// GRPO steps before the evaluation.
    pub step: u64,
    /// The split of the questions: `eval`, `eval-unseen/database`, `eval-unseen/domain`.
    pub split: String,
    /// How tokens were chosen.
    pub mode: DecodingMode,
    /// The result.
    #[serde(flatten)]
    pub metrics: EvaluationMetrics,
}

/// One episode of an evaluation: a line of `transcripts.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transcript {
    /// The policy that was evaluated.
    pub policy: PolicyName,
    /// The SQL that the question was made from.
    pub gold_sql: String,
    /// The right answer, as a policy would submit it.
    pub gold_answer: String,
    /// The question and what the policy did.
    #[serde(flatten)]
    pub episode: EpisodeRecord,
}

/// The time that one stage of a run took: an element of `timing.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageTime {
    /// Name of the stage.
    pub stage: String,
    /// Wall-clock seconds.
    pub seconds: f64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a transcript of an episode with these steps.
    pub(crate) fn transcript(
        policy: PolicyName,
        id: &str,
        correct: bool,
        steps: Vec<EnvStepRecord>,
    ) -> Transcript {
        Transcript {
            policy,
            gold_sql: String::new(),
            gold_answer: String::new(),
            episode: EpisodeRecord {
                question_id: id.to_owned(),
                question: String::new(),
                database: String::new(),
                difficulty: String::new(),
                correct,
                reward: 0.0,
                failure: String::new(),
                steps,
            },
        }
    }
}
