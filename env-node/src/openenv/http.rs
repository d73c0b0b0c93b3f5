//! OpenEnv over plain HTTP: reset, step and state, and the replies to what cannot be served.
//!
//! Invariant: no request leaves anything behind. A reset's reply carries the episode as a token under
//! `metadata.episode_token`; a step that names it, `{"action": .., "episode_token": ..}`, continues that episode, one that
//! does not meets an environment that was never reset, as with OpenEnv's own server.

use axum::{
    Json,
    body::Bytes,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use env::{Action, EnvError, EpisodeSpec};
use serde_json::{Map, Value, json};

use super::{
    SharedFace, action::StepPayload, fault::Fault, fields::Fields, payload::Payload, python_json,
    reset::Keywords, session, tools,
};
use crate::node::EnvNode;

const MAX_REQUEST_ID_CHARS: usize = 255;
const UNEXPECTED: &str = "Internal Server Error";

/// A request that is not served.
pub(crate) enum Refusal {
    /// 422: the body does not fit; FastAPI's list of faults.
    Faults(Vec<Value>),
    /// Any other status, with its detail.
    Detail(StatusCode, String),
    /// 500, in plain text, as the client's Python counterpart words it.
    Unexpected,
}

impl Refusal {
    /// The status and the value under `detail`.
    pub(crate) fn parts(self) -> (StatusCode, Value) {
        match self {
            Self::Faults(faults) => (StatusCode::UNPROCESSABLE_ENTITY, faults.into()),
            Self::Detail(status, detail) => (status, detail.into()),
            Self::Unexpected => (StatusCode::INTERNAL_SERVER_ERROR, UNEXPECTED.into()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        if matches!(self, Self::Unexpected) {
            return (StatusCode::INTERNAL_SERVER_ERROR, UNEXPECTED).into_response();
        }
        let (status, detail) = self.parts();
        (status, Json(json!({"detail": detail}))).into_response()
    }
}

impl From<Vec<Fault>> for Refusal {
    fn from(faults: Vec<Fault>) -> Self {
        Self::Faults(faults.iter().map(Fault::plain).collect())
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::from(vec![fault])
    }
}

impl From<EnvError> for Refusal {
    fn from(error: EnvError) -> Self {
        let status = match &error {
            EnvError::NotFound { .. } => StatusCode::NOT_FOUND,
            EnvError::Request { .. } | EnvError::Token(_) => StatusCode::BAD_REQUEST,
            EnvError::Overloaded { .. } | EnvError::WallClock { .. } | EnvError::Internal(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::Detail(status, error.to_string())
    }
}

pub(super) async fn not_found() -> Refusal {
    Refusal::Detail(StatusCode::NOT_FOUND, "Not Found".to_owned())
}

pub(super) async fn method_not_allowed() -> Refusal {
    let detail = "Method Not Allowed".to_owned();
    Refusal::Detail(StatusCode::METHOD_NOT_ALLOWED, detail)
}

pub(super) async fn health() -> Json<Value> {
    Json(json!({"status": "healthy"}))
}

/// The state of an environment that was never reset: over plain HTTP there is no other.
pub(super) async fn state() -> Json<Value> {
    Json(json!({"episode_id": null, "step_count": 0}))
}

/// The object in a request's body; `None` where the body is empty.
pub(super) fn object_in(body: &[u8]) -> Result<Option<Map<String, Value>>, Refusal> {
    if body.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(body).map_err(|_| {
        let detail = "There was an error parsing the body".to_owned();
        Refusal::Detail(StatusCode::BAD_REQUEST, detail)
    })?;
    match python_json::parse(text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(other) => {
            let message = "Input should be a valid dictionary or object to extract fields from";
            let fault = Fault::new("model_attributes_type", message, &other);
            Err(fault.at(["body"]).into())
        }
        Err(error) => {
            let fault = Fault::new("json_invalid", "JSON decode error", &json!({}))
                .because(json!({"error": error.message}));
            Err(fault.at([json!("body"), json!(error.position)]).into())
        }
    }
}

/// The same, where there must be one.
pub(super) fn required_object_in(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    object_in(body)?.ok_or_else(|| Fault::missing(&Value::Null).at(["body"]).into())
}

/// The reset that a request's body asks for.
pub(crate) fn reset_in(body: &[u8], node: &EnvNode) -> Result<EpisodeSpec, Refusal> {
    let body = object_in(body)?.unwrap_or_default();
    let mut fields = Fields::of(&body, &["body"]);
    let keywords = Keywords::read(&mut fields);
    fields.finish()?;
    Ok(keywords.request(node)?)
}

/// `POST /reset`.
pub(super) async fn reset(
    State(face): State<SharedFace>,
    body: Bytes,
) -> Result<Json<Payload>, Refusal> {
    let request = reset_in(&body, &face.node)?;
    let (token, mut payload) = session::reset(&face.node, request)?;
    payload.metadata.episode_token = Some(BASE64.encode(token));
    Ok(Json(payload))
}

/// `POST /step`.
pub(super) async fn step(
    State(face): State<SharedFace>,
    body: Bytes,
) -> Result<Json<Payload>, Refusal> {
    let (token, action) = read_step(&required_object_in(&body)?)?;
    let (token, mut payload) = session::step(&face.node, &token, &action).await?;
    payload.metadata.episode_token = Some(BASE64.encode(token));
    Ok(Json(payload))
}

/// The episode's token and the action of a step.
fn read_step(body: &Map<String, Value>) -> Result<(Vec<u8>, Action), Refusal> {
    let mut fields = Fields::of(body, &["body"]);
    let action = fields.required_object("action");
    fields.positive("timeout_s");
    fields.short_string("request_id", MAX_REQUEST_ID_CHARS);
    let token = fields.optional_string("episode_token");
    fields.finish()?;

    let action = read_action(action.expect("checked by finish: this is a bug"))?;
    let Some(token) = token else {
        tracing::debug!("a step over HTTP names no episode_token: there is no episode to step");
        return Err(Refusal::Unexpected);
    };
    let token = BASE64.decode(token).map_err(|error| {
        let detail = format!("episode_token is not base64 ({error}); pass it on unchanged");
        Refusal::Detail(StatusCode::BAD_REQUEST, detail)
    })?;
    Ok((token, action))
}

fn read_action(data: &Map<String, Value>) -> Result<Action, Refusal> {
    let refuse = |detail: String| Err(Refusal::Detail(StatusCode::BAD_REQUEST, detail));
    match StepPayload::read(data) {
        Ok(StepPayload::Act(action)) => Ok(action),
        Ok(StepPayload::CallTool { name, arguments }) => {
            tools::action(&name, &arguments).or_else(|fault| refuse(fault.to_string()))
        }
        Ok(StepPayload::ListTools) => {
            refuse("tools are listed by POST /mcp, method tools/list".to_owned())
        }
        Err(faults) => Err(Refusal::Faults(faults.iter().map(Fault::linked).collect())),
    }
}
