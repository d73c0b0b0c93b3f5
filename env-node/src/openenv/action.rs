//! What a client wants of a step: one of `SQLEnv`'s actions, or, for clients that call tools, a list of them or a call.

use env::Action;
use serde_json::{Map, Value};

use super::{fault::Fault, fields::Fields};

/// The payload of a step.
#[derive(Debug, PartialEq)]
pub(super) enum StepPayload {
    /// An action of the environment.
    Act(Action),
    /// Asks what tools there are; not a step of the episode.
    ListTools,
    /// Calls a tool.
    CallTool {
        name: String,
        arguments: Map<String, Value>,
    },
}

impl StepPayload {
    /// # Errors
    /// Fields that are missing, of another type, or too many.
    pub(super) fn read(data: &Map<String, Value>) -> Result<Self, Vec<Fault>> {
        let mut fields = Fields::of(data, &[]);
        fields.object("metadata");
        let payload = match data.get("type").and_then(Value::as_str) {
            Some("list_tools") => {
                fields.value("type");
                Self::ListTools
            }
            Some("call_tool") => {
                fields.value("type");
                Self::CallTool {
                    name: fields.required_string("tool_name"),
                    arguments: fields.object("arguments").cloned().unwrap_or_default(),
                }
            }
            _ => Self::Act(Action {
                action_type: fields.required_string("action_type"),
                argument: fields.required_string("argument"),
            }),
        };
        fields.refuse_others();
        fields.finish()?;
        Ok(payload)
    }
}
