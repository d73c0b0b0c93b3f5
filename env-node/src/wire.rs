//! Converts the messages of `sqlenv.v1.Env` to the environment's types and back.
//!
//! Invariant: the fields of a question are named one by one, so that a gold answer cannot slip out.
//! This decides what a caller may know of a question. The page alone shows more, its answer and SQL
//! at the end of an episode (`gold` in `web/view.rs`).

use data::Question;
use env::{
    Action, EnvError, Environment, EpisodeSpec, Observation, ResetResult, RewardComponents,
    StepResult,
};
use proto::v1::{
    self, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, ResetRequest, ResetResponse,
    StepResponse,
};
use serde_json::{Value, json};

const DEFAULT_PAGE_SIZE: usize = 1_000;
const MAX_PAGE_SIZE: usize = 10_000;

/// Reads what an episode is started with.
pub(crate) fn episode_spec(request: ResetRequest) -> EpisodeSpec {
    EpisodeSpec {
        question_id: request.question_id,
        split: request.split,
        seed: request.seed,
        episode_id: request.episode_id,
        reward_profile: request.reward_profile,
        step_budget: request.step_budget,
    }
}

/// Reads an action.
pub(crate) fn action(action: v1::Action) -> Action {
    Action {
        action_type: action.action_type,
        argument: action.argument,
    }
}

/// Writes the reply to Reset.
pub(crate) fn reset_response(result: ResetResult) -> ResetResponse {
    ResetResponse {
        token: result.token,
        episode_id: result.episode_id,
        question_id: result.question_id,
        observation: Some(observation(result.observation)),
    }
}

/// Writes the reply to Step.
pub(crate) fn step_response(result: StepResult) -> StepResponse {
    let RewardComponents {
        operational,
        progress,
        terminal,
        clip,
    } = result.reward_components;
    StepResponse {
        token: result.token,
        observation: Some(observation(result.observation)),
        reward_components: Some(v1::RewardComponents {
            operational,
            progress,
            terminal,
            clip,
        }),
        correct: result.correct,
    }
}

fn observation(observation: Observation) -> v1::Observation {
    v1::Observation {
        question: observation.question,
        schema_info: observation.schema_info,
        result: observation.result,
        error: observation.error,
        step_count: observation.step_count,
        budget_remaining: observation.budget_remaining,
        action_history: observation.action_history,
        done: observation.done,
        reward: observation.reward,
    }
}

/// Returns what a caller may know of a question: all but its answer.
pub fn question(question: &Question) -> v1::Question {
    v1::Question {
        question_id: question.question_id.clone(),
        question_text: question.question_text.clone(),
        database_name: question.database_name.clone(),
        split: question.split.clone(),
        difficulty: question.difficulty.clone(),
    }
}

/// Writes a question as JSON. `text_key` names the field of its text.
pub(crate) fn question_json(question: &Question, text_key: &str) -> Value {
    let question = self::question(question);
    json!({
        "question_id": question.question_id,
        text_key: question.question_text,
        "database_name": question.database_name,
        "split": question.split,
        "difficulty": question.difficulty,
    })
}

/// Answers ListQuestions. A page token is the place of the page's first question.
pub(crate) fn list_questions(
    environment: &Environment,
    request: &ListQuestionsRequest,
) -> Result<ListQuestionsResponse, EnvError> {
    let start = match request.page_token.as_str() {
        "" => 0,
        text => text.parse::<usize>().map_err(|_| EnvError::Request {
            field: "page_token",
            message: format!(
                "page_token {text:?} is none of this node's; pass on next_page_token unchanged"
            ),
        })?,
    };
    let size = match request.page_size as usize {
        0 => DEFAULT_PAGE_SIZE,
        size => size.min(MAX_PAGE_SIZE),
    };
    let page = environment.list_questions(
        &request.split,
        &request.database_name,
        start..start.saturating_add(size),
    )?;
    let next = start.saturating_add(page.questions.len());
    Ok(ListQuestionsResponse {
        next_page_token: if next < page.total {
            next.to_string()
        } else {
            String::new()
        },
        total_size: page.total as u32,
        questions: page.questions.into_iter().map(question).collect(),
    })
}

/// Answers Info.
pub(crate) fn info(environment: &Environment) -> InfoResponse {
    let databases = environment.databases().map(|file| v1::Database {
        name: file.name.clone(),
        sha256: file.sha256.clone(),
        size_bytes: file.size_bytes,
    });
    let splits = environment.splits().map(|(name, count)| v1::Split {
        name: name.to_owned(),
        question_count: count as u32,
    });
    InfoResponse {
        environment_version: environment.version().to_owned(),
        default_reward_profile: environment.settings().reward_profile.to_string(),
        default_step_budget: environment.settings().step_budget,
        databases: databases.collect(),
        splits: splits.collect(),
        data_sha256: environment.data_sha256().to_owned(),
    }
}
