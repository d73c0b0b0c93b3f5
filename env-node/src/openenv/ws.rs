//! The frames of `/ws`: reset, step, state, close and mcp.
//!
//! Invariant: each frame gets one response, in order. A frame that is refused leaves the session as
//! it was. Clients read the code of an error frame, and its message for people.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::{
    action::{StepPayload, ToolCall},
    fields::Fields,
    json::{self, Unreadable},
    mcp::{self, RpcRequest},
    reset::ResetArguments,
    service::OpenEnvService,
    session_registry::SessionGuard,
    socket::FrameResponse,
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

/// What a client's frame asks for.
enum ClientFrame {
    Reset(ResetArguments),
    Step(StepPayload),
    State,
    /// A request of JSON-RPC, or the response that refuses it.
    Mcp(Result<RpcRequest, Value>),
    Close,
}

impl ClientFrame {
    /// Reads a frame of which nothing but what is asked for is kept.
    ///
    /// # Errors
    /// The error frame that refuses it.
    fn read(mut fields: Fields<'_>) -> Result<Self, String> {
        let kind = fields.take("type").map_or("null", RawValue::get);
        let name = serde_json::from_str::<String>(kind).ok();
        Ok(match name.as_deref() {
            Some("reset") => {
                let ResetFrame { data } = read(&fields)?;
                Self::Reset(data)
            }
            Some("step") => {
                let WithData::<Fields<'_>> { data } = read(&fields)?;
                let payload = StepPayload::read(&data);
                Self::Step(payload.map_err(|error| invalid(&error.within("data")))?)
            }
            Some("state") => {
                read::<WithoutData>(&fields)?;
                Self::State
            }
            Some("mcp") => {
                let WithData::<Fields<'_>> { data } = read(&fields)?;
                Self::Mcp(mcp::read(&data))
            }
            Some("close") => {
                read::<WithoutData>(&fields)?;
                Self::Close
            }
            other => {
                let other = excerpt(other.unwrap_or(kind));
                let message = format!("Unknown message type: {other}");
                return Err(error("UNKNOWN_TYPE", &message, None));
            }
        })
    }
}

/// Responds to one frame.
pub(super) async fn respond(
    service: &OpenEnvService,
    guard: &SessionGuard,
    text: &str,
) -> FrameResponse {
    let asked = match json::read_object(text, ClientFrame::read) {
        Ok(asked) => asked,
        // OpenEnv's server fails on JSON that is not an object, and so ends the session.
        Err(Unreadable::NotAnObject) => {
            return FrameResponse::Last(error("SESSION_ERROR", "give a JSON object", None));
        }
        Err(Unreadable::Syntax(fault)) => {
            let message = format!("Invalid JSON: {fault}");
            return FrameResponse::Text(error("INVALID_JSON", &message, None));
        }
    };
    let outcome = match asked {
        Ok(ClientFrame::Reset(arguments)) => reset(service, guard, arguments).await,
        Ok(ClientFrame::Step(payload)) => step(guard, &payload).await,
        Ok(ClientFrame::State) => Ok(state(guard).await),
        Ok(ClientFrame::Mcp(request)) => {
            let response = mcp::respond(service, Some(guard), request).await;
            Ok(frame("mcp", response))
        }
        Ok(ClientFrame::Close) => return FrameResponse::Close,
        Err(error) => Err(error),
    };
    FrameResponse::Text(outcome.unwrap_or_else(|error| error))
}

/// The frame that responds to a client's frame, or the error frame that refuses it.
type Outcome = Result<String, String>;

fn invalid(invalid: &Invalid) -> String {
    let errors = json!({"errors": invalid.to_list()});
    error("VALIDATION_ERROR", "Invalid message", Some(errors))
}

fn failed(reason: impl std::fmt::Display) -> String {
    error("EXECUTION_ERROR", &reason.to_string(), None)
}

fn read<'de, T: Deserialize<'de>>(fields: &Fields<'de>) -> Result<T, String> {
    validation::read(fields).map_err(|error| invalid(&error))
}

async fn reset(
    service: &OpenEnvService,
    guard: &SessionGuard,
    arguments: ResetArguments,
) -> Outcome {
    let spec = arguments.into_spec(&service.node).map_err(failed)?;
    let payload = guard.session.lock().await.reset(spec);
    Ok(frame("observation", payload.map_err(failed)?))
}

async fn step(guard: &SessionGuard, payload: &StepPayload) -> Outcome {
    match payload {
        StepPayload::Act(action) => {
            let payload = guard.session.lock().await.step(action).await;
            Ok(frame("observation", payload.map_err(failed)?))
        }
        StepPayload::ListTools => Ok(tool_observation(
            &json!({"metadata": {}, "tools": tools::list("input_schema")}),
        )),
        StepPayload::CallTool(call) => call_tool(guard, call).await,
    }
}

/// Returns the observation of a tool that is not a step.
fn tool_observation(observation: &Value) -> String {
    let data = json!({"observation": observation, "reward": null, "done": false});
    frame("observation", data)
}

async fn call_tool(guard: &SessionGuard, call: &ToolCall) -> Outcome {
    let action = match &call.action {
        Ok(action) => action,
        Err(error) => return Ok(tool_observation(&refused_call(call, error))),
    };
    let payload = guard.session.lock().await.step(action).await;
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

async fn state(guard: &SessionGuard) -> String {
    let session = guard.session.lock().await;
    let (episode_id, step_count) = session.state();
    let data = json!({"episode_id": episode_id, "step_count": step_count});
    frame("state", data)
}
