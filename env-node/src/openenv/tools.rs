//! The four actions as tools, for clients that call tools.
//!
//! Invariant: one tool is one action with one argument, a string. A call that names no tool or lacks the argument is not
//! a step of the episode.

use env::Action;
use serde_json::{Map, Value, json};

use super::{excerpt, payload::Payload};

/// One action, seen as a tool.
pub(super) struct Tool {
    /// What callers name.
    pub(super) name: &'static str,
    action_type: &'static str,
    description: &'static str,
    parameter: &'static str,
    parameter_description: &'static str,
}

/// Every tool, in the order in which an agent needs them.
pub(super) const TOOLS: [Tool; 4] = [
    Tool {
        name: "describe",
        action_type: "DESCRIBE",
        description: "Show a table's columns with their types, and how many rows it has.",
        parameter: "table_name",
        parameter_description: "Name of the table.",
    },
    Tool {
        name: "sample",
        action_type: "SAMPLE",
        description: "Show the first rows of a table.",
        parameter: "table_name",
        parameter_description: "Name of the table.",
    },
    Tool {
        name: "query",
        action_type: "QUERY",
        description: "Run one SELECT statement and show its rows.",
        parameter: "sql",
        parameter_description: "The SELECT statement, in SQLite's dialect.",
    },
    Tool {
        name: "answer",
        action_type: "ANSWER",
        description: "Give the final answer to the question. This ends the episode.",
        parameter: "value",
        parameter_description: "The answer: one value, a comma-separated list, or one row per line with cells joined by ' | '.",
    },
];

/// Why a call is not a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ToolFault {
    /// There is no such tool.
    #[error("Tool not found: {0}")]
    Unknown(String),
    /// The arguments do not fit the tool.
    #[error("Invalid params - {0}")]
    Arguments(String),
}

/// Describes every tool; `schema_key` is what this dialect calls the schema of the arguments.
pub(super) fn list(schema_key: &str) -> Value {
    let tools = TOOLS.iter().map(|tool| {
        json!({
            "name": tool.name,
            "description": tool.description,
            schema_key: {
                "type": "object",
                "properties": {
                    tool.parameter: {"type": "string", "description": tool.parameter_description},
                },
                "required": [tool.parameter],
                "additionalProperties": false,
            },
        })
    });
    tools.collect()
}

/// The action that a call stands for.
pub(super) fn action(name: &str, arguments: &Map<String, Value>) -> Result<Action, ToolFault> {
    let tool = TOOLS
        .iter()
        .find(|tool| tool.name == name)
        .ok_or_else(|| ToolFault::Unknown(excerpt::text(name).into_owned()))?;
    let wrong = |why: &str| {
        Err(ToolFault::Arguments(format!(
            "{name} takes one argument, {}, a string: {why}",
            tool.parameter
        )))
    };
    if let Some(other) = arguments.keys().find(|key| *key != tool.parameter) {
        return wrong(&format!("there is no {}", excerpt::text(other)));
    }
    match arguments.get(tool.parameter) {
        Some(Value::String(argument)) => Ok(Action {
            action_type: tool.action_type.to_owned(),
            argument: argument.clone(),
        }),
        Some(_) => wrong("it is not a string"),
        None => wrong("it is missing"),
    }
}

/// What the agent reads after a call.
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
        let call = |name: &str, arguments: Value| action(name, arguments.as_object().unwrap());
        let query = call("query", json!({"sql": "SELECT 1"})).unwrap();
        assert_eq!(
            (query.action_type.as_str(), query.argument.as_str()),
            ("QUERY", "SELECT 1")
        );
        assert_eq!(
            call("reset", json!({})),
            Err(ToolFault::Unknown("reset".to_owned()))
        );
        for (arguments, why) in [
            (json!({}), "it is missing"),
            (json!({"sql": 5}), "it is not a string"),
            (json!({"sql": "SELECT 1", "limit": 5}), "there is no limit"),
        ] {
            let Err(ToolFault::Arguments(message)) = call("query", arguments) else {
                panic!("taken as an action");
            };
            assert_eq!(
                message,
                format!("query takes one argument, sql, a string: {why}")
            );
        }
    }
}
