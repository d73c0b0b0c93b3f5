//! The frames of `/ws`: reset, step, state, close and mcp.
//!
//! Invariant: one reply a frame, in order; a bad frame leaves the session as it was. Leaves out the socket: that is
//! `socket.rs`.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Face,
    action::StepPayload,
    excerpt,
    fault::Fault,
    fields::Fields,
    mcp,
    payload::Payload,
    python_json, python_repr,
    reset::Keywords,
    sessions::Lease,
    socket::Reply,
    tools::{self, ToolFault},
};

/// A frame that is not answered as the client hoped.
enum Refusal {
    Invalid(Vec<Fault>),
    UnknownType(String),
    Failed(String),
}

/// A server's frame.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "lowercase")]
enum Frame {
    Observation(Payload),
    /// The observation of a tool call, which has other fields.
    #[serde(rename = "observation")]
    ToolObservation(Value),
    State(Value),
    Mcp(Value),
    Error(Value),
}

impl Frame {
    fn text(&self) -> String {
        serde_json::to_string(self).expect("frames have string keys only: this is a bug")
    }
}

/// An error frame.
pub(super) fn error(code: &str, message: &str, more: Option<Value>) -> String {
    let mut data = json!({"message": message, "code": code});
    if let (Value::Object(data), Some(Value::Object(more))) = (&mut data, more) {
        data.extend(more);
    }
    Frame::Error(data).text()
}

/// Answers one frame.
pub(super) async fn answer(face: &Face, lease: &Lease, text: &str) -> Reply {
    let message = match python_json::parse(text) {
        Ok(Value::Object(message)) => message,
        Ok(other) => {
            let kind = python_repr::type_name(&other);
            let complaint = format!("'{kind}' object has no attribute 'get'");
            return Reply::Last(error("SESSION_ERROR", &complaint, None));
        }
        Err(fault) => {
            let complaint = format!("Invalid JSON: {fault}");
            return Reply::Text(error("INVALID_JSON", &complaint, None));
        }
    };
    let kind = message.get("type").and_then(Value::as_str);
    let outcome = match kind {
        Some("reset") => reset(face, lease, &message).await,
        Some("step") => step(lease, &message).await,
        Some("state") => state(lease, &message).await,
        Some("mcp") => mcp(face, lease, &message).await,
        Some("close") => match bare(&message) {
            Ok(()) => return Reply::Close,
            Err(refusal) => Err(refusal),
        },
        _ => {
            let kind = message.get("type").map(excerpt::value);
            let kind = kind.as_ref().map(python_repr::str);
            Err(Refusal::UnknownType(kind.unwrap_or_default()))
        }
    };
    Reply::Text(outcome.map_or_else(refused, |frame| frame.text()))
}

fn refused(refusal: Refusal) -> String {
    match refusal {
        Refusal::Invalid(faults) => {
            let faults: Vec<Value> = faults.iter().map(Fault::linked).collect();
            error(
                "VALIDATION_ERROR",
                "Invalid message",
                Some(json!({"errors": faults})),
            )
        }
        Refusal::UnknownType(kind) => error(
            "UNKNOWN_TYPE",
            &format!("Unknown message type: {kind}"),
            None,
        ),
        Refusal::Failed(message) => error("EXECUTION_ERROR", &message, None),
    }
}

async fn reset(face: &Face, lease: &Lease, message: &Map<String, Value>) -> Result<Frame, Refusal> {
    let mut fields = Fields::of(message, &[]);
    fields.value("type");
    let data = fields.object("data");
    fields.refuse_others();
    fields.finish()?;

    let nothing = Map::new();
    let mut fields = Fields::of(data.unwrap_or(&nothing), &[]);
    let keywords = Keywords::read(&mut fields);
    fields.finish()?;
    let request = keywords.request(&face.node).map_err(failed)?;
    let payload = lease.session.lock().await.reset(request);
    Ok(Frame::Observation(payload.map_err(failed)?))
}

async fn step(lease: &Lease, message: &Map<String, Value>) -> Result<Frame, Refusal> {
    match StepPayload::read(required_data(message)?)? {
        StepPayload::Act(action) => {
            let payload = lease.session.lock().await.step(&action).await;
            Ok(Frame::Observation(payload.map_err(failed)?))
        }
        StepPayload::ListTools => Ok(Frame::ToolObservation(json!({
            "observation": {"metadata": {}, "tools": tools::list("input_schema")},
            "reward": null,
            "done": false,
        }))),
        StepPayload::CallTool { name, arguments } => call_tool(lease, &name, &arguments).await,
    }
}

async fn call_tool(
    lease: &Lease,
    name: &str,
    arguments: &Map<String, Value>,
) -> Result<Frame, Refusal> {
    let action = match tools::action(name, arguments) {
        Ok(action) => action,
        Err(fault) => {
            let error_type = match fault {
                ToolFault::Unknown(_) => "tool_not_found",
                ToolFault::Arguments(_) => "invalid_args",
            };
            return Ok(Frame::ToolObservation(json!({
                "observation": {
                    "metadata": {},
                    "tool_name": excerpt::text(name),
                    "result": null,
                    "error": {"error_type": error_type, "message": fault.to_string()},
                },
                "reward": null,
                "done": false,
            })));
        }
    };
    let payload = lease.session.lock().await.step(&action).await;
    let payload = payload.map_err(failed)?;
    Ok(Frame::ToolObservation(json!({
        "observation": {
            "metadata": &payload.metadata,
            "tool_name": name,
            "result": tools::text(&payload),
            "error": null,
        },
        "reward": payload.observation.reward,
        "done": payload.observation.done,
        "metadata": &payload.metadata,
    })))
}

async fn state(lease: &Lease, message: &Map<String, Value>) -> Result<Frame, Refusal> {
    bare(message)?;
    let session = lease.session.lock().await;
    let (episode_id, step_count) = session.state();
    Ok(Frame::State(
        json!({"episode_id": episode_id, "step_count": step_count}),
    ))
}

async fn mcp(face: &Face, lease: &Lease, message: &Map<String, Value>) -> Result<Frame, Refusal> {
    let data = required_data(message)?;
    Ok(Frame::Mcp(mcp::answer(face, Some(lease), data).await))
}

/// A message that has a type and nothing else.
fn bare(message: &Map<String, Value>) -> Result<(), Refusal> {
    let mut fields = Fields::of(message, &[]);
    fields.value("type");
    fields.refuse_others();
    Ok(fields.finish()?)
}

/// The data of a message that must have some.
fn required_data(message: &Map<String, Value>) -> Result<&Map<String, Value>, Refusal> {
    let mut fields = Fields::of(message, &[]);
    fields.value("type");
    let data = fields.required_object("data");
    fields.refuse_others();
    fields.finish()?;
    Ok(data.expect("checked by finish: this is a bug"))
}

fn failed(error: impl std::fmt::Display) -> Refusal {
    Refusal::Failed(error.to_string())
}

impl From<Vec<Fault>> for Refusal {
    fn from(faults: Vec<Fault>) -> Self {
        Self::Invalid(faults)
    }
}
