//! OpenEnv's web routes: one environment that all visitors share.
//!
//! Invariant: steps happen one after another; memory is bounded, since the oldest entries of the log go first. Bodies and
//! log have the shape that OpenEnv's web interface gives them; a step before the first reset is a conflict.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{State, rejection::JsonRejection},
    http::StatusCode,
    routing::{get, post},
};
use proto::v1::{Action, ResetRequest, StepRequest, env_server::Env};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, Semaphore, watch};
use tonic::Request;
use uuid::Uuid;

use super::{
    action_log::{ActionLog, timestamp},
    refusal::{self, Refusal},
    view, watchers,
};
use crate::{grpc::now_unix_seconds, node::EnvNode};

const MAX_WATCHERS: usize = 64;

/// The environment that visitors share.
pub(super) struct Shared {
    node: EnvNode,
    episode: Mutex<Option<Episode>>,
    /// Tells watchers that the episode moved on.
    pub(super) moved: watch::Sender<()>,
    /// Places for watchers.
    pub(super) seats: Arc<Semaphore>,
}

struct Episode {
    token: Vec<u8>,
    episode_id: String,
    step_count: u32,
    observation: Value,
    log: ActionLog,
}

/// OpenEnv's routes beside the page.
pub(super) fn router(node: &EnvNode) -> Router {
    let shared = Arc::new(Shared {
        node: node.clone(),
        episode: Mutex::new(None),
        moved: watch::Sender::new(()),
        seats: Arc::new(Semaphore::new(MAX_WATCHERS)),
    });
    Router::new()
        .route("/web/metadata", get(metadata))
        .route("/web/reset", post(reset))
        .route("/web/step", post(step))
        .route("/web/state", get(state))
        .route("/ws/ui", get(watchers::watch))
        .with_state(shared)
}

async fn metadata() -> Json<Value> {
    Json(json!({
        "name": "sql_env",
        "description": "Answer questions about SQL databases by exploring them: DESCRIBE, SAMPLE, QUERY, ANSWER.",
        "readme_content": null,
        "version": env!("CARGO_PKG_VERSION"),
        "author": null,
        "documentation_url": null,
    }))
}

/// What a reset may name; anything else is ignored, as OpenEnv does.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Start {
    question_id: String,
    split: String,
    seed: Option<u64>,
    episode_id: Option<String>,
    reward_profile: String,
    step_budget: u32,
}

async fn reset(
    State(shared): State<Arc<Shared>>,
    start: Result<Option<Json<Option<Start>>>, JsonRejection>,
) -> Result<Json<Value>, Refusal> {
    let start = start?.and_then(|Json(start)| start).unwrap_or_default();
    let seed = start.seed.unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0);
    let request = ResetRequest {
        question_id: start.question_id,
        split: start.split,
        seed,
        episode_id: start
            .episode_id
            .unwrap_or_else(|| Uuid::new_v4().to_string()),
        reward_profile: start.reward_profile,
        step_budget: start.step_budget,
    };
    let mut episode = shared.episode.lock().await;
    let reply = Env::reset(&shared.node, Request::new(request))
        .await?
        .into_inner();
    let observation = view::openenv_reply(&reply.observation.unwrap_or_default());
    *episode = Some(Episode {
        token: reply.token,
        episode_id: reply.episode_id,
        step_count: 0,
        observation: observation["observation"].clone(),
        log: ActionLog::default(),
    });
    shared.moved.send_replace(());
    Ok(Json(observation))
}

async fn step(
    State(shared): State<Arc<Shared>>,
    body: Result<Json<Map<String, Value>>, JsonRejection>,
) -> Result<Json<Value>, Refusal> {
    let action = action(&refusal::body(body)?)?;
    let mut episode = shared.episode.lock().await;
    let episode = episode.as_mut().ok_or_else(not_reset)?;
    let request = StepRequest {
        token: episode.token.clone(),
        action: Some(action.clone()),
    };
    let reply = Env::step(&shared.node, Request::new(request))
        .await?
        .into_inner();
    let observation = reply.observation.unwrap_or_default();
    episode.token = reply.token;
    episode.step_count = observation.step_count;
    let reply = view::openenv_reply(&observation);
    episode.observation = reply["observation"].clone();
    episode.log.push(json!({
        "timestamp": timestamp(now_unix_seconds()),
        "action": {"action_type": action.action_type, "argument": action.argument},
        "observation": reply["observation"],
        "reward": reply["reward"],
        "done": reply["done"],
        "step_count": episode.step_count,
    }));
    shared.moved.send_replace(());
    Ok(Json(reply))
}

async fn state(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, Refusal> {
    let episode = shared.episode.lock().await;
    let episode = episode.as_ref().ok_or_else(not_reset)?;
    Ok(Json(json!({
        "episode_id": episode.episode_id,
        "step_count": episode.step_count,
    })))
}

impl Shared {
    /// What a watcher is sent.
    pub(super) async fn update(&self) -> String {
        let episode = self.episode.lock().await;
        let state = match &*episode {
            None => json!({
                "episode_id": null, "step_count": 0, "current_observation": null, "action_logs": [], "is_reset": true,
            }),
            Some(episode) => json!({
                "episode_id": episode.episode_id,
                "step_count": episode.step_count,
                "current_observation": episode.observation,
                "action_logs": episode.log.entries().collect::<Vec<_>>(),
                "is_reset": episode.log.entries().next().is_none(),
            }),
        };
        json!({"type": "state_update", "episode_state": state}).to_string()
    }
}

fn not_reset() -> Refusal {
    Refusal::new(
        StatusCode::CONFLICT,
        "the environment was not reset; POST /web/reset first",
    )
}

/// `{"action": {"action_type", "argument"}}`, or `{"message": "TYPE: argument"}`.
fn action(body: &Map<String, Value>) -> Result<Action, Refusal> {
    if let Some(message) = body.get("message").and_then(Value::as_str) {
        return Ok(spoken(message));
    }
    let field = |name: &str| {
        let text = body.get("action").and_then(|action| action.get(name));
        text.and_then(Value::as_str)
            .map(str::to_owned)
            .ok_or_else(|| {
                Refusal::new(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    format!("action.{name} is missing or no string; give {{\"action\": {{\"action_type\": …, \"argument\": …}}}}"),
                )
            })
    };
    Ok(Action {
        action_type: field("action_type")?,
        argument: field("argument")?,
    })
}

/// `TYPE: argument`; any other text is SQL, as in `SQLEnv`'s text format.
fn spoken(message: &str) -> Action {
    let known = message.split_once(':').filter(|(name, _)| {
        ["DESCRIBE", "SAMPLE", "QUERY", "ANSWER"]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name.trim()))
    });
    let (action_type, argument) = known.unwrap_or(("QUERY", message));
    Action {
        action_type: action_type.trim().to_ascii_uppercase(),
        argument: argument.trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_actions_or_sql() {
        for (message, action_type, argument) in [
            ("describe: cars", "DESCRIBE", "cars"),
            (" ANSWER : 4:30 ", "ANSWER", "4:30"),
            ("SELECT ':'", "QUERY", "SELECT ':'"),
            ("", "QUERY", ""),
        ] {
            let action = spoken(message);
            assert_eq!(
                (action.action_type.as_str(), action.argument.as_str()),
                (action_type, argument)
            );
        }
    }
}
