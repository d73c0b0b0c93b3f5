//! `/mcp`: the four tools over JSON-RPC 2.0, and sessions for clients that call over plain HTTP.
//!
//! Invariant: a response has a result or an error, never both. Over HTTP its status is always 200.
//! A call is a step of the session's episode, which a reset on the session's socket starts. This is
//! OpenEnv's subset of MCP: no `initialize`, no event streams.

use std::sync::Arc;

use axum::{Json, extract::State};
use env::Action;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Value, json};

use super::{
    fields::{Fields, Shallow},
    http::Body,
    json::{self, Unreadable},
    service::OpenEnvService,
    session::SessionError,
    session_registry::{AtCapacity, Closed, SessionGuard, SharedSession},
    socket::FrameResponse,
    tools,
    validation::{self, Integer, excerpt},
};
use crate::rejection::unread_body;

const PARSE_ERROR: i32 = -32_700;
const INVALID_REQUEST: i32 = -32_600;
const METHOD_NOT_FOUND: i32 = -32_601;
const INVALID_PARAMS: i32 = -32_602;
const INTERNAL_ERROR: i32 = -32_603;
const SERVER_ERROR: i32 = -32_000;

/// A JSON-RPC error.
struct RpcError {
    code: i32,
    message: String,
    data: Value,
}

impl RpcError {
    fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: Value::Null,
        }
    }

    /// Returns the response to the request of this id.
    fn response(self, id: &Value) -> Value {
        json!({
            "jsonrpc": "2.0",
            "id": id,
            "error": {"code": self.code, "message": self.message, "data": self.data},
        })
    }
}

impl From<AtCapacity> for RpcError {
    fn from(error: AtCapacity) -> Self {
        Self {
            data: error.data(),
            ..Self::new(SERVER_ERROR, error.to_string())
        }
    }
}

/// A JSON-RPC request, as far as a method uses it.
pub(super) struct RpcRequest {
    method: String,
    /// The session that the parameters name. An empty name counts as none.
    session_id: Option<String>,
    /// The action of a call of a tool, or why there is none.
    action: Result<Action, RpcError>,
    id: Value,
}

/// A JSON-RPC request as it is sent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RpcMessage<'a> {
    #[serde(rename = "jsonrpc", deserialize_with = "read_version")]
    _version: (),
    method: String,
    #[serde(default, borrow)]
    params: Fields<'a>,
    #[serde(default, deserialize_with = "read_id")]
    id: Value,
}

/// Reads the version, of which there is one.
fn read_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "2.0" => Ok(()),
        other => Err(D::Error::unknown_variant(other, &["2.0"])),
    }
}

/// Reads a string, an integer or `null`. A client matches responses to requests by the id, so it
/// must come back as it was sent.
fn read_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    match Shallow::deserialize(deserializer)?.0 {
        id @ (Value::Null | Value::String(_)) => Ok(id),
        Value::Number(id) if !id.is_f64() => Ok(id.into()),
        other => match Integer::try_from(Shallow(other)) {
            Ok(id) => Ok(id.0.into()),
            Err(_) => Err(D::Error::custom("give a string, an integer or null as id")),
        },
    }
}

/// `POST /mcp`.
pub(super) async fn over_http(
    State(service): State<Arc<OpenEnvService>>,
    body: Body,
) -> Json<Value> {
    let body = match body {
        Ok(body) => body,
        Err(unread) => {
            let error = RpcError::new(SERVER_ERROR, unread_body(&unread));
            return Json(error.response(&Value::Null));
        }
    };
    let text = std::str::from_utf8(&body).ok();
    let request = text.and_then(|text| json::read_object(text, |message| read(&message)).ok());
    Json(match request {
        Some(request) => respond(&service, None, request).await,
        None => RpcError::new(PARSE_ERROR, "Parse error").response(&Value::Null),
    })
}

/// Responds to one message on the socket `/mcp`.
pub(super) async fn over_socket(
    service: &OpenEnvService,
    guard: &SessionGuard,
    text: &str,
) -> FrameResponse {
    let response = match json::read_object(text, |message| read(&message)) {
        Ok(request) => respond(service, Some(guard), request).await,
        // OpenEnv's server fails on JSON that is not an object, and so ends the session.
        Err(Unreadable::NotAnObject) => {
            let error = RpcError::new(SERVER_ERROR, "give a JSON object");
            return FrameResponse::Last(error.response(&Value::Null).to_string());
        }
        Err(Unreadable::Syntax(error)) => {
            RpcError::new(PARSE_ERROR, format!("Parse error: {error}")).response(&Value::Null)
        }
    };
    FrameResponse::Text(response.to_string())
}

/// Returns the response that refuses a message.
pub(super) fn refused(text: &str, reason: &str) -> String {
    let request = json::read_object(text, |message| read(&message));
    let id = match request {
        Ok(Ok(request)) => request.id,
        _ => Value::Null,
    };
    let error = RpcError::new(SERVER_ERROR, reason);
    error.response(&id).to_string()
}

/// Returns the message to a socket that gets no session.
pub(super) fn at_capacity(error: AtCapacity) -> String {
    RpcError::from(error).response(&Value::Null).to_string()
}

/// Reads a request.
///
/// # Errors
/// The response that refuses it.
pub(super) fn read(message: &Fields<'_>) -> Result<RpcRequest, Value> {
    let message: RpcMessage<'_> = validation::read(message).map_err(|invalid| {
        let message = format!("Invalid request: {invalid}");
        RpcError::new(INVALID_REQUEST, message).response(&Value::Null)
    })?;
    Ok(RpcRequest {
        method: message.method,
        session_id: message
            .params
            .text("session_id")
            .filter(|id| !id.is_empty()),
        action: action(&message.params),
        id: message.id,
    })
}

/// Returns the action that the parameters of a call of a tool stand for.
fn action(params: &Fields<'_>) -> Result<Action, RpcError> {
    let name = params.text("name").filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| RpcError::new(INVALID_PARAMS, "Missing 'name' in params"))?;
    let arguments = match params.get("arguments") {
        Some(arguments) => serde_json::from_str::<Option<Fields<'_>>>(arguments.get()),
        None => Ok(None),
    };
    let arguments = arguments.map_err(|_| {
        RpcError::new(
            INVALID_PARAMS,
            "Invalid params - 'arguments' must be an object",
        )
    })?;
    tools::action(&name, &arguments.unwrap_or_default())
        .map_err(|error| RpcError::new(INVALID_PARAMS, error.to_string()))
}

/// Returns the response to a request. `own` is the session of the socket over which it came. Where
/// the request was refused while it was read, this is the refusal.
pub(super) async fn respond(
    service: &OpenEnvService,
    own: Option<&SessionGuard>,
    request: Result<RpcRequest, Value>,
) -> Value {
    let request = match request {
        Ok(request) => request,
        Err(response) => return response,
    };
    let id = request.id.clone();
    match call(service, own, request).await {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(error) => error.response(&id),
    }
}

async fn call(
    service: &OpenEnvService,
    own: Option<&SessionGuard>,
    request: RpcRequest,
) -> Result<Value, RpcError> {
    match request.method.as_str() {
        "openenv/session/create" => {
            let id = match own {
                Some(guard) => guard.id.clone(),
                None => service.sessions.create(&service.node)?,
            };
            Ok(json!({"session_id": id}))
        }
        "openenv/session/close" => close_session(service, own, request.session_id.as_deref()),
        "tools/list" => {
            find_session(service, own, request.session_id.as_deref())?;
            Ok(json!({"tools": tools::list("inputSchema")}))
        }
        "tools/call" => {
            let session = find_session(service, own, request.session_id.as_deref())?;
            call_tool(session, &request.action?).await
        }
        method => Err(RpcError::new(
            METHOD_NOT_FOUND,
            format!("Method not found: {}", excerpt(method)),
        )),
    }
}

fn close_session(
    service: &OpenEnvService,
    own: Option<&SessionGuard>,
    session_id: Option<&str>,
) -> Result<Value, RpcError> {
    let id = session_id.ok_or_else(|| {
        RpcError::new(INVALID_PARAMS, "Invalid params - 'session_id' is required")
    })?;
    if own.is_some_and(|guard| guard.id == id) {
        return Err(RpcError::new(
            INVALID_REQUEST,
            "Cannot close active WebSocket-managed session via MCP method",
        ));
    }
    match service.sessions.close(id) {
        Some(Closed::Now) => Ok(json!({"session_id": id, "closed": true})),
        Some(Closed::WithItsSocket) => {
            Ok(json!({"session_id": id, "closed": false, "closing": true}))
        }
        None => Err(unknown_session(id)),
    }
}

/// Returns the session that a call is about: the socket's own, the named one, or none.
fn find_session(
    service: &OpenEnvService,
    own: Option<&SessionGuard>,
    session_id: Option<&str>,
) -> Result<Option<SharedSession>, RpcError> {
    match (own, session_id) {
        (Some(guard), _) => Ok(Some(SharedSession::clone(&guard.session))),
        (None, Some(id)) => match service.sessions.get(id) {
            Some(session) => Ok(Some(session)),
            None => Err(unknown_session(id)),
        },
        (None, None) => Ok(None),
    }
}

fn unknown_session(id: &str) -> RpcError {
    let message = format!("Unknown session_id: {}", excerpt(id));
    RpcError::new(INVALID_PARAMS, message)
}

/// Applies the action that a call stands for. The result has MCP's fields, content and structured
/// content, and the text under `data`, which OpenEnv's clients unwrap.
async fn call_tool(session: Option<SharedSession>, action: &Action) -> Result<Value, RpcError> {
    let payload = match session {
        Some(session) => session.lock().await.step(action).await,
        None => Err(SessionError::NoEpisode),
    }
    .map_err(|error| RpcError::new(INTERNAL_ERROR, error.to_string()))?;
    let text = tools::text(&payload);
    Ok(json!({
        "content": [{"type": "text", "text": text}],
        "structuredContent": payload,
        "isError": !payload.observation.error.is_empty(),
        "data": text,
    }))
}
