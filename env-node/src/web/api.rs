//! The page's interface, under `/web/api/`: information, questions, Reset and Step as JSON.
//!
//! Invariant: there is no session; a token comes in and a token goes out. Reset and Step are those
//! of `sqlenv.v1.Env`, with their metrics. Errors have the statuses of OpenEnv's routes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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
use uuid::Uuid;

use super::view;
use crate::{node::EnvNode, rejection::Rejection};

const DEFAULT_PAGE_SIZE: usize = 50;
const MAX_PAGE_SIZE: usize = 500;
/// Words of a search that count. Each is looked for in every question.
const MAX_WORDS: usize = 16;

/// Serves the page's interface.
pub(super) fn router(node: &EnvNode) -> Router {
    let texts: SearchedTexts = node.environment().questions().map(searched_text).collect();
    let search: Router = Router::new()
        .route("/web/api/questions", get(questions))
        .with_state((node.clone(), texts));
    Router::new()
        .route("/web/api/info", get(info))
        .route("/web/api/schema", get(schema))
        .route("/web/api/reset", post(reset))
        .route("/web/api/step", post(step))
        .with_state(node.clone())
        .merge(search)
}

/// What a search looks through, of each question in the environment's order.
type SearchedTexts = Arc<[String]>;

/// Returns the text of a question in which a search finds words, in lower case.
fn searched_text(question: &Question) -> String {
    let Question {
        question_text,
        question_id,
        database_name,
        ..
    } = question;
    format!("{question_text}\n{question_id}\n{database_name}").to_lowercase()
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

/// Which questions the page lists. Empty fields do not restrict.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct QuestionFilter {
    /// Words that occur in the text, the id or the database's name, in any case.
    text: String,
    database: String,
    /// `a` matches `a/b` too.
    split: String,
    level: String,
    offset: usize,
    limit: Option<usize>,
}

impl QuestionFilter {
    /// Returns whether the fields besides the text select a question.
    fn selects(&self, question: &Question) -> bool {
        let is = |filter: &str, value: &str| filter.is_empty() || filter == value;
        let within = |part: &str| part.is_empty() || part.starts_with('/');
        is(&self.database, &question.database_name)
            && is(&self.level, &question.difficulty)
            && (self.split.is_empty()
                || question.split.strip_prefix(&self.split).is_some_and(within))
    }
}

async fn questions(
    State((node, texts)): State<(EnvNode, SearchedTexts)>,
    filter: Result<Query<QuestionFilter>, QueryRejection>,
) -> Result<Json<Value>, Rejection> {
    let Query(filter) = filter?;
    let words: Vec<String> = filter
        .text
        .split_whitespace()
        .take(MAX_WORDS)
        .map(str::to_lowercase)
        .collect();
    let size = filter.limit.unwrap_or(DEFAULT_PAGE_SIZE).min(MAX_PAGE_SIZE);
    let has_all = |text: &str| words.iter().all(|word| text.contains(word));
    let mut total = 0;
    let mut page = Vec::new();
    for (question, text) in node.environment().questions().zip(texts.iter()) {
        if !filter.selects(question) || !has_all(text) {
            continue;
        }
        if total >= filter.offset && page.len() < size {
            page.push(view::question(question));
        }
        total += 1;
    }
    Ok(Json(json!({"total": total, "questions": page})))
}

/// The question whose schema is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SchemaQuery {
    question_id: String,
}

/// Returns the columns of all tables of a question's database, as DESCRIBE lists them. The text of
/// SAMPLE has no column names, so the page takes its headings from here. An unknown question, as
/// recordings of other data have, gives an empty text.
async fn schema(
    State(node): State<EnvNode>,
    query: Result<Query<SchemaQuery>, QueryRejection>,
) -> Result<Json<Value>, Rejection> {
    let Query(SchemaQuery { question_id }) = query?;
    let found = node.environment().question(&question_id);
    let tables = found.map_or(&[][..], |(_, schema)| &schema.tables);
    let texts: Vec<&str> = tables.iter().map(|it| it.columns_text.as_str()).collect();
    Ok(Json(json!({"schema_info": texts.join("\n")})))
}

/// The question and the settings of an episode.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetBody {
    question_id: String,
    #[serde(default)]
    reward_profile: String,
    #[serde(default)]
    step_budget: u32,
}

async fn reset(
    State(node): State<EnvNode>,
    body: Result<Json<ResetBody>, JsonRejection>,
) -> Result<Json<Value>, Rejection> {
    let Json(body) = body?;
    // An empty id would draw a question.
    if body.question_id.is_empty() {
        return Err(Rejection::new(
            StatusCode::BAD_REQUEST,
            "question_id is empty; give one that /web/api/questions names",
        ));
    }
    let question = node
        .environment()
        .question(&body.question_id)
        .map(|(question, _)| view::question(question));
    let reply = node.reset(EpisodeSpec {
        question_id: body.question_id,
        reward_profile: body.reward_profile,
        step_budget: body.step_budget,
        // Two players of one question have different tokens, by which retries are recognized.
        episode_id: Uuid::new_v4().to_string(),
        ..EpisodeSpec::default()
    })?;
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
struct StepBody {
    /// Base64 of the bytes of the newest reply.
    token: String,
    action_type: String,
    argument: String,
}

async fn step(
    State(node): State<EnvNode>,
    body: Result<Json<StepBody>, JsonRejection>,
) -> Result<Json<Value>, Rejection> {
    let Json(StepBody {
        token,
        action_type,
        argument,
    }) = body?;
    let token = BASE64_STANDARD.decode(token).map_err(|error| {
        Rejection::new(
            StatusCode::BAD_REQUEST,
            &format!("token is not base64 ({error}); pass on the token of a reply unchanged"),
        )
    })?;
    let action = Action {
        action_type,
        argument,
    };
    let reply = node.step(token, &action).await?;
    let is_shown = reply.observation.done && node.settings().web.gold_answers;
    let found = node.environment().question(&reply.question_id);
    let gold = found.filter(|_| is_shown);
    Ok(Json(json!({
        "token": BASE64_STANDARD.encode(reply.token),
        "observation": view::observation(&reply.observation),
        "reward_components": reply.reward_components,
        "correct": reply.correct,
        "gold": gold.map(|(question, _)| view::gold(question)),
    })))
}
