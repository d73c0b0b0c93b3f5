//! `/mcp`: the four tools over JSON-RPC 2.0, and sessions for clients that call over plain HTTP.
//!
//! Invariant: a reply has a result or an error, never both; over HTTP the status is always 200. A call is a step of the
//! session's episode, which is started by a reset on the session's socket.

use axum::{Json, body::Bytes, extract::State};
use serde_json::{Map, Value, json};

use super::{
    Face, SharedFace, excerpt,
    fault::{self, Fault},
    fields::{self, Fields},
    python_json, python_repr,
    session::SessionError,
    sessions::{Closed, Lease, SharedSession},
    socket::Reply,
    tools,
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
}

/// A JSON-RPC request that is well-formed.
struct Request {
    method: String,
    params: Map<String, Value>,
    id: Value,
}

impl Request {
    fn read(message: &Map<String, Value>) -> Result<Self, Vec<Fault>> {
        let mut fields = Fields::of(message, &[]);
        match fields.required("jsonrpc") {
            None => {}
            Some(version) if version == "2.0" => {}
            Some(version) => {
                let fault = Fault::new("literal_error", "Input should be '2.0'", version);
                fields.fault("jsonrpc", fault.because(json!({"expected": "'2.0'"})));
            }
        }
        let method = fields.required_string("method");
        let params = fields.object("params").cloned().unwrap_or_default();
        let id = read_id(&mut fields);
        fields.refuse_others();
        fields.finish()?;
        Ok(Self { method, params, id })
    }
}

/// A string, an integer or nothing; what pydantic takes for an integer becomes one.
fn read_id(fields: &mut Fields<'_>) -> Value {
    let id = fields.value("id").unwrap_or(&Value::Null);
    match id {
        Value::Null | Value::String(_) => id.clone(),
        Value::Number(number) if !number.is_f64() => id.clone(),
        other => match fields::int(other) {
            Ok(number) => json!(number as i64),
            Err(why) => {
                let message = "Input should be a valid string";
                fields.fault_at(["id", "str"], Fault::new("string_type", message, other));
                fields.fault_at(["id", "int"], why.fault(other));
                Value::Null
            }
        },
    }
}

/// `POST /mcp`.
pub(super) async fn over_http(State(face): State<SharedFace>, body: Bytes) -> Json<Value> {
    let message = std::str::from_utf8(&body).ok().map(python_json::parse);
    Json(match message {
        Some(Ok(Value::Object(message))) => answer(&face, None, &message).await,
        _ => failure(&Value::Null, RpcError::new(PARSE_ERROR, "Parse error")),
    })
}

/// Answers one message on the socket `/mcp`.
pub(super) async fn over_socket(face: &Face, lease: &Lease, text: &str) -> Reply {
    let reply = match python_json::parse(text) {
        Ok(Value::Object(message)) => answer(face, Some(lease), &message).await,
        Ok(other) => {
            let kind = python_repr::type_name(&other);
            let complaint =
                format!("JsonRpcRequest() argument after ** must be a mapping, not {kind}");
            return Reply::Last(refusal(&complaint, Value::Null));
        }
        Err(fault) => {
            let complaint = format!("Parse error: {fault}");
            failure(&Value::Null, RpcError::new(PARSE_ERROR, complaint))
        }
    };
    Reply::Text(reply.to_string())
}

/// What a socket that gets no session is told.
pub(super) fn refusal(message: &str, data: Value) -> String {
    let error = RpcError {
        data,
        ..RpcError::new(SERVER_ERROR, message)
    };
    failure(&Value::Null, error).to_string()
}

/// Answers one request; `own` is the session of the socket that it came over.
pub(super) async fn answer(
    face: &Face,
    own: Option<&Lease>,
    message: &Map<String, Value>,
) -> Value {
    let request = match Request::read(message) {
        Ok(request) => request,
        Err(faults) => {
            let complaint = fault::text(&faults, "JsonRpcRequest");
            let complaint = format!("Invalid request: {complaint}");
            return failure(&Value::Null, RpcError::new(INVALID_REQUEST, complaint));
        }
    };
    match call(face, own, &request).await {
        Ok(result) => json!({"jsonrpc": "2.0", "id": request.id, "result": result}),
        Err(error) => failure(&request.id, error),
    }
}

fn failure(id: &Value, error: RpcError) -> Value {
    let RpcError {
        code,
        message,
        data,
    } = error;
    json!({
        "jsonrpc": "2.0",
        "id": id,
        "error": {"code": code, "message": message, "data": data},
    })
}

async fn call(face: &Face, own: Option<&Lease>, request: &Request) -> Result<Value, RpcError> {
    match request.method.as_str() {
        "openenv/session/create" => create_session(face, own),
        "openenv/session/close" => close_session(face, own, &request.params),
        "tools/list" => {
            session_of(face, own, &request.params)?;
            Ok(json!({"tools": tools::list("inputSchema")}))
        }
        "tools/call" => {
            let session = session_of(face, own, &request.params)?;
            call_tool(session, &request.params).await
        }
        method => Err(RpcError::new(
            METHOD_NOT_FOUND,
            format!("Method not found: {}", excerpt::text(method)),
        )),
    }
}

fn create_session(face: &Face, own: Option<&Lease>) -> Result<Value, RpcError> {
    let id = match own {
        Some(lease) => lease.id.clone(),
        None => face.sessions.create(&face.node).map_err(|full| RpcError {
            data: full.data(),
            ..RpcError::new(SERVER_ERROR, full.to_string())
        })?,
    };
    Ok(json!({"session_id": id}))
}

fn close_session(
    face: &Face,
    own: Option<&Lease>,
    params: &Map<String, Value>,
) -> Result<Value, RpcError> {
    let id = session_id(params).ok_or_else(|| {
        RpcError::new(INVALID_PARAMS, "Invalid params - 'session_id' is required")
    })?;
    if own.is_some_and(|lease| lease.id == id) {
        return Err(RpcError::new(
            INVALID_REQUEST,
            "Cannot close active WebSocket-managed session via MCP method",
        ));
    }
    match face.sessions.close(&id) {
        Some(Closed::Now) => Ok(json!({"session_id": id, "closed": true})),
        Some(Closed::Later) => Ok(json!({"session_id": id, "closed": false, "closing": true})),
        None => Err(unknown_session(&id)),
    }
}

/// The session that a call is about: the socket's own, the named one, or none.
fn session_of(
    face: &Face,
    own: Option<&Lease>,
    params: &Map<String, Value>,
) -> Result<Option<SharedSession>, RpcError> {
    match (own, session_id(params)) {
        (Some(lease), _) => Ok(Some(SharedSession::clone(&lease.session))),
        (None, Some(id)) => match face.sessions.get(&id) {
            Some(session) => Ok(Some(session)),
            None => Err(unknown_session(&id)),
        },
        (None, None) => Ok(None),
    }
}

/// The parameter `session_id`; empty counts as absent.
fn session_id(params: &Map<String, Value>) -> Option<String> {
    let id = params.get("session_id").filter(|id| !id.is_null())?;
    let id = python_repr::str(&excerpt::value(id));
    (!id.is_empty()).then_some(id)
}

fn unknown_session(id: &str) -> RpcError {
    RpcError::new(INVALID_PARAMS, format!("Unknown session_id: {id}"))
}

/// A step, with the reply that MCP knows (content, structured content) and the text under `data`, which OpenEnv's
/// clients unwrap.
async fn call_tool(
    session: Option<SharedSession>,
    params: &Map<String, Value>,
) -> Result<Value, RpcError> {
    let name = match params.get("name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => name,
        _ => return Err(RpcError::new(INVALID_PARAMS, "Missing 'name' in params")),
    };
    let nothing = Map::new();
    let arguments = match params.get("arguments") {
        Some(Value::Object(arguments)) => arguments,
        Some(Value::Null) | None => &nothing,
        Some(_) => {
            return Err(RpcError::new(
                INVALID_PARAMS,
                "Invalid params - 'arguments' must be an object",
            ));
        }
    };
    let action = tools::action(name, arguments)
        .map_err(|fault| RpcError::new(INVALID_PARAMS, fault.to_string()))?;
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
