//! The environment's tools as JSON schemas, in the form that chat templates print.
//!
//! Invariant: the schemas equal those that transformers 5.23.0's `get_json_schema` makes of the
//! Python package's methods, so prompts agree with TRL's.

use proto::{TOOLS, Tool};
use serde_json::{Value, json};

/// Returns the schemas of `describe(table_name)`, `sample(table_name)`, `query(sql)` and
/// `answer(value)`.
pub fn tool_schemas() -> Vec<Value> {
    TOOLS.iter().map(schema).collect()
}

fn schema(tool: &Tool) -> Value {
    // Prompts print the keys in this order.
    json!({
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.prompt.description,
            "parameters": {
                "type": "object",
                "properties": {
                    tool.parameter: {"type": "string", "description": tool.prompt.parameter},
                },
                "required": [tool.parameter],
            },
            "return": {"type": "string", "description": tool.returns},
        },
    })
}
