//! Parses tool calls: from a completion's text to an action, and back (Qwen3 and Hermes format).
//! Pure.
//!
//! Invariant: every text gives an action. A text without a well-formed call becomes a QUERY with
//! the raw text, as in SQLEnv, and is marked malformed. That is not an error: the policy must see
//! what follows from it to learn the format. Only the first call of a turn counts. The environment
//! checks the argument.

use policy::ToolCall;
use proto::{TOOLS, v1::Action};
use serde_json::{Map, Value};

const OPEN: &str = "<tool_call>";
const THINK_OPEN: &str = "<think>";
const THINK_CLOSE: &str = "</think>";

/// The action that a completion requests.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedCall {
    /// The action to send to the environment.
    pub action: Action,
    /// True if the text has no well-formed call and is sent as a raw QUERY.
    pub malformed: bool,
}

/// Parses the first tool call of a completion.
///
/// The parser accepts a missing closing tag after complete JSON, text and think blocks before the
/// call, and text after it. Arguments may be absent, null, superfluous, not strings, or a JSON
/// string. An absent argument is the empty string.
pub fn parse(completion: &str) -> ParsedCall {
    let text = without_end_markers(completion);
    match first_call(text) {
        Some(action) => ParsedCall {
            action,
            malformed: false,
        },
        None => ParsedCall {
            action: action("QUERY", text.to_owned()),
            malformed: true,
        },
    }
}

/// Returns what a completion says before its tool call, without blanks at the end.
pub fn text_before_call(completion: &str) -> &str {
    let before = split_at_call(completion).map_or("", |(before, _)| before);
    before.trim_end()
}

/// Returns an action as the tool call that a model would sample. If the action type has no tool,
/// the call parses as malformed.
pub fn from_action(action: &Action) -> ToolCall {
    let (name, parameter) = TOOLS
        .iter()
        .find(|tool| action.action_type.eq_ignore_ascii_case(tool.action_type))
        .map_or((action.action_type.as_str(), "value"), |tool| {
            (tool.name, tool.parameter)
        });
    ToolCall::new(name, parameter, &action.argument)
}

/// Creates an action.
pub fn action(action_type: &str, argument: impl Into<String>) -> Action {
    Action {
        action_type: action_type.to_owned(),
        argument: argument.into(),
    }
}

/// Removes end-of-turn markers such as `<|im_end|>` and blanks from the end.
fn without_end_markers(text: &str) -> &str {
    let mut text = text.trim_end();
    while let Some(start) = text.strip_suffix("|>").and_then(|rest| rest.rfind("<|")) {
        let name = &text[start + 2..text.len() - 2];
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            break;
        }
        text = text[..start].trim_end();
    }
    text
}

fn first_call(text: &str) -> Option<Action> {
    let (_, body) = split_at_call(text)?;
    let (call, _) = leading_object(body)?;
    let name = call.get("name")?.as_str()?;
    let tool = TOOLS
        .iter()
        .find(|tool| name.trim().eq_ignore_ascii_case(tool.name))?;
    let argument = argument(call.get("arguments"), tool.parameter);
    Some(action(tool.action_type, argument))
}

/// Splits a text at the opening tag of its first call.
fn split_at_call(text: &str) -> Option<(&str, &str)> {
    let thought = text.len() - after_thinking(text)?.len();
    let call = thought + text[thought..].find(OPEN)?;
    Some((&text[..call], &text[call + OPEN.len()..]))
}

/// Returns what follows the leading think block, or none if the block is not closed.
fn after_thinking(text: &str) -> Option<&str> {
    match text.trim_start().strip_prefix(THINK_OPEN) {
        None => Some(after_opened_thought(text)),
        Some(thought) => thought.split_once(THINK_CLOSE).map(|(_, rest)| rest),
    }
}

/// Returns what follows a think block that the prompt opened, as the templates of some models do,
/// or the whole text if there is no such block.
fn after_opened_thought(text: &str) -> &str {
    match text.split_once(THINK_CLOSE) {
        Some((_, rest)) if rest.contains(OPEN) => {
            // The closing tag may also be a text inside of the first call, such as a part of SQL.
            let body = text.split_once(OPEN).map(|(_, body)| body);
            let call = body.and_then(leading_object);
            match call.is_some_and(|(_, behind)| behind.len() < rest.len()) {
                true => text,
                false => rest,
            }
        }
        _ => text,
    }
}

/// Returns the JSON object at the beginning of a text, and the text behind it.
fn leading_object(text: &str) -> Option<(Map<String, Value>, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let object = values.next()?.ok()?;
    Some((object, &text[values.byte_offset()..]))
}

fn argument(arguments: Option<&Value>, parameter: &str) -> String {
    match arguments {
        Some(Value::Object(map)) => map.get(parameter).map_or_else(String::new, as_text),
        // Some models write the arguments object as a JSON string.
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(map)) => map.get(parameter).map_or_else(String::new, as_text),
            _ => text.clone(),
        },
        Some(value) => as_text(value),
        None => String::new(),
    }
}

/// Returns a JSON value in the format of answers: lists separated by commas, rows on lines of their
/// own with their cells separated by pipes.
fn as_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(rows) if rows.iter().any(Value::is_array) => {
            rows.iter().map(row_text).collect::<Vec<_>>().join("\n")
        }
        Value::Array(items) => items.iter().map(as_text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn row_text(row: &Value) -> String {
    match row {
        Value::Array(cells) => cells.iter().map(as_text).collect::<Vec<_>>().join(" | "),
        other => as_text(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SELECT_1: (&str, &str) = ("QUERY", "SELECT 1");

    /// Completions that are not among those of TRL 1.16.0 in `tests/tool_calls.rs`.
    const CALLS: &[(&str, (&str, &str))] = &[
        (
            "<tool_call>{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT 1\"}}</tool_call><tool_call>{\"name\": \"answer\", \"arguments\": {}}</tool_call>",
            SELECT_1,
        ),
        (
            "<tool_call>\n{\"name\": \"query\", \"arguments\": {\"sql\": null, \"value\": null}}\n</tool_call>",
            ("QUERY", ""),
        ),
        // TRL passes string arguments on, and the call fails.
        (
            "<tool_call>\n{\"name\": \"query\", \"arguments\": \"SELECT 1\"}\n</tool_call>",
            SELECT_1,
        ),
        (
            "<tool_call>\n{\"name\": \"answer\", \"arguments\": {\"value\": 1, \"x\": [1, 2.5, true, null]}}\n</tool_call>",
            ("ANSWER", "1"),
        ),
        (
            "<tool_call>\n{\"name\": \"answer\", \"arguments\": {\"value\": [\"a\", 2]}}\n</tool_call>",
            ("ANSWER", "a, 2"),
        ),
        (
            "<tool_call>\n{\"name\": \"answer\", \"arguments\": {\"value\": [[\"a\", 2], [\"b\", 3]]}}\n</tool_call>",
            ("ANSWER", "a | 2\nb | 3"),
        ),
        (
            "<|im_start|>assistant\n<tool_call>\n{\"name\": \"Describe\", \"arguments\": {\"table_name\": \"singer\"}}\n</tool_call>",
            ("DESCRIBE", "singer"),
        ),
        (
            "<tool_call>\n{\"name\": \"sample\", \"arguments\": {\"table_name\": \"t\"}, \"extra\": 1}\n</tool_call>",
            ("SAMPLE", "t"),
        ),
    ];

    /// Completions of a model whose prompt opens the think block, and others with a closing tag.
    const CLOSED_THOUGHTS: &[(&str, (&str, &str))] = &[
        (
            "I could write <tool_call>{\"name\": \"answer\"}</tool_call>.\n</think>\n<tool_call>{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT 1\"}}</tool_call>",
            SELECT_1,
        ),
        (
            "A <tool_call> is next.\n</think>\n<tool_call>{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT 1\"}}</tool_call>",
            SELECT_1,
        ),
        // The tag is a part of the first call.
        (
            "<tool_call>{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT '</think>'\"}}</tool_call><tool_call>{\"name\": \"answer\"}</tool_call>",
            ("QUERY", "SELECT '</think>'"),
        ),
        // No call follows the tag.
        (
            "<tool_call>{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT 1\"}}</tool_call></think>",
            SELECT_1,
        ),
    ];

    #[test]
    fn calls_are_parsed() {
        for (text, (kind, argument)) in CALLS.iter().chain(CLOSED_THOUGHTS) {
            let call = parse(text);
            assert!(!call.malformed, "{text}");
            assert_eq!(call.action, action(kind, *argument), "{text}");
        }
    }

    #[test]
    fn a_text_without_a_call_is_a_raw_query() {
        let table: &[(&str, &str)] = &[
            ("Plain text.<|im_end|>", "Plain text."),
            (
                "<think>\nnever closed <tool_call>{\"name\": \"query\"}",
                "<think>\nnever closed <tool_call>{\"name\": \"query\"}",
            ),
            (
                "<tool_call>\nnot json\n</tool_call><|im_end|>",
                "<tool_call>\nnot json\n</tool_call>",
            ),
            (
                "<tool_call>\n{\"name\": \"drop\", \"arguments\": {}}",
                "<tool_call>\n{\"name\": \"drop\", \"arguments\": {}}",
            ),
            (
                "<tool_call>\n{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT",
                "<tool_call>\n{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT",
            ),
            // TRL takes the call, and its argument is the text `nan`.
            (
                "<tool_call>\n{\"name\": \"answer\", \"arguments\": {\"value\": NaN}}\n</tool_call>",
                "<tool_call>\n{\"name\": \"answer\", \"arguments\": {\"value\": NaN}}\n</tool_call>",
            ),
            ("a <|not a marker|>", "a <|not a marker|>"),
        ];
        for (text, raw) in table {
            let call = parse(text);
            assert!(call.malformed, "{text}");
            assert_eq!(call.action, action("QUERY", *raw), "{text}");
        }
    }

    #[test]
    fn the_text_before_a_call_holds_the_whole_thought() {
        let call = "<tool_call>{\"name\": \"query\"}</tool_call>";
        for before in [
            "",
            "I look.",
            "<think>A <tool_call> is next.</think>",
            "A <tool_call> is next.\n</think>",
        ] {
            assert_eq!(text_before_call(&format!("{before}\n{call}")), before);
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_an_action(text in "(<think>|</think>|<tool_call>|</tool_call>|\\{|\\}|\"name\": \"query\"|<\\||\\|>|.){0,12}") {
            let ParsedCall { action, malformed } = parse(&text);
            prop_assert!(!malformed || action.action_type == "QUERY");
        }

        #[test]
        fn a_rendered_call_parses_to_its_action(kind in 0..TOOLS.len(), argument in ".*") {
            let wanted = action(TOOLS[kind].action_type, argument);
            let call = parse(&from_action(&wanted).to_text());
            prop_assert!(!call.malformed);
            prop_assert_eq!(call.action, wanted);
        }
    }
}
