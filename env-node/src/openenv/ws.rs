//! The frames of `/ws`: reset, step, state, close and mcp.
//!
//! Invariant: each frame gets one reply, in order. A frame that is refused leaves the session as it
//! was. Clients read the code of an error frame, and its message for people.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    action::{StepPayload, ToolCall},
    json, mcp,
    reset::ResetArguments,
    service::{FrameReply, OpenEnvService},
    session_registry::SessionGuard,
    tools::{self, ToolCallError},
    validation::{self, Invalid, excerpt},
};

/// Returns a frame of the server.
fn frame(kind: &str, data: impl Serialize) -> String {
    #[derive(Serialize)]
    struct ServerFrame<'a, T> {
        #[serde(rename = "type")]
        kind: &'a str,
        data: T,
    }
    serde_json::to_string(&ServerFrame { kind, data })
        .expect("frames have string keys only: this is a bug")
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
    frame("error", data)
}

/// Answers one frame.
pub(super) async fn answer(
    service: &OpenEnvService,
    guard: &SessionGuard,
    text: &str,
) -> FrameReply {
    let mut fields = match json::parse(text) {
        Ok(Value::Object(fields)) => fields,
        // OpenEnv's server fails on JSON that is not an object, and so ends the session.
        Ok(_) => {
            return FrameReply::Last(error("SESSION_ERROR", "give a JSON object", None));
        }
        Err(fault) => {
            let message = format!("Invalid JSON: {fault}");
            return FrameReply::Text(error("INVALID_JSON", &message, None));
        }
    };
    let kind = fields.shift_remove("type").unwrap_or_default();
    let outcome = match kind.as_str() {
        Some("reset") => reset(service, guard, &fields).await,
        Some("step") => step(guard, &fields).await,
        Some("state") => state(guard, &fields).await,
        Some("mcp") => mcp(service, guard, &fields).await,
        Some("close") => match read::<WithoutData>(&fields) {
            Ok(_) => return FrameReply::Close,
            Err(error) => Err(error),
        },
        _ => {
            let message = format!("Unknown message type: {}", excerpt(&json::text(&kind)));
            Err(error("UNKNOWN_TYPE", &message, None))
        }
    };
    FrameReply::Text(outcome.unwrap_or_else(|error| error))
}

/// The frame that answers a client's frame, or the error frame that refuses it.
type Answer = Result<String, String>;

fn invalid(invalid: &Invalid) -> String {
    let errors = json!({"errors": invalid.to_list()});
    error("VALIDATION_ERROR", "Invalid message", Some(errors))
}

fn failed(reason: impl std::fmt::Display) -> String {
    error("EXECUTION_ERROR", &reason.to_string(), None)
}

fn read<T: DeserializeOwned>(fields: &Map<String, Value>) -> Result<T, String> {
    validation::read(fields).map_err(|error| invalid(&error))
}

async fn reset(
    service: &OpenEnvService,
    guard: &SessionGuard,
    fields: &Map<String, Value>,
) -> Answer {
    let ResetFrame { data } = read(fields)?;
    let spec = data.into_spec(&service.node).map_err(failed)?;
    let payload = guard.session.lock().await.reset(spec);
    Ok(frame("observation", payload.map_err(failed)?))
}

async fn step(guard: &SessionGuard, fields: &Map<String, Value>) -> Answer {
    let WithData::<Map<String, Value>> { data } = read(fields)?;
    match StepPayload::read(&data).map_err(|error| invalid(&error.within("data")))? {
        StepPayload::Act(action) => {
            let payload = guard.session.lock().await.step(&action).await;
            Ok(frame("observation", payload.map_err(failed)?))
        }
        StepPayload::ListTools => Ok(tool_observation(
            &json!({"metadata": {}, "tools": tools::list("input_schema")}),
        )),
        StepPayload::CallTool(call) => call_tool(guard, &call).await,
    }
}

/// Returns the observation of a tool that is not a step.
fn tool_observation(observation: &Value) -> String {
    let data = json!({"observation": observation, "reward": null, "done": false});
    frame("observation", data)
}

async fn call_tool(guard: &SessionGuard, call: &ToolCall) -> Answer {
    let action = match tools::action(&call.name, &call.arguments) {
        Ok(action) => action,
        Err(error) => return Ok(tool_observation(&refused_call(call, &error))),
    };
    let payload = guard.session.lock().await.step(&action).await;
    let payload = payload.map_err(failed)?;
    let data = json!({
        "observation": {
            "metadata": &payload.metadata,
            "tool_name": call.name,
            "result": tools::text(&payload),
            "error": null,
        },
        "reward": payload.observation.reward,
        "done": payload.observation.done,
        "metadata": &payload.metadata,
    });
    Ok(frame("observation", data))
}

fn refused_call(call: &ToolCall, error: &ToolCallError) -> Value {
    let error_type = match error {
        ToolCallError::UnknownTool(_) => "tool_not_found",
        ToolCallError::InvalidArguments(_) => "invalid_args",
    };
    json!({
        "metadata": {},
        "tool_name": excerpt(&call.name),
        "result": null,
        "error": {"error_type": error_type, "message": error.to_string()},
    })
}

async fn state(guard: &SessionGuard, fields: &Map<String, Value>) -> Answer {
    read::<WithoutData>(fields)?;
    let session = guard.session.lock().await;
    let (episode_id, step_count) = session.state();
    let data = json!({"episode_id": episode_id, "step_count": step_count});
    Ok(frame("state", data))
}

async fn mcp(
    service: &OpenEnvService,
    guard: &SessionGuard,
    fields: &Map<String, Value>,
) -> Answer {
    let WithData::<Map<String, Value>> { data } = read(fields)?;
    let reply = mcp::answer(service, Some(guard), &data).await;
    Ok(frame("mcp", reply))
}
