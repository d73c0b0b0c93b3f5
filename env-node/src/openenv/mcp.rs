//! `/mcp`: the four tools over JSON-RPC 2.0, and sessions for clients that call over plain HTTP.
//!
//! Invariant: a response has a result or an error, never both. Over HTTP the status is always 200.
//! A call is a step of the session's episode, which a reset on the session's socket starts. This is
//! OpenEnv's subset of MCP: no `initialize`, no event streams.

use std::sync::Arc;

use axum::{Json, body::Bytes, extract::State};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value, json};

use super::{
    json,
    service::{FrameReply, OpenEnvService},
    session::SessionError,
    session_registry::{AtCapacity, Closed, SessionGuard, SharedSession},
    tools,
    validation::{self, Integer, excerpt},
};

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

/// A JSON-RPC request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RpcRequest {
    #[serde(rename = "jsonrpc")]
    _version: Version,
    method: String,
    #[serde(default)]
    params: Map<String, Value>,
    #[serde(default, deserialize_with = "read_id")]
    id: Value,
}

#[derive(Deserialize)]
enum Version {
    #[serde(rename = "2.0")]
    Two,
}

/// Reads a string, an integer or `null`. A client matches responses to requests by the id, so it
/// must come back as it was sent.
fn read_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    match Value::deserialize(deserializer)? {
        id @ (Value::Null | Value::String(_)) => Ok(id),
        Value::Number(id) if !id.is_f64() => Ok(id.into()),
        other => match Integer::try_from(other) {
            Ok(id) => Ok(id.0.into()),
            Err(_) => Err(D::Error::custom("give a string, an integer or null as id")),
        },
    }
}

/// `POST /mcp`.
pub(super) async fn over_http(
    State(service): State<Arc<OpenEnvService>>,
    body: Bytes,
) -> Json<Value> {
    let message = std::str::from_utf8(&body).ok().map(json::parse);
    Json(match message {
        Some(Ok(Value::Object(message))) => answer(&service, None, &message).await,
        _ => RpcError::new(PARSE_ERROR, "Parse error").response(&Value::Null),
    })
}

/// Answers one message on the socket `/mcp`.
pub(super) async fn over_socket(
    service: &OpenEnvService,
    guard: &SessionGuard,
    text: &str,
) -> FrameReply {
    let response = match json::parse(text) {
        Ok(Value::Object(message)) => answer(service, Some(guard), &message).await,
        // OpenEnv's server fails on JSON that is not an object, and so ends the session.
        Ok(_) => {
            let error = RpcError::new(SERVER_ERROR, "give a JSON object");
            return FrameReply::Last(error.response(&Value::Null).to_string());
        }
        Err(error) => {
            RpcError::new(PARSE_ERROR, format!("Parse error: {error}")).response(&Value::Null)
        }
    };
    FrameReply::Text(response.to_string())
}

/// Returns the message to a socket that gets no session.
pub(super) fn at_capacity(error: AtCapacity) -> String {
    RpcError::from(error).response(&Value::Null).to_string()
}

/// Answers one request. `own` is the session of the socket over which it came.
pub(super) async fn answer(
    service: &OpenEnvService,
    own: Option<&SessionGuard>,
    message: &Map<String, Value>,
) -> Value {
    let request: RpcRequest = match validation::read(message) {
        Ok(request) => request,
        Err(invalid) => {
            let message = format!("Invalid request: {invalid}");
            return RpcError::new(INVALID_REQUEST, message).response(&Value::Null);
        }
    };
    match call(service, own, &request).await {
        Ok(result) => json!({"jsonrpc": "2.0", "id": request.id, "result": result}),
        Err(error) => error.response(&request.id),
    }
}

async fn call(
    service: &OpenEnvService,
    own: Option<&SessionGuard>,
    request: &RpcRequest,
) -> Result<Value, RpcError> {
    match request.method.as_str() {
        "openenv/session/create" => {
            let id = match own {
                Some(guard) => guard.id.clone(),
                None => service.sessions.create(&service.node)?,
            };
            Ok(json!({"session_id": id}))
        }
        "openenv/session/close" => close_session(service, own, &request.params),
        "tools/list" => {
            find_session(service, own, &request.params)?;
            Ok(json!({"tools": tools::list("inputSchema")}))
        }
        "tools/call" => {
            let session = find_session(service, own, &request.params)?;
            call_tool(session, &request.params).await
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
    params: &Map<String, Value>,
) -> Result<Value, RpcError> {
    let id = session_id(params).ok_or_else(|| {
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
    params: &Map<String, Value>,
) -> Result<Option<SharedSession>, RpcError> {
    match (own, session_id(params)) {
        (Some(guard), _) => Ok(Some(SharedSession::clone(&guard.session))),
        (None, Some(id)) => match service.sessions.get(id) {
            Some(session) => Ok(Some(session)),
            None => Err(unknown_session(id)),
        },
        (None, None) => Ok(None),
    }
}

/// Returns the parameter `session_id`. An empty one counts as absent.
fn session_id(params: &Map<String, Value>) -> Option<&str> {
    let id = params.get("session_id")?.as_str()?;
    (!id.is_empty()).then_some(id)
}

fn unknown_session(id: &str) -> RpcError {
    let message = format!("Unknown session_id: {}", excerpt(id));
    RpcError::new(INVALID_PARAMS, message)
}

/// Applies the action that a call stands for. The result has MCP's fields, content and structured
/// content, and the text under `data`, which OpenEnv's clients unwrap.
async fn call_tool(
    session: Option<SharedSession>,
    params: &Map<String, Value>,
) -> Result<Value, RpcError> {
    let name = match params.get("name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => name,
        _ => return Err(RpcError::new(INVALID_PARAMS, "Missing 'name' in params")),
    };
    let no_arguments = Map::new();
    let arguments = match params.get("arguments") {
        Some(Value::Object(arguments)) => arguments,
        Some(Value::Null) | None => &no_arguments,
        Some(_) => {
            return Err(RpcError::new(
                INVALID_PARAMS,
                "Invalid params - 'arguments' must be an object",
            ));
        }
    };
    let action = tools::action(name, arguments)
        .map_err(|error| RpcError::new(INVALID_PARAMS, error.to_string()))?;
    let payload = match session {
        Some(session) => session.lock().await.step(&action).await,
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
