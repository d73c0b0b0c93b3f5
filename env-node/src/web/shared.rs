//! OpenEnv's web routes: one session of `openenv` that all visitors share.
//!
//! Invariant: steps happen one after another; memory is bounded, since the oldest entries of the log go first. Bodies and
//! log have the shape that OpenEnv's web interface gives them; a step before the first reset is a conflict.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{State, rejection::JsonRejection, ws::Utf8Bytes},
    http::StatusCode,
    routing::{get, post},
};
use env::{Action, truncated};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, Semaphore, watch};

use super::{
    action_log::{ActionLog, timestamp},
    refusal::{self, Refusal},
    watchers,
};
use crate::{
    clock::now_unix_seconds,
    node::EnvNode,
    openenv::{self, Session, SessionError},
};

const MAX_WATCHERS: usize = 64;
/// Bytes of an argument that the log shows: as many as a statement may have by default.
const LOGGED_ARGUMENT_BYTES: usize = 16 << 10;
/// Bytes of an action's name that the log shows.
const LOGGED_NAME_BYTES: usize = 64;

/// The environment that visitors share.
pub(super) struct Shared {
    node: EnvNode,
    episode: Mutex<Episode>,
    /// What watchers are sent: the newest state.
    pub(super) updates: watch::Sender<Utf8Bytes>,
    /// Places for watchers.
    pub(super) seats: Arc<Semaphore>,
}

struct Episode {
    session: Session,
    observation: Value,
    log: ActionLog,
}

/// OpenEnv's routes beside the page.
pub(super) fn router(node: &EnvNode) -> Router {
    let episode = Episode {
        session: Session::new(node.clone()),
        observation: Value::Null,
        log: ActionLog::default(),
    };
    let shared = Shared {
        node: node.clone(),
        updates: watch::Sender::new(episode.update()),
        episode: Mutex::new(episode),
        seats: Arc::new(Semaphore::new(MAX_WATCHERS)),
    };
    Router::new()
        .route("/web/metadata", get(async || Json(openenv::metadata())))
        .route("/web/reset", post(reset))
        .route("/web/step", post(step))
        .route("/web/state", get(state))
        .route("/ws/ui", get(watchers::watch))
        .with_state(Arc::new(shared))
}

async fn reset(State(shared): State<Arc<Shared>>, body: Bytes) -> Result<Json<Value>, Refusal> {
    // OpenEnv lets this body be absent or null.
    let body = match body.trim_ascii() {
        b"null" => &[],
        body => body,
    };
    let request = openenv::reset_in(body, &shared.node)?;
    let mut episode = shared.episode.lock().await;
    let reply = json!(episode.session.reset(request)?);
    episode.observation = reply["observation"].clone();
    episode.log = ActionLog::default();
    shared.updates.send_replace(episode.update());
    Ok(Json(reply))
}

async fn step(
    State(shared): State<Arc<Shared>>,
    body: Result<Json<Map<String, Value>>, JsonRejection>,
) -> Result<Json<Value>, Refusal> {
    let action = action(&refusal::body(body)?)?;
    let mut episode = shared.episode.lock().await;
    let reply = json!(episode.session.step(&action).await?);
    episode.observation = reply["observation"].clone();
    episode.log.push(&json!({
        "timestamp": timestamp(now_unix_seconds()),
        "action": {
            "action_type": truncated(&action.action_type, LOGGED_NAME_BYTES),
            "argument": truncated(&action.argument, LOGGED_ARGUMENT_BYTES),
        },
        "observation": reply["observation"],
        "reward": reply["reward"],
        "done": reply["done"],
        "step_count": reply["observation"]["step_count"],
    }));
    shared.updates.send_replace(episode.update());
    Ok(Json(reply))
}

async fn state(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, Refusal> {
    let episode = shared.episode.lock().await;
    match episode.session.state() {
        (Some(id), count) => Ok(Json(json!({"episode_id": id, "step_count": count}))),
        (None, _) => Err(not_reset()),
    }
}

impl Episode {
    /// What a watcher is sent.
    fn update(&self) -> Utf8Bytes {
        let (id, step_count) = self.session.state();
        let (id, observation, log) = (json!(id), &self.observation, self.log.json());
        let is_reset = self.log.is_empty();
        format!(
            r#"{{"type":"state_update","episode_state":{{"episode_id":{id},"step_count":{step_count},"current_observation":{observation},"action_logs":{log},"is_reset":{is_reset}}}}}"#
        )
        .into()
    }
}

impl From<SessionError> for Refusal {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::NoEpisode => not_reset(),
            SessionError::Env(error) => error.into(),
        }
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
