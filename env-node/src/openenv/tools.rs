//! The environment's actions as tools, for clients that call tools.
//!
//! Invariant: a call that names no tool, or whose argument does not fit, is not a step of the
//! episode.

use env::Action;
use proto::TOOLS;
use serde_json::{Value, json};

use super::{fields::Fields, payload::Payload, validation::excerpt};

/// Why a call is not a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ToolCallError {
    /// No tool has the name.
    #[error("Tool not found: {0}")]
    UnknownTool(String),
    /// The arguments do not fit the tool.
    #[error("Invalid params - {0}")]
    InvalidArguments(String),
}

/// Describes every tool. `schema_key` is the protocol's name for the schema of the arguments.
pub(super) fn list(schema_key: &str) -> Value {
    let tools = TOOLS.iter().map(|tool| {
        json!({
            "name": tool.name,
            "description": tool.listing.description,
            schema_key: {
                "type": "object",
                "properties": {
                    tool.parameter: {"type": "string", "description": tool.listing.parameter},
                },
                "required": [tool.parameter],
                "additionalProperties": false,
            },
        })
    });
    tools.collect()
}

/// Returns the action that a call stands for.
pub(super) fn action(name: &str, arguments: &Fields<'_>) -> Result<Action, ToolCallError> {
    let tool = TOOLS
        .iter()
        .find(|tool| tool.name == name)
        .ok_or_else(|| ToolCallError::UnknownTool(excerpt(name).into_owned()))?;
    let invalid = |why: &str| {
        Err(ToolCallError::InvalidArguments(format!(
            "{name} takes one argument, {}, a string: {why}",
            tool.parameter
        )))
    };
    let mut names = arguments.iter().map(|(name, _)| name);
    if let Some(other) = names.find(|name| *name != tool.parameter) {
        return invalid(&format!("there is no {}", excerpt(other)));
    }
    if arguments.get(tool.parameter).is_none() {
        return invalid("it is missing");
    }
    match arguments.text(tool.parameter) {
        Some(argument) => Ok(Action {
            action_type: tool.action_type.to_owned(),
            argument,
        }),
        None => invalid("it is not a string"),
    }
}

/// Returns what the agent reads after a call.
pub(super) fn text(payload: &Payload) -> String {
    let observation = &payload.observation;
    match observation.error.is_empty() {
        true => observation.result.clone(),
        false => format!("Error: {}", observation.error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_an_action_or_says_what_is_wrong() {
        let call = |name: &str, arguments: Value| {
            action(name, &Fields::of(&arguments.to_string()).unwrap())
        };
        let query = call("query", json!({"sql": "SELECT 1"})).unwrap();
        assert_eq!(
            (query.action_type.as_str(), query.argument.as_str()),
            ("QUERY", "SELECT 1")
        );
        assert_eq!(
            call("reset", json!({})),
            Err(ToolCallError::UnknownTool("reset".to_owned()))
        );
        for (arguments, why) in [
            (json!({}), "it is missing"),
            (json!({"sql": 5}), "it is not a string"),
            (json!({"sql": "SELECT 1", "limit": 5}), "there is no limit"),
        ] {
            let Err(ToolCallError::InvalidArguments(message)) = call("query", arguments) else {
                panic!("taken as an action");
            };
            assert_eq!(
                message,
                format!("query takes one argument, sql, a string: {why}")
            );
        }
    }
}
