//! OpenEnv over plain HTTP: reset, step and state.
//!
//! Invariant: the server keeps nothing between requests. The reply to a reset carries the episode
//! as a token under `metadata.episode_token`. A step that names it, `{"action": ..,
//! "episode_token": ..}`, continues that episode. A step without a token fails with 500, as
//! OpenEnv's own server fails when its environment was never reset.

use std::sync::Arc;

use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::StatusCode,
};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use env::{Action, EnvError, EpisodeSpec};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    action::StepPayload,
    fields::Fields,
    json::{self, Unreadable},
    payload::Payload,
    reset::ResetArguments,
    service::OpenEnvService,
    session,
    validation::{self, Id, Invalid, Positive},
};
use crate::{node::EnvNode, rejection::Rejection};

/// The body of a request, or why it was not read.
pub(super) type Body = Result<Bytes, BytesRejection>;

pub(super) async fn not_found() -> Rejection {
    Rejection::new(StatusCode::NOT_FOUND, "Not Found")
}

pub(super) async fn method_not_allowed() -> Rejection {
    Rejection::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
}

pub(super) async fn health() -> Json<Value> {
    Json(json!({"status": "healthy"}))
}

/// Returns the state of an environment that was never reset: over plain HTTP there is no other.
pub(super) async fn state() -> Json<Value> {
    Json(json!({"episode_id": null, "step_count": 0}))
}

/// Reads a body that must be a JSON object.
///
/// # Errors
/// 400 if the body is not UTF-8; 422 if it is not a JSON object or a field does not fit.
pub(super) fn read_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, Rejection> {
    read_object(body, |fields| validation::read(&fields))
}

/// Reads a body as [`read_body`] does, by `read`.
fn read_object<T>(
    body: &[u8],
    read: impl FnOnce(Fields<'_>) -> Result<T, Invalid>,
) -> Result<T, Rejection> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let detail = format!("the body is not UTF-8: {error}");
        Rejection::new(StatusCode::BAD_REQUEST, &detail)
    })?;
    match json::read_object(text, read) {
        Ok(outcome) => outcome,
        Err(Unreadable::NotAnObject) => Err(Invalid::value("give a JSON object")),
        Err(Unreadable::Syntax(error)) => Err(Invalid::syntax(&error)),
    }
    .map_err(|invalid| reject_invalid(&invalid.within("body")))
}

fn reject_invalid(invalid: &Invalid) -> Rejection {
    Rejection::with_detail(StatusCode::UNPROCESSABLE_ENTITY, invalid.to_list())
}

/// Reads the reset that a body asks for. An empty body asks for any question.
pub(crate) fn read_reset(body: &[u8], node: &EnvNode) -> Result<EpisodeSpec, Rejection> {
    let arguments: ResetArguments = match body {
        [] => ResetArguments::default(),
        body => read_body(body)?,
    };
    Ok(arguments.into_spec(node)?)
}

/// `POST /reset`.
pub(super) async fn reset(
    State(service): State<Arc<OpenEnvService>>,
    body: Body,
) -> Result<Json<Payload>, Rejection> {
    let spec = read_reset(&body?, &service.node)?;
    reply(session::reset(&service.node, spec))
}

/// `POST /step`.
pub(super) async fn step(
    State(service): State<Arc<OpenEnvService>>,
    body: Body,
) -> Result<Json<Payload>, Rejection> {
    let (token, action) = read_step(&body?)?;
    reply(session::step(&service.node, &token, &action).await)
}

/// Puts the token of the episode into the payload.
fn reply(outcome: Result<(Vec<u8>, Payload), EnvError>) -> Result<Json<Payload>, Rejection> {
    let (token, mut payload) = outcome?;
    payload.metadata.episode_token = Some(BASE64.encode(token));
    Ok(Json(payload))
}

#[derive(Deserialize)]
struct StepBody<'a> {
    #[serde(borrow)]
    action: Fields<'a>,
    episode_token: Option<String>,
    // OpenEnv's clients may send these two. They change nothing here.
    #[serde(rename = "timeout_s")]
    _timeout: Option<Positive>,
    #[serde(rename = "request_id")]
    _request_id: Option<Id>,
}

/// Reads the episode's token and the action of a step.
fn read_step(body: &[u8]) -> Result<(Vec<u8>, Action), Rejection> {
    let reject = |detail: &str| Rejection::new(StatusCode::BAD_REQUEST, detail);
    let (payload, token) = read_object(body, |fields| {
        let body: StepBody<'_> = validation::read(&fields)?;
        let payload = StepPayload::read(&body.action);
        let payload = payload.map_err(|invalid| invalid.within("action"))?;
        Ok((payload, body.episode_token))
    })?;
    let action = match payload {
        StepPayload::Act(action) => action,
        StepPayload::CallTool(call) => call.action.map_err(|error| reject(&error.to_string()))?,
        StepPayload::ListTools => {
            return Err(reject("POST /mcp, method tools/list, lists the tools"));
        }
    };
    let Some(token) = token else {
        return Err(Rejection::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the step names no episode; give the metadata.episode_token of the newest reply as \
             episode_token",
        ));
    };
    let token = BASE64.decode(token).map_err(|error| {
        reject(&format!(
            "episode_token is not base64 ({error}); pass it on unchanged"
        ))
    })?;
    Ok((token, action))
}
