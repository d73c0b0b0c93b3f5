//! Reads the payload of a step: an action of the environment, or, from clients that call tools, a
//! request to list the tools or to call one.

use env::Action;
use serde::{Deserialize, de::IgnoredAny};

use super::{
    fields::Fields,
    tools::{self, ToolCallError},
    validation::{self, Invalid},
};

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
#[derive(Debug, PartialEq)]
pub(super) struct ToolCall {
    pub(super) name: String,
    /// The action that the call stands for.
    pub(super) action: Result<Action, ToolCallError>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallTool<'a> {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    #[serde(rename = "tool_name")]
    name: String,
    #[serde(default, borrow)]
    arguments: Fields<'a>,
    #[serde(default, borrow, rename = "metadata")]
    _metadata: Fields<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListTools<'a> {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    #[serde(default, borrow, rename = "metadata")]
    _metadata: Fields<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvironmentAction<'a> {
    action_type: String,
    argument: String,
    #[serde(default, borrow, rename = "metadata")]
    _metadata: Fields<'a>,
}

impl StepPayload {
    /// Reads a payload.
    ///
    /// # Errors
    /// A field is missing, unknown or of another type.
    pub(super) fn read(data: &Fields<'_>) -> Result<Self, Invalid> {
        Ok(match data.text("type").as_deref() {
            Some("list_tools") => {
                validation::read::<ListTools<'_>>(data)?;
                Self::ListTools
            }
            Some("call_tool") => {
                let CallTool {
                    name, arguments, ..
                } = validation::read(data)?;
                let action = tools::action(&name, &arguments);
                Self::CallTool(ToolCall { name, action })
            }
            _ => {
                let action: EnvironmentAction<'_> = validation::read(data)?;
                Self::Act(Action {
                    action_type: action.action_type,
                    argument: action.argument,
                })
            }
        })
    }
}
