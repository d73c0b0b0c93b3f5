//! What the page asks for, under `/web/api/`: information, questions, Reset and Step as JSON.
//!
//! Invariant: no session; a token comes in and a token goes out. Reset and Step are the ones of `sqlenv.v1.Env`, with
//! their metrics and refusals.

use std::collections::{BTreeMap, BTreeSet};

use axum::{
    Json, Router,
    extract::{
        Query, State,
        rejection::{JsonRejection, QueryRejection},
    },
    http::StatusCode,
    routing::{get, post},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use data::Question;
use env::{Action, EpisodeSpec, RewardProfile};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    refusal::{self, Refusal},
    view,
};
use crate::node::EnvNode;

const DEFAULT_PAGE_SIZE: usize = 50;
const MAX_PAGE_SIZE: usize = 500;

/// The page's interface.
pub(super) fn router(node: &EnvNode) -> Router {
    Router::new()
        .route("/web/api/info", get(info))
        .route("/web/api/questions", get(questions))
        .route("/web/api/reset", post(reset))
        .route("/web/api/step", post(step))
        .with_state(node.clone())
}

async fn info(State(node): State<EnvNode>) -> Json<Value> {
    let environment = node.environment();
    let settings = environment.settings();
    let mut databases: BTreeMap<&str, u64> = BTreeMap::new();
    let mut levels: BTreeSet<&str> = BTreeSet::new();
    for question in environment.questions() {
        *databases.entry(&question.database_name).or_default() += 1;
        levels.insert(&question.difficulty);
    }
    let count = |(name, count): (&str, u64)| json!({"name": name, "question_count": count});
    let splits = environment.splits();
    Json(json!({
        "environment_version": environment.version(),
        "reward_profiles": RewardProfile::ALL.map(|profile| profile.to_string()),
        "default_reward_profile": settings.reward_profile.to_string(),
        "default_step_budget": settings.step_budget,
        "databases": databases.into_iter().map(count).collect::<Vec<_>>(),
        "splits": splits.map(|(name, size)| count((name, size as u64))).collect::<Vec<_>>(),
        "levels": levels,
    }))
}

/// Which questions the page shows; empty fields do not count.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    /// Words that stand in the text, the id or the database's name, in any case.
    text: String,
    database: String,
    /// `a` holds `a/b` too.
    split: String,
    level: String,
    offset: usize,
    limit: Option<usize>,
}

impl Wanted {
    fn fits(&self, question: &Question, words: &[String]) -> bool {
        let is = |wanted: &str, value: &str| wanted.is_empty() || wanted == value;
        let within = |part: &str| part.is_empty() || part.starts_with('/');
        is(&self.database, &question.database_name)
            && is(&self.level, &question.difficulty)
            && (self.split.is_empty()
                || question.split.strip_prefix(&self.split).is_some_and(within))
            && contains_all(question, words)
    }
}

fn contains_all(question: &Question, words: &[String]) -> bool {
    if words.is_empty() {
        return true;
    }
    let Question {
        question_text,
        question_id,
        database_name,
        ..
    } = question;
    let text = format!("{question_text}\n{question_id}\n{database_name}").to_lowercase();
    words.iter().all(|word| text.contains(word))
}

async fn questions(
    State(node): State<EnvNode>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Value>, Refusal> {
    let wanted = refusal::query(wanted)?;
    let words: Vec<String> = wanted
        .text
        .split_whitespace()
        .map(str::to_lowercase)
        .collect();
    let size = wanted.limit.unwrap_or(DEFAULT_PAGE_SIZE).min(MAX_PAGE_SIZE);
    let mut total = 0;
    let mut page = Vec::new();
    for question in node
        .environment()
        .questions()
        .filter(|question| wanted.fits(question, &words))
    {
        if total >= wanted.offset && page.len() < size {
            page.push(view::question(question));
        }
        total += 1;
    }
    Ok(Json(json!({"total": total, "questions": page})))
}

/// The question and the terms of an episode.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    question_id: String,
    #[serde(default)]
    reward_profile: String,
    #[serde(default)]
    step_budget: u32,
}

async fn reset(
    State(node): State<EnvNode>,
    start: Result<Json<Start>, JsonRejection>,
) -> Result<Json<Value>, Refusal> {
    let start = refusal::body(start)?;
    // An empty id would draw a question.
    if start.question_id.is_empty() {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "question_id is empty; give one that /web/api/questions names",
        ));
    }
    let question = node
        .environment()
        .questions()
        .find(|question| question.question_id == start.question_id)
        .map(view::question);
    let spec = EpisodeSpec {
        question_id: start.question_id,
        reward_profile: start.reward_profile,
        step_budget: start.step_budget,
        ..EpisodeSpec::default()
    };
    let reply = node.reset(spec)?;
    Ok(Json(json!({
        "token": BASE64_STANDARD.encode(reply.token),
        "episode_id": reply.episode_id,
        "question": question,
        "observation": view::observation(&reply.observation),
    })))
}

/// One action on the episode in `token`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    /// Base64 of the bytes of the newest reply.
    token: String,
    action_type: String,
    argument: String,
}

async fn step(
    State(node): State<EnvNode>,
    action: Result<Json<Move>, JsonRejection>,
) -> Result<Json<Value>, Refusal> {
    let Move {
        token,
        action_type,
        argument,
    } = refusal::body(action)?;
    let token = BASE64_STANDARD.decode(token).map_err(|error| {
        Refusal::new(
            StatusCode::BAD_REQUEST,
            format!("token is not base64 ({error}); pass on the token of a reply unchanged"),
        )
    })?;
    let action = Action {
        action_type,
        argument,
    };
    let reply = node.step(token, &action).await?;
    Ok(Json(json!({
        "token": BASE64_STANDARD.encode(reply.token),
        "observation": view::observation(&reply.observation),
        "reward_components": reply.reward_components,
        "correct": reply.correct,
    })))
}
