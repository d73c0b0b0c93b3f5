//! The messages of an episode: system prompt, solved examples, question, and tool messages.
//!
//! Invariant: a message is a pure function of the observation. A tool message is cut to
//! `MAX_RESULT_CHARS`. The chat template and the tokenizer are in `policy`.

use policy::{ChatRole, Message, ToolCall};
use proto::v1::Observation;
use serde_json::{Value, json};

use crate::tool_call;

/// How the ids of calls in solved examples begin, which are a part of the prompt.
pub const EXAMPLE_CALL: &str = "example_";

/// The policy sees this many characters of a tool result (SQLEnv `training/prompts.py`).
pub(crate) const MAX_RESULT_CHARS: usize = 2_000;
/// Replaces an old tool result that was dropped to make room.
pub(crate) const ELIDED_RESULT: &str = "[earlier result left out]";
const TRUNCATED: &str = "... [truncated]";
const EMPTY: &str = "(empty)";

/// The system prompt of every episode.
pub(crate) const SYSTEM_PROMPT: &str = "\
Answer the question about the SQL database. Use only the tools, one call per turn: describe the \
tables you need, run a query, then answer. Give the answer as a single value, as a comma-separated \
list, as rows written col1 | col2, or as [] when there is nothing.";

/// Returns the messages before the first completion: the system prompt, `shots` solved examples,
/// and the question with its tables.
pub fn opening(observation: &Observation, shots: usize) -> Vec<Message> {
    let mut messages = vec![Message::new(ChatRole::System, SYSTEM_PROMPT)];
    for example in EXAMPLES.iter().take(shots) {
        messages.extend(example.messages());
    }
    messages.push(Message::new(
        ChatRole::User,
        question(&observation.question, &observation.schema_info),
    ));
    messages
}

/// Returns an observation as a tool message.
pub fn tool_message(observation: &Observation) -> Message {
    Message::new(ChatRole::Tool, tool_text(observation))
}

/// Returns an observation's text as the policy sees it: the result, or the error after `Error: `.
pub fn tool_text(observation: &Observation) -> String {
    if !observation.error.is_empty() {
        capped(&format!("Error: {}", observation.error))
    } else if observation.result.is_empty() {
        EMPTY.to_owned()
    } else {
        capped(&observation.result)
    }
}

/// Returns the messages before the first completion in OpenAI's format. A message of a solved
/// example has at most one call, which gets an id that begins with [`EXAMPLE_CALL`].
pub fn openai_messages(messages: &[Message]) -> Vec<Value> {
    let id = |number: u32| format!("{EXAMPLE_CALL}{number}");
    let mut last = 0;
    let convert = |message: &Message| {
        let mut value = json!({"role": message.role});
        if message.role == ChatRole::Tool {
            value["tool_call_id"] = json!(id(last));
        }
        value["content"] = json!(message.content);
        if let Some(call) = message.tool_calls.first() {
            last += 1;
            value["tool_calls"] = json!([openai_call(&id(last), call)]);
        }
        value
    };
    messages.iter().map(convert).collect()
}

/// Returns a tool call in OpenAI's format, in which the arguments are a string that contains JSON.
pub fn openai_call(id: &str, call: &ToolCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments.to_string()});
    json!({"id": id, "type": "function", "function": function})
}

fn question(text: &str, schema: &str) -> String {
    format!("{text}\n{schema}")
}

fn capped(text: &str) -> String {
    match text.char_indices().nth(MAX_RESULT_CHARS) {
        Some((end, _)) => format!("{}{TRUNCATED}", &text[..end]),
        None => text.to_owned(),
    }
}

/// A solved episode on an invented database.
struct Example {
    question: &'static str,
    schema: &'static str,
    /// Action type, argument and result of each env step.
    steps: &'static [(&'static str, &'static str, &'static str)],
}

impl Example {
    fn messages(&self) -> Vec<Message> {
        let mut messages = vec![Message::new(
            ChatRole::User,
            question(self.question, self.schema),
        )];
        for (kind, argument, result) in self.steps {
            let action = tool_call::action(kind, *argument);
            messages.push(Message::call(tool_call::from_action(&action)));
            messages.push(Message::new(ChatRole::Tool, *result));
        }
        messages
    }
}

const EXAMPLES: [Example; 3] = [
    Example {
        question: "How many of the kites are longer than 3 metres?",
        schema: "Available tables:\n- kite\n- flyer",
        steps: &[
            (
                "DESCRIBE",
                "kite",
                "Table 'kite' columns:\n- kite_id: INTEGER\n- colour: TEXT\n- length_metres: REAL\nRow count: 61",
            ),
            (
                "QUERY",
                "SELECT COUNT(*) FROM kite WHERE length_metres > 3",
                "1. 17",
            ),
            ("ANSWER", "17", "Answer submitted: correct."),
        ],
    },
    Example {
        question: "Which roasts have never been ordered?",
        schema: "Available tables:\n- roast\n- coffee_order",
        steps: &[
            (
                "DESCRIBE",
                "roast",
                "Table 'roast' columns:\n- roast_id: INTEGER\n- roast_name: TEXT\nRow count: 9",
            ),
            (
                "QUERY",
                "SELECT name FROM roast WHERE roast_id NOT IN (SELECT roast_id FROM coffee_order)",
                "Error: SQL error: no such column: name",
            ),
            (
                "QUERY",
                "SELECT roast_name FROM roast WHERE roast_id NOT IN (SELECT roast_id FROM coffee_order)",
                "1. Harbour Dark\n2. Slow Morning",
            ),
            (
                "ANSWER",
                "Harbour Dark, Slow Morning",
                "Answer submitted: correct.",
            ),
        ],
    },
    Example {
        question: "For each keeper, how many lighthouses do they look after?",
        schema: "Available tables:\n- keeper\n- lighthouse",
        steps: &[
            (
                "DESCRIBE",
                "keeper",
                "Table 'keeper' columns:\n- keeper_id: INTEGER\n- full_name: TEXT\nRow count: 2",
            ),
            (
                "DESCRIBE",
                "lighthouse",
                "Table 'lighthouse' columns:\n- lighthouse_id: INTEGER\n- keeper_id: INTEGER\n- height: INTEGER\nRow count: 5",
            ),
            (
                "QUERY",
                "SELECT k.full_name, COUNT(*) FROM keeper k JOIN lighthouse l ON l.keeper_id = k.keeper_id GROUP BY k.keeper_id",
                "1. Ines Moor | 3\n2. Tam Olsen | 2",
            ),
            (
                "ANSWER",
                "Ines Moor | 3\nTam Olsen | 2",
                "Answer submitted: correct.",
            ),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(result: &str, error: &str) -> Observation {
        Observation {
            result: result.to_owned(),
            error: error.to_owned(),
            ..Observation::default()
        }
    }

    #[test]
    fn observations_become_tool_texts() {
        assert_eq!(tool_text(&observation("1. 39", "")), "1. 39");
        assert_eq!(tool_text(&observation("", "")), "(empty)");
        assert_eq!(
            tool_text(&observation("", "SQL error: no such column: x")),
            "Error: SQL error: no such column: x"
        );
    }

    #[test]
    fn long_results_are_truncated_by_characters() {
        let exact = "é".repeat(MAX_RESULT_CHARS);
        assert_eq!(tool_text(&observation(&exact, "")), exact);
        let cut = tool_text(&observation(&format!("{exact}x"), ""));
        assert_eq!(cut, format!("{exact}... [truncated]"));
    }

    #[test]
    fn calls_of_examples_have_ids_of_examples() {
        let opening = opening(&observation("", ""), 3);
        let messages = openai_messages(&opening);
        assert_eq!(messages.len(), opening.len());
        assert_eq!(messages[0]["role"], "system");
        for pair in messages.windows(2) {
            if pair[0]["role"] == "assistant" {
                let call = &pair[0]["tool_calls"][0];
                assert!(call["id"].as_str().unwrap().starts_with(EXAMPLE_CALL));
                assert_eq!(call["id"], pair[1]["tool_call_id"]);
                let arguments = call["function"]["arguments"].as_str().unwrap();
                serde_json::from_str::<Value>(arguments).unwrap();
            }
        }
    }

    #[test]
    fn shots_come_before_the_question() {
        let observation = Observation {
            question: "How many?".to_owned(),
            schema_info: "Available tables:\n- t".to_owned(),
            ..Observation::default()
        };
        for (shots, messages) in [(0, 2), (1, 2 + 7), (3, 2 + 7 + 9 + 9)] {
            let opening = opening(&observation, shots);
            assert_eq!(opening.len(), messages);
            assert_eq!(opening[0].role, ChatRole::System);
            let last = opening.last().unwrap();
            assert_eq!(
                (last.role, last.content.as_str()),
                (ChatRole::User, "How many?\nAvailable tables:\n- t")
            );
        }
    }
}
