//! Reads the payload of a step: an action of the environment, or, from clients that call tools, a
//! request to list the tools or to call one.

use env::Action;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value};

use super::validation::{self, Invalid};

/// The payload of a step.
#[derive(Debug, PartialEq)]
pub(super) enum StepPayload {
    /// An action of the environment.
    Act(Action),
    /// Asks which tools there are. This is not a step of the episode.
    ListTools,
    /// Calls a tool.
    CallTool(ToolCall),
}

/// A call of a tool by its name.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolCall {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    #[serde(rename = "tool_name")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) arguments: Map<String, Value>,
    #[serde(default, rename = "metadata")]
    _metadata: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListTools {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    #[serde(default, rename = "metadata")]
    _metadata: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvironmentAction {
    action_type: String,
    argument: String,
    #[serde(default, rename = "metadata")]
    _metadata: Map<String, Value>,
}

impl StepPayload {
    /// Reads a payload.
    ///
    /// # Errors
    /// A field is missing, unknown or of another type.
    pub(super) fn read(data: &Map<String, Value>) -> Result<Self, Invalid> {
        Ok(match data.get("type").and_then(Value::as_str) {
            Some("list_tools") => {
                validation::read::<ListTools>(data)?;
                Self::ListTools
            }
            Some("call_tool") => Self::CallTool(validation::read(data)?),
            _ => {
                let action: EnvironmentAction = validation::read(data)?;
                Self::Act(Action {
                    action_type: action.action_type,
                    argument: action.argument,
                })
            }
        })
    }
}
