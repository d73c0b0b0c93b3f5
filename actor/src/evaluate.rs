//! Evaluation: a policy runs one episode per question, and the trajectories become metrics.
//!
//! Invariant: the random numbers of an episode depend on the seed and its question alone. Neither
//! the order, the concurrency nor the other questions change its result. An episode that fails for
//! a reason outside the agent counts as incorrect, and the other episodes continue.
//!
//! The records are serialized as they are into the lines of a run folder's `evaluations.jsonl` and
//! `transcripts.jsonl`, so their field names are a file format.

use std::collections::BTreeMap;

use policy::{Chat, Coordinates, random::derive_seed};
use proto::{
    EnvClient,
    v1::{ListQuestionsRequest, Question, RewardComponents, Trajectory, Turn},
};
use serde::{Deserialize, Serialize};

use crate::{
    episode_settings::{EpisodeSettings, EpisodeSpec},
    error::ActorError,
    model_policy::Policy,
    retry::Retry,
    rollout_driver::run_episodes,
};

/// Questions per page of a listing.
const PAGE_QUESTIONS: u32 = 5_000;
/// The two-sided 95 % quantile of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// How many questions were asked and how many were answered correctly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorrectCount {
    /// Episodes.
    pub questions: u64,
    /// Episodes that ended with a correct answer.
    pub correct: u64,
}

impl CorrectCount {
    fn add(&mut self, episode: &EpisodeRecord) {
        self.questions += 1;
        self.correct += u64::from(episode.correct);
    }
}

/// The share of correct answers with its uncertainty. Rates are between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SuccessRate {
    /// Episodes.
    pub questions: u64,
    /// Episodes that ended with a correct answer.
    pub correct: u64,
    /// `correct / questions`. 0 without questions.
    pub success_rate: f64,
    /// Lower end of Wilson's 95 % interval.
    pub wilson_low: f64,
    /// Upper end of Wilson's 95 % interval.
    pub wilson_high: f64,
}

impl From<CorrectCount> for SuccessRate {
    /// Computes Wilson's score interval. Without questions it is the whole of 0 to 1.
    fn from(CorrectCount { questions, correct }: CorrectCount) -> Self {
        if questions == 0 {
            return Self {
                wilson_high: 1.0,
                ..Self::default()
            };
        }
        let n = questions as f64;
        let rate = correct as f64 / n;
        let scale = 1.0 + Z * Z / n;
        let centre = (rate + Z * Z / (2.0 * n)) / scale;
        let half = Z * (rate * (1.0 - rate) / n + Z * Z / (4.0 * n * n)).sqrt() / scale;
        Self {
            questions,
            correct,
            success_rate: rate,
            wilson_low: (centre - half).max(0.0),
            wilson_high: (centre + half).min(1.0),
        }
    }
}

/// One env step of an episode, as text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnvStepRecord {
    /// The completion. A transcript of a scripted policy leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<String>,
    /// DESCRIBE, SAMPLE, QUERY or ANSWER.
    pub action_type: String,
    /// Table, SQL or answer.
    pub argument: String,
    /// True if the completion had no well-formed tool call.
    #[serde(default)]
    pub malformed: bool,
    /// What the environment returned after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// What the environment returned after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The reward: the sum of its components.
    pub reward: f64,
    /// The reward by layer.
    pub components: RewardComponents,
}

impl EnvStepRecord {
    pub(crate) fn new(completion: String, turn: &Turn) -> Self {
        let action = turn.action.clone().unwrap_or_default();
        let observation = || turn.observation_text.clone();
        Self {
            completion: Some(completion),
            action_type: action.action_type,
            argument: action.argument,
            malformed: turn.malformed,
            result: (!turn.observation_is_error).then(observation),
            error: turn.observation_is_error.then(observation),
            reward: turn.reward,
            components: turn.reward_components.unwrap_or_default(),
        }
    }
}

/// One episode of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeRecord {
    /// The question's id.
    pub question_id: String,
    /// The question's text.
    pub question: String,
    /// The database's name.
    pub database: String,
    /// The question's level.
    pub difficulty: String,
    /// Whether the episode ended with a correct answer.
    pub correct: bool,
    /// The return: the sum of the rewards.
    pub reward: f64,
    /// Why the episode failed for a reason outside the agent. Empty if it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure: String,
    /// The env steps, oldest first.
    pub steps: Vec<EnvStepRecord>,
}

impl EpisodeRecord {
    /// Returns the record of an episode that has not begun.
    pub(crate) fn of_question(question: &Question) -> Self {
        Self {
            question_id: question.question_id.clone(),
            question: question.question_text.clone(),
            database: question.database_name.clone(),
            difficulty: question.difficulty.clone(),
            correct: false,
            reward: 0.0,
            failure: String::new(),
            steps: Vec::new(),
        }
    }
}

/// Metrics of one policy on a set of questions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationMetrics {
    /// Over all questions.
    #[serde(flatten)]
    pub success: SuccessRate,
    /// Mean return.
    pub mean_reward: f64,
    /// Mean env steps per episode.
    pub mean_steps: f64,
    /// Share of turns without a well-formed tool call.
    pub malformed_rate: f64,
    /// Episodes that failed for a reason outside the agent. They count as incorrect. Serialized
    /// only if there are any.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// By difficulty.
    #[serde(default)]
    pub by_level: BTreeMap<String, CorrectCount>,
    /// By database name.
    #[serde(default)]
    pub by_database: BTreeMap<String, CorrectCount>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl EvaluationMetrics {
    pub(crate) fn of(episodes: &[EpisodeRecord]) -> Self {
        let mut count = CorrectCount::default();
        episodes.iter().for_each(|episode| count.add(episode));
        let steps = || episodes.iter().flat_map(|episode| &episode.steps);
        let failed = episodes
            .iter()
            .filter(|episode| !episode.failure.is_empty());
        Self {
            success: count.into(),
            mean_reward: mean(episodes.iter().map(|episode| episode.reward)),
            mean_steps: mean(episodes.iter().map(|episode| episode.steps.len() as f64)),
            malformed_rate: mean(steps().map(|step| f64::from(u8::from(step.malformed)))),
            failed: failed.count() as u64,
            by_level: counts_by(episodes, |episode| &episode.difficulty),
            by_database: counts_by(episodes, |episode| &episode.database),
        }
    }
}

/// Runs one episode per question, `concurrency` at a time. Returns the metrics and the episodes in
/// the order of the questions. Calls `on_done` with the number of finished episodes. `policies` are
/// copies of one policy, for instance one for each engine.
pub async fn evaluate(
    policies: &[&dyn Policy],
    settings: &EpisodeSettings,
    questions: &[Question],
    seed: u64,
    concurrency: usize,
    mut on_done: impl FnMut(usize),
) -> (EvaluationMetrics, Vec<EpisodeRecord>) {
    let specs: Vec<EpisodeSpec> = questions
        .iter()
        .map(|question| evaluation_spec(&question.question_id, seed))
        .collect();
    let count = |done, _: &Trajectory| on_done(done);
    let outcomes = run_episodes(policies, settings, &specs, concurrency, count).await;
    let trajectories = outcomes.iter().map(|outcome| &outcome.trajectory);
    evaluation_of(&settings.chat, questions, trajectories)
}

/// Returns the metrics and the records of the trajectories of an evaluation, one for each question
/// and in their order.
pub fn evaluation_of<'a>(
    chat: &Chat,
    questions: &[Question],
    trajectories: impl IntoIterator<Item = &'a Trajectory>,
) -> (EvaluationMetrics, Vec<EpisodeRecord>) {
    let episodes: Vec<EpisodeRecord> = questions
        .iter()
        .zip(trajectories)
        .map(|(question, trajectory)| episode_record(chat, question, trajectory))
        .collect();
    (EvaluationMetrics::of(&episodes), episodes)
}

/// Lists all questions of a split (empty: of all splits) in the order of env-node.
///
/// # Errors
/// Env-node does not respond to as many attempts as `retry` says, or has no such split.
pub async fn list_questions(
    env: &EnvClient,
    split: &str,
    retry: &Retry,
) -> Result<Vec<Question>, ActorError> {
    let mut questions = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListQuestionsRequest {
            split: split.to_owned(),
            page_size: PAGE_QUESTIONS,
            page_token,
            ..ListQuestionsRequest::default()
        };
        let list = async || env.clone().list_questions(request.clone()).await;
        let page = retry.call("Env.ListQuestions", list).await?;
        questions.extend(page.questions);
        if page.next_page_token.is_empty() {
            return Ok(questions);
        }
        page_token = page.next_page_token;
    }
}

/// Returns the episode of a question, whose random numbers depend on the seed and the question.
pub(crate) fn evaluation_spec(question_id: &str, seed: u64) -> EpisodeSpec {
    EpisodeSpec {
        question_id: question_id.to_owned(),
        coordinates: Coordinates {
            run_seed: derive_seed(seed, question_id),
            ..Coordinates::default()
        },
    }
}

fn episode_record(chat: &Chat, question: &Question, trajectory: &Trajectory) -> EpisodeRecord {
    let step = |turn: &Turn| env_step_record(chat, trajectory, turn);
    EpisodeRecord {
        correct: trajectory.scored && trajectory.correct,
        reward: trajectory.episode_return,
        failure: trajectory.failure.clone(),
        steps: trajectory.turns.iter().map(step).collect(),
        ..EpisodeRecord::of_question(question)
    }
}

fn env_step_record(chat: &Chat, trajectory: &Trajectory, turn: &Turn) -> EnvStepRecord {
    let start = turn.completion_start as usize;
    let range = start..start + turn.completion_tokens as usize;
    let segment = trajectory.segments.get(turn.segment as usize);
    // A turn that sampled nothing may name no segment.
    let completion = segment.and_then(|segment| segment.tokens.get(range));
    let text = chat.completion_text(completion.unwrap_or_default());
    EnvStepRecord::new(text.unwrap_or_default(), turn)
}

fn counts_by(
    episodes: &[EpisodeRecord],
    key: impl Fn(&EpisodeRecord) -> &String,
) -> BTreeMap<String, CorrectCount> {
    let mut counts: BTreeMap<String, CorrectCount> = BTreeMap::new();
    for episode in episodes {
        counts.entry(key(episode).clone()).or_default().add(episode);
    }
    counts
}

/// Returns the mean, or 0 for no values.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| {
        (sum + value, count + 1)
    });
    if count == 0 { 0.0 } else { sum / count as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds were computed by Wilson's formula in Python, in double precision, independently
    /// of this code, and rounded to four decimals.
    #[test]
    fn wilson_intervals() {
        for (correct, questions, low, high) in [
            (0, 10, 0.0, 0.2775),
            (5, 10, 0.2366, 0.7634),
            (10, 10, 0.7225, 1.0),
            (114, 300, 0.3269, 0.4361),
        ] {
            let rate = SuccessRate::from(CorrectCount { questions, correct });
            assert!((rate.wilson_low - low).abs() < 5e-5, "{rate:?}");
            assert!((rate.wilson_high - high).abs() < 5e-5, "{rate:?}");
        }
    }

    #[test]
    fn an_evaluation_may_have_no_questions() {
        let metrics = EvaluationMetrics::of(&[]);
        let rate = metrics.success;
        assert_eq!(rate.questions, 0);
        assert_eq!((rate.wilson_low, rate.wilson_high), (0.0, 1.0));
        assert_eq!((metrics.mean_reward, metrics.malformed_rate), (0.0, 0.0));
    }

    /// Lines of run folders that exist already.
    #[test]
    fn records_keep_the_file_format() {
        let line = r#"{"questions":4,"correct":1,"success_rate":0.25,"wilson_low":0.0,"wilson_high":1.0,"mean_reward":0.5,"mean_steps":3.0,"malformed_rate":0.0,"by_level":{"level-0":{"questions":4,"correct":1}},"by_database":{}}"#;
        let metrics: EvaluationMetrics = serde_json::from_str(line).unwrap();
        assert_eq!(metrics.by_level["level-0"].questions, 4);
        assert_eq!(serde_json::to_string(&metrics).unwrap(), line);
        let line = r#"{"question_id":"q","question":"?","database":"d","difficulty":"easy","correct":true,"reward":1.0,"steps":[{"action_type":"ANSWER","argument":"1","malformed":false,"result":"ok","reward":1.0,"components":{"operational":0.0,"progress":0.0,"terminal":1.0,"clip":0.0}}]}"#;
        let episode: EpisodeRecord = serde_json::from_str(line).unwrap();
        assert_eq!(episode.steps[0].completion, None);
        assert_eq!(serde_json::to_string(&episode).unwrap(), line);
    }
}
