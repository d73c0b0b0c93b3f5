//! OpenEnv's web routes: one environment that all visitors share.
//!
//! Invariant: one step runs at a time, the state can be read meanwhile, and the log is bounded.
//! Bodies and log have the form of OpenEnv's web interface. A step before the first reset is a
//! conflict (409).

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{
        State,
        rejection::{BytesRejection, JsonRejection},
        ws::Utf8Bytes,
    },
    http::StatusCode,
    routing::{get, post},
};
use env::{Action, truncated};
use proto::TOOLS;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore, watch};

use super::{
    action_log::{ActionLog, timestamp},
    watchers,
};
use crate::{
    clock::now_unix_seconds,
    node::EnvNode,
    openenv::{self, EpisodeSession, SessionError, Shallow, Sockets},
    rejection::Rejection,
    serve::call_limits::CallLimits,
};

const MAX_WATCHERS: usize = 64;
/// Bytes of an argument in the log: as many as a statement may have by default.
const LOGGED_ARGUMENT_BYTES: usize = 16 << 10;
/// Bytes of an action's type in the log.
const LOGGED_TYPE_BYTES: usize = 64;

/// The environment that all visitors share.
pub(super) struct SharedEnvironment {
    pub(super) node: EnvNode,
    /// Locked while a step runs.
    episode: Mutex<SharedEpisode>,
    /// The newest state.
    pub(super) updates: watch::Sender<Update>,
    /// One permit for each watcher.
    pub(super) watcher_permits: Arc<Semaphore>,
    pub(super) sockets: Sockets,
    /// The budgets for what watchers send and for what they have not read.
    pub(super) limits: CallLimits,
}

/// A state of the episode.
pub(super) struct Update {
    episode_id: Option<String>,
    step_count: u32,
    /// The state as watchers get it.
    pub(super) message: Utf8Bytes,
}

struct SharedEpisode {
    session: EpisodeSession,
    observation: Value,
    log: ActionLog,
}

/// Serves OpenEnv's web routes.
pub(super) fn router(node: &EnvNode, sockets: Sockets, limits: CallLimits) -> Router {
    let episode = SharedEpisode {
        session: EpisodeSession::new(node.clone()),
        observation: Value::Null,
        log: ActionLog::default(),
    };
    let environment = SharedEnvironment {
        node: node.clone(),
        updates: watch::Sender::new(episode.update()),
        episode: Mutex::new(episode),
        watcher_permits: Arc::new(Semaphore::new(MAX_WATCHERS)),
        sockets,
        limits,
    };
    Router::new()
        .route("/web/metadata", get(async || Json(openenv::metadata())))
        .route("/web/reset", post(reset))
        .route("/web/step", post(step))
        .route("/web/state", get(state))
        .route("/ws/ui", get(watchers::watch))
        .with_state(Arc::new(environment))
}

async fn reset(
    State(environment): State<Arc<SharedEnvironment>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, Rejection> {
    let body = body?;
    // OpenEnv lets this body be absent or null.
    let body = match body.trim_ascii() {
        b"null" => &[],
        body => body,
    };
    let spec = openenv::read_reset(body, &environment.node)?;
    let mut episode = environment.episode.lock().await;
    let reply = json!(episode.session.reset(spec)?);
    episode.observation = reply["observation"].clone();
    episode.log = ActionLog::default();
    environment.updates.send_replace(episode.update());
    Ok(Json(reply))
}

async fn step(
    State(environment): State<Arc<SharedEnvironment>>,
    body: Result<Json<StepBody>, JsonRejection>,
) -> Result<Json<Value>, Rejection> {
    let action = read_action(body?.0)?;
    let mut episode = environment.episode.lock().await;
    let reply = json!(episode.session.step(&action).await?);
    episode.observation = reply["observation"].clone();
    episode.log.push(&json!({
        "timestamp": timestamp(now_unix_seconds()),
        "action": {
            "action_type": truncated(&action.action_type, LOGGED_TYPE_BYTES),
            "argument": truncated(&action.argument, LOGGED_ARGUMENT_BYTES),
        },
        "observation": reply["observation"],
        "reward": reply["reward"],
        "done": reply["done"],
        "step_count": reply["observation"]["step_count"],
    }));
    environment.updates.send_replace(episode.update());
    Ok(Json(reply))
}

async fn state(
    State(environment): State<Arc<SharedEnvironment>>,
) -> Result<Json<Value>, Rejection> {
    let newest = environment.updates.borrow();
    match &newest.episode_id {
        Some(id) => Ok(Json(
            json!({"episode_id": id, "step_count": newest.step_count}),
        )),
        None => Err(SessionError::NoEpisode.into()),
    }
}

impl SharedEpisode {
    /// Returns the state. The log is kept as JSON text, so it is not serialized again.
    fn update(&self) -> Update {
        let (episode_id, step_count) = self.session.state();
        let (id, observation, log) = (json!(episode_id), &self.observation, self.log.json());
        let is_reset = self.log.is_empty();
        let message = format!(
            r#"{{"type":"state_update","episode_state":{{"episode_id":{id},"step_count":{step_count},"current_observation":{observation},"action_logs":{log},"is_reset":{is_reset}}}}}"#
        );
        Update {
            episode_id: episode_id.map(str::to_owned),
            step_count,
            message: message.into(),
        }
    }
}

impl From<SessionError> for Rejection {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::NoEpisode => Self::new(
                StatusCode::CONFLICT,
                "the environment was not reset; POST /web/reset first",
            ),
            SessionError::Env(error) => error.into(),
        }
    }
}

/// The body of a step, as far as it is used: a message, or else an action.
#[derive(Deserialize)]
struct StepBody {
    #[serde(default)]
    message: Shallow,
    action: Option<ActionBody>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ActionBody {
    action_type: Shallow,
    argument: Shallow,
}

/// Reads `{"action": {"action_type", "argument"}}`, or `{"message": "TYPE: argument"}`.
fn read_action(body: StepBody) -> Result<Action, Rejection> {
    if let Shallow(Value::String(message)) = body.message {
        return Ok(parse_message(&message));
    }
    let text = |field: Shallow, name: &str| match field {
        Shallow(Value::String(text)) => Ok(text),
        _ => Err(Rejection::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            &format!(
                "action.{name} is missing or not a string; give \
                 {{\"action\": {{\"action_type\": …, \"argument\": …}}}}"
            ),
        )),
    };
    let action = body.action.unwrap_or_default();
    Ok(Action {
        action_type: text(action.action_type, "action_type")?,
        argument: text(action.argument, "argument")?,
    })
}

/// Parses `TYPE: argument`. Any other text is SQL, as in `SQLEnv`'s text format.
fn parse_message(message: &str) -> Action {
    let known = message.split_once(':').filter(|(name, _)| {
        TOOLS
            .iter()
            .any(|tool| tool.action_type.eq_ignore_ascii_case(name.trim()))
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
            let action = parse_message(message);
            assert_eq!(
                (action.action_type.as_str(), action.argument.as_str()),
                (action_type, argument)
            );
        }
    }
}
