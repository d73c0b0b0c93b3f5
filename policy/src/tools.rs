//! The four tools of the environment as JSON schemas, in the form that chat templates print.
//!
//! Invariant: every parameter is one required string. The texts are those of the reference
//! renderings (`golden/chat/tools.json`, made by transformers 5.23.0's `get_json_schema`), so
//! prompts agree with TRL's.

use serde_json::{Value, json};

/// The schemas of `describe(table_name)`, `sample(table_name)`, `query(sql)` and `answer(value)`.
pub fn sqlenv_tools() -> Vec<Value> {
    vec![
        tool(
            "describe",
            "Show the columns, their types and the row count of one table.",
            ("table_name", "Name of the table to describe."),
            "One line per column, then the row count.",
        ),
        tool(
            "sample",
            "Show up to five rows of one table.",
            ("table_name", "Name of the table to sample."),
            "The rows, one per line.",
        ),
        tool(
            "query",
            "Run one read-only SQL query and show at most 20 rows.",
            ("sql", "A single SELECT statement."),
            "The rows, one per line, or an error message.",
        ),
        tool(
            "answer",
            "Submit the final answer and end the episode.",
            (
                "value",
                "The answer: a single value, a comma-separated list, or rows written as col1 | col2.",
            ),
            "The result of the check.",
        ),
    ]
}

fn tool(name: &str, description: &str, (parameter, meaning): (&str, &str), returns: &str) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {parameter: {"type": "string", "description": meaning}},
                "required": [parameter],
            },
            "return": {"type": "string", "description": returns},
        },
    })
}
