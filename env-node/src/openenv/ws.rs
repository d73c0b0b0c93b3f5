//! The frames of `/ws`: reset, step, state, close and mcp.
//!
//! Invariant: each frame gets one reply, in order. A frame that is refused leaves the session as it
//! was. Clients read the code of an error frame, and its message for people.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    action::{StepPayload, ToolCall},
    json, mcp,
    payload::Payload,
    reset::ResetArguments,
    service::{FrameReply, OpenEnvService},
    session_registry::SessionGuard,
    tools::{self, ToolCallError},
    validation::{self, Invalid, excerpt},
};

/// Why a frame gets an error frame.
enum FrameError {
    Invalid(Invalid),
    UnknownType(String),
    Failed(String),
}

impl From<Invalid> for FrameError {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

/// A frame of the server.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "lowercase")]
enum ServerFrame {
    Observation(Payload),
    /// The observation of a tool call, which has other fields.
    #[serde(rename = "observation")]
    ToolObservation(Value),
    State(Value),
    Mcp(Value),
    Error(Value),
}

impl ServerFrame {
    fn text(&self) -> String {
        serde_json::to_string(self).expect("frames have string keys only: this is a bug")
    }
}

/// A client's frame, without its type. `T` is its data.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WithData<T> {
    data: T,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetFrame {
    #[serde(default)]
    data: ResetArguments,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WithoutData {}

/// Returns an error frame. `more` holds further fields of its data.
pub(super) fn error(code: &str, message: &str, more: Option<Value>) -> String {
    let mut data = json!({"message": message, "code": code});
    if let (Value::Object(data), Some(Value::Object(more))) = (&mut data, more) {
        data.extend(more);
    }
    ServerFrame::Error(data).text()
}

/// Answers one frame.
pub(super) async fn answer(
    service: &OpenEnvService,
    guard: &SessionGuard,
    text: &str,
) -> FrameReply {
    let mut frame = match json::parse(text) {
        Ok(Value::Object(frame)) => frame,
        // OpenEnv's server fails on JSON that is not an object, and so ends the session.
        Ok(_) => {
            return FrameReply::Last(error("SESSION_ERROR", "give a JSON object", None));
        }
        Err(fault) => {
            let message = format!("Invalid JSON: {fault}");
            return FrameReply::Text(error("INVALID_JSON", &message, None));
        }
    };
    let kind = frame.shift_remove("type").unwrap_or_default();
    let outcome = match kind.as_str() {
        Some("reset") => reset(service, guard, &frame).await,
        Some("step") => step(guard, &frame).await,
        Some("state") => state(guard, &frame).await,
        Some("mcp") => mcp(service, guard, &frame).await,
        Some("close") => match read::<WithoutData>(&frame) {
            Ok(_) => return FrameReply::Close,
            Err(error) => Err(error),
        },
        _ => Err(FrameError::UnknownType(
            excerpt(&json::text(&kind)).into_owned(),
        )),
    };
    FrameReply::Text(outcome.map_or_else(|error| error_frame(&error), |frame| frame.text()))
}

fn error_frame(refused: &FrameError) -> String {
    match refused {
        FrameError::Invalid(invalid) => {
            let errors = json!({"errors": invalid.to_list()});
            error("VALIDATION_ERROR", "Invalid message", Some(errors))
        }
        FrameError::UnknownType(kind) => {
            let message = format!("Unknown message type: {kind}");
            error("UNKNOWN_TYPE", &message, None)
        }
        FrameError::Failed(message) => error("EXECUTION_ERROR", message, None),
    }
}

fn read<T: DeserializeOwned>(frame: &Map<String, Value>) -> Result<T, FrameError> {
    Ok(validation::read(frame)?)
}

async fn reset(
    service: &OpenEnvService,
    guard: &SessionGuard,
    frame: &Map<String, Value>,
) -> Result<ServerFrame, FrameError> {
    let ResetFrame { data } = read(frame)?;
    let spec = data.into_spec(&service.node).map_err(failed)?;
    let payload = guard.session.lock().await.reset(spec);
    Ok(ServerFrame::Observation(payload.map_err(failed)?))
}

async fn step(guard: &SessionGuard, frame: &Map<String, Value>) -> Result<ServerFrame, FrameError> {
    let WithData::<Map<String, Value>> { data } = read(frame)?;
    match StepPayload::read(&data).map_err(|invalid| invalid.within("data"))? {
        StepPayload::Act(action) => {
            let payload = guard.session.lock().await.step(&action).await;
            Ok(ServerFrame::Observation(payload.map_err(failed)?))
        }
        StepPayload::ListTools => Ok(ServerFrame::ToolObservation(json!({
            "observation": {"metadata": {}, "tools": tools::list("input_schema")},
            "reward": null,
            "done": false,
        }))),
        StepPayload::CallTool(call) => call_tool(guard, &call).await,
    }
}

async fn call_tool(guard: &SessionGuard, call: &ToolCall) -> Result<ServerFrame, FrameError> {
    let action = match tools::action(&call.name, &call.arguments) {
        Ok(action) => action,
        Err(error) => return Ok(ServerFrame::ToolObservation(refused_call(call, &error))),
    };
    let payload = guard.session.lock().await.step(&action).await;
    let payload = payload.map_err(failed)?;
    Ok(ServerFrame::ToolObservation(json!({
        "observation": {
            "metadata": &payload.metadata,
            "tool_name": call.name,
            "result": tools::text(&payload),
            "error": null,
        },
        "reward": payload.observation.reward,
        "done": payload.observation.done,
        "metadata": &payload.metadata,
    })))
}

/// Returns the observation of a call that is not a step.
fn refused_call(call: &ToolCall, error: &ToolCallError) -> Value {
    let error_type = match error {
        ToolCallError::UnknownTool(_) => "tool_not_found",
        ToolCallError::InvalidArguments(_) => "invalid_args",
    };
    json!({
        "observation": {
            "metadata": {},
            "tool_name": excerpt(&call.name),
            "result": null,
            "error": {"error_type": error_type, "message": error.to_string()},
        },
        "reward": null,
        "done": false,
    })
}

async fn state(
    guard: &SessionGuard,
    frame: &Map<String, Value>,
) -> Result<ServerFrame, FrameError> {
    read::<WithoutData>(frame)?;
    let session = guard.session.lock().await;
    let (episode_id, step_count) = session.state();
    Ok(ServerFrame::State(
        json!({"episode_id": episode_id, "step_count": step_count}),
    ))
}

async fn mcp(
    service: &OpenEnvService,
    guard: &SessionGuard,
    frame: &Map<String, Value>,
) -> Result<ServerFrame, FrameError> {
    let WithData::<Map<String, Value>> { data } = read(frame)?;
    Ok(ServerFrame::Mcp(
        mcp::answer(service, Some(guard), &data).await,
    ))
}

fn failed(error: impl std::fmt::Display) -> FrameError {
    FrameError::Failed(error.to_string())
}
