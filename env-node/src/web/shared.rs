//! OpenEnv's web routes: one environment that all visitors share.
//!
//! Invariant: steps happen one after another; memory is bounded, since the oldest entries of the log go first. Bodies and
//! log have the shape that OpenEnv's web interface gives them; a step before the first reset is a conflict.

use std::{collections::VecDeque, sync::Arc};

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
    refusal::{self, Refusal},
    view, watchers,
};
use crate::{grpc::now_unix_seconds, node::EnvNode};

const LOG_ENTRIES: usize = 1_000;
/// Far above any honest log; a bound on memory and on what each watcher is sent.
const LOG_BYTES: usize = 4 << 20;
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
    log: Log,
}

#[derive(Default)]
struct Log {
    /// Entries with their length as JSON.
    entries: VecDeque<(Value, usize)>,
    bytes: usize,
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
    let observation = view::openenv_reply(reply.observation.unwrap_or_default());
    *episode = Some(Episode {
        token: reply.token,
        episode_id: reply.episode_id,
        step_count: 0,
        observation: observation["observation"].clone(),
        log: Log::default(),
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
    let reply = view::openenv_reply(observation);
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
                "action_logs": episode.log.entries.iter().map(|(entry, _)| entry).collect::<Vec<_>>(),
                "is_reset": episode.log.entries.is_empty(),
            }),
        };
        json!({"type": "state_update", "episode_state": state}).to_string()
    }
}

impl Log {
    fn push(&mut self, entry: Value) {
        let bytes = entry.to_string().len();
        self.entries.push_back((entry, bytes));
        self.bytes += bytes;
        while self.entries.len() > LOG_ENTRIES || (self.bytes > LOG_BYTES && self.entries.len() > 1)
        {
            let oldest = self.entries.pop_front().map_or(0, |(_, bytes)| bytes);
            self.bytes -= oldest;
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

/// ISO 8601 in UTC; the date is the civil one of the proleptic Gregorian calendar.
fn timestamp(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Years are counted from March, so that the leap day is a year's last; 719,468 days lie between 0000-03-01 and 1970.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month < 3);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_civil_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00+00:00"),
            (951_782_399, "2000-02-28T23:59:59+00:00"),
            (951_782_400, "2000-02-29T00:00:00+00:00"),
            (1_735_689_599, "2024-12-31T23:59:59+00:00"),
            (4_107_542_400, "2100-03-01T00:00:00+00:00"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }

    #[test]
    fn the_log_forgets_the_oldest_by_number_and_by_bytes() {
        let mut log = Log::default();
        (0..LOG_ENTRIES + 3).for_each(|number| log.push(json!(number)));
        assert_eq!(log.entries.len(), LOG_ENTRIES);
        assert_eq!(log.entries[0].0, json!(3));

        (0..9).for_each(|_| log.push(json!("x".repeat(1 << 20))));
        assert_eq!(log.entries.len(), 3);
        let kept: usize = log.entries.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(kept, log.bytes);
    }

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
