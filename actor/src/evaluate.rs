//! Evaluation: a policy plays questions once each, and the trajectories become rates with their uncertainty.
//!
//! Invariant: an episode's random numbers depend on the seed and its question alone, so neither order, concurrency nor the
//! other questions change its outcome. An episode that breaks off counts as failed and as not correct; the rest goes on.

use std::collections::BTreeMap;

use policy::{Chat, Coordinates, random::derive_seed};
use proto::{
    EnvClient,
    v1::{ListQuestionsRequest, Question, RewardComponents, Trajectory, Turn},
};
use serde::{Deserialize, Serialize};

use crate::{
    error::ActorError,
    play::{Seat, Table},
    policies::Policy,
    retry::Retry,
};

/// Questions asked for at once.
const PAGE: u32 = 5_000;
/// The two-sided 95 % quantile of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// How often something was correct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Episodes.
    pub questions: usize,
    /// Episodes that ended with a right answer.
    pub correct: usize,
    /// `correct / questions`; 0 without questions.
    pub success_rate: f64,
    /// Lower end of Wilson's 95 % interval.
    pub wilson_low: f64,
    /// Upper end of Wilson's 95 % interval.
    pub wilson_high: f64,
}

impl Score {
    /// The score of `correct` in `questions`. No question says nothing: the interval is then all of 0 to 1.
    #[must_use]
    pub fn new(correct: usize, questions: usize) -> Self {
        if questions == 0 {
            return Self {
                wilson_high: 1.0,
                ..Self::default()
            };
        }
        let n = questions as f64;
        let rate = correct as f64 / n;
        let scale = 1.0 + Z * Z / n;
        let middle = (rate + Z * Z / (2.0 * n)) / scale;
        let half = Z * (rate * (1.0 - rate) / n + Z * Z / (4.0 * n * n)).sqrt() / scale;
        Self {
            questions,
            correct,
            success_rate: rate,
            wilson_low: (middle - half).max(0.0),
            wilson_high: (middle + half).min(1.0),
        }
    }
}

/// One step as people read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// What the policy wrote.
    pub completion: String,
    /// The action's type.
    pub action_type: String,
    /// The action's argument.
    pub argument: String,
    /// What the environment answered.
    pub observation: String,
    /// Whether that was an error.
    pub is_error: bool,
    /// True where the completion held no well-formed call.
    pub malformed: bool,
    /// The step's reward.
    pub reward: f64,
    /// Reward layers: operational, progress, terminal, clip.
    pub components: [f64; 4],
}

/// One episode's outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeRecord {
    /// The question.
    pub question_id: String,
    /// Its database.
    pub database_name: String,
    /// Its level.
    pub difficulty: String,
    /// Whether the answer was right.
    pub correct: bool,
    /// Sum of the step rewards.
    pub total_reward: f64,
    /// Why the episode broke off; empty where it ended.
    pub failure: String,
    /// The steps, oldest first.
    pub steps: Vec<StepRecord>,
}

/// What a policy reached on a set of questions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Over all questions.
    pub score: Score,
    /// Mean sum of rewards per episode.
    pub mean_reward: f64,
    /// Mean number of steps per episode.
    pub mean_steps: f64,
    /// Share of completions without a well-formed call.
    pub malformed_rate: f64,
    /// Episodes that broke off for a reason outside the agent.
    pub failed: usize,
    /// By level.
    pub by_level: BTreeMap<String, Score>,
    /// By database.
    pub by_database: BTreeMap<String, Score>,
    /// The episodes, in the order of the questions.
    pub episodes: Vec<EpisodeRecord>,
}

/// Has `policy` play each question once, `concurrency` at a time. `progress` hears how many are done, of how many.
pub async fn evaluate(
    policy: &dyn Policy,
    table: &Table,
    questions: &[Question],
    seed: u64,
    concurrency: usize,
    mut progress: impl FnMut(usize, usize),
) -> Evaluation {
    let seats: Vec<Seat> = questions
        .iter()
        .map(|question| seat(question, seed))
        .collect();
    let mut done = 0;
    let on_done = |_: &Trajectory| {
        done += 1;
        progress(done, seats.len());
    };
    let played = table.play_all(policy, &seats, concurrency, on_done).await;
    let records = questions.iter().zip(&played);
    summary(
        records
            .map(|(question, played)| record(&table.chat, question, &played.trajectory))
            .collect(),
    )
}

/// All questions of a split (empty: all splits), in the node's order.
///
/// # Errors
/// The node does not answer, or knows no such split.
pub async fn questions(env: &EnvClient, split: &str) -> Result<Vec<Question>, ActorError> {
    let retry = Retry::default();
    let mut questions = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListQuestionsRequest {
            split: split.to_owned(),
            page_size: PAGE,
            page_token,
            ..ListQuestionsRequest::default()
        };
        let page = retry
            .call("Env.ListQuestions", || {
                let (mut env, request) = (env.clone(), request.clone());
                async move { env.list_questions(request).await }
            })
            .await?;
        questions.extend(page.questions);
        if page.next_page_token.is_empty() {
            return Ok(questions);
        }
        page_token = page.next_page_token;
    }
}

fn seat(question: &Question, seed: u64) -> Seat {
    let run_seed = derive_seed(seed, &question.question_id);
    Seat {
        question_id: question.question_id.clone(),
        coordinates: Coordinates {
            run_seed,
            ..Coordinates::default()
        },
    }
}

fn record(chat: &Chat, question: &Question, trajectory: &Trajectory) -> EpisodeRecord {
    let step = |turn: &Turn| step_record(chat, trajectory, turn);
    EpisodeRecord {
        question_id: question.question_id.clone(),
        database_name: question.database_name.clone(),
        difficulty: question.difficulty.clone(),
        correct: trajectory.scored && trajectory.correct,
        total_reward: trajectory.episode_return,
        failure: trajectory.failure.clone(),
        steps: trajectory.turns.iter().map(step).collect(),
    }
}

fn step_record(chat: &Chat, trajectory: &Trajectory, turn: &Turn) -> StepRecord {
    let segment = &trajectory.segments[turn.segment as usize];
    let start = turn.completion_start as usize;
    let completion = &segment.tokens[start..start + turn.completion_tokens as usize];
    let action = turn.action.clone().unwrap_or_default();
    let RewardComponents {
        operational,
        progress,
        terminal,
        clip,
    } = turn.reward_components.unwrap_or_default();
    StepRecord {
        completion: chat.completion_text(completion).unwrap_or_default(),
        action_type: action.action_type,
        argument: action.argument,
        observation: turn.observation_text.clone(),
        is_error: turn.observation_is_error,
        malformed: turn.malformed,
        reward: turn.reward,
        components: [operational, progress, terminal, clip],
    }
}

fn summary(episodes: Vec<EpisodeRecord>) -> Evaluation {
    let steps = || episodes.iter().flat_map(|episode| &episode.steps);
    Evaluation {
        score: score(&episodes.iter().collect::<Vec<_>>()),
        mean_reward: mean(episodes.iter().map(|episode| episode.total_reward)),
        mean_steps: mean(episodes.iter().map(|episode| episode.steps.len() as f64)),
        malformed_rate: mean(steps().map(|step| f64::from(u8::from(step.malformed)))),
        failed: episodes
            .iter()
            .filter(|episode| !episode.failure.is_empty())
            .count(),
        by_level: scores_by(&episodes, |episode| &episode.difficulty),
        by_database: scores_by(&episodes, |episode| &episode.database_name),
        episodes,
    }
}

fn score(episodes: &[&EpisodeRecord]) -> Score {
    let correct = episodes.iter().filter(|episode| episode.correct).count();
    Score::new(correct, episodes.len())
}

fn scores_by(
    episodes: &[EpisodeRecord],
    key: impl Fn(&EpisodeRecord) -> &String,
) -> BTreeMap<String, Score> {
    let mut groups: BTreeMap<String, Vec<&EpisodeRecord>> = BTreeMap::new();
    for episode in episodes {
        groups
            .entry(key(episode).clone())
            .or_default()
            .push(episode);
    }
    groups
        .into_iter()
        .map(|(key, episodes)| (key, score(&episodes)))
        .collect()
}

/// The mean; 0 of nothing.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| {
        (sum + value, count + 1)
    });
    if count == 0 { 0.0 } else { sum / count as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bounds by Wilson's formula, evaluated apart from this code in Python's double precision, to four decimals.
    #[test]
    fn wilson_intervals() {
        for (correct, questions, low, high) in [
            (0, 10, 0.0, 0.2775),
            (5, 10, 0.2366, 0.7634),
            (10, 10, 0.7225, 1.0),
            (114, 300, 0.3269, 0.4361),
        ] {
            let score = Score::new(correct, questions);
            assert!((score.wilson_low - low).abs() < 5e-5, "{score:?}");
            assert!((score.wilson_high - high).abs() < 5e-5, "{score:?}");
        }
    }

    #[test]
    fn no_question_is_legal() {
        let evaluation = summary(Vec::new());
        assert_eq!(evaluation.score.questions, 0);
        assert_eq!(
            (evaluation.score.wilson_low, evaluation.score.wilson_high),
            (0.0, 1.0)
        );
        assert_eq!(
            (evaluation.mean_reward, evaluation.malformed_rate),
            (0.0, 0.0)
        );
    }
}
