//! Conversations of users as demonstrations: JSON lines in OpenAI's format of messages.
//!
//! Pure. Invariant: the tokens of a conversation are those that the model would see and sample in
//! an episode with the same messages: the prompt and each answer of a tool are encoded on their
//! own, as in a rollout, and the messages of the assistant are what is learned.

use actor::{prompt::EXAMPLE_CALL, tool_schemas};
use policy::{Chat, ChatRole, Message, ToolCall};
use proto::v1::Segment;
use serde_json::Value;

/// Returns a conversation as an episode to imitate; none if it says that its answer is not
/// correct.
///
/// `line` has `messages` and, optionally, `tools` (default: those of the environment), `correct`,
/// and `prompt`: the text before the first message, if that is one of the assistant. Shown and not
/// learned are a turn whose result says `malformed_call`, and what precedes the first message of
/// the assistant that is no call of a solved example ([`EXAMPLE_CALL`]).
///
/// # Errors
/// Names the message or field that cannot be used.
pub fn demonstration_of(chat: &Chat, line: &Value) -> Result<Option<Segment>, String> {
    match line["correct"] {
        Value::Bool(false) => return Ok(None),
        Value::Bool(true) | Value::Null => {}
        _ => return Err("`correct` is neither true nor false".to_owned()),
    }
    let listed = line["messages"]
        .as_array()
        .ok_or("has no list `messages`")?;
    let messages: Vec<Message> = listed
        .iter()
        .enumerate()
        .map(|(at, message)| message_of(message).map_err(|fault| format!("message {at}: {fault}")))
        .collect::<Result<_, _>>()?;
    let is_assistant = |message: &Message| message.role == ChatRole::Assistant;
    let is_learned = |message: &Value| message["role"] == "assistant" && !is_example(message);
    let first = listed.iter().position(is_learned).ok_or(
        "has no message of the assistant, apart from calls whose id begins with `example_`, so \
         nothing could be learned",
    )?;
    let mut segment = Segment::default();
    push(&mut segment, &opening(chat, line, &messages[..first])?, 0);
    let mut at = first;
    while at < messages.len() {
        let is_malformed = line["messages"][at + 1]["malformed_call"] == Value::Bool(true);
        let text = text_of(&messages[at]);
        // A policy that ends its turn at once makes a malformed call, which is not learned.
        if text.trim().is_empty() && !is_malformed {
            return Err(format!(
                "message {at}: the assistant says and calls nothing; leave the conversation out, \
                 or give the message a text or `tool_calls`"
            ));
        }
        let completion = chat.completion_ids(&text);
        let completion = completion.map_err(|fault| fault.to_string())?;
        push(&mut segment, &completion, u8::from(!is_malformed));
        let shown = &messages[at + 1..];
        // The model never sees what follows its last turn.
        let Some(next) = shown.iter().position(is_assistant) else {
            break;
        };
        if next > 0 {
            let seen = chat.tool_suffix_ids(&shown[..next]);
            push(&mut segment, &seen.map_err(|fault| fault.to_string())?, 0);
        }
        at += 1 + next;
    }
    Ok(Some(segment))
}

/// Returns whether a message calls a tool in a solved example.
fn is_example(message: &Value) -> bool {
    let id = message["tool_calls"][0]["id"].as_str();
    id.is_some_and(|id| id.starts_with(EXAMPLE_CALL))
}

/// Returns the tokens before the first turn of the assistant.
fn opening(chat: &Chat, line: &Value, messages: &[Message]) -> Result<Vec<u32>, String> {
    let tokens = match (line["prompt"].as_str(), messages) {
        (Some(prompt), []) => chat.encode(prompt),
        (None, []) => {
            return Err(
                "begins with the assistant; put the question before it, or a `prompt`".to_owned(),
            );
        }
        (_, messages) => match &line["tools"] {
            Value::Array(tools) => chat.prompt_ids(messages, tools),
            Value::Null => chat.prompt_ids(messages, &tool_schemas()),
            _ => return Err("`tools` is no list".to_owned()),
        },
    };
    tokens.map_err(|fault| fault.to_string())
}

fn push(segment: &mut Segment, tokens: &[u32], mask: u8) {
    segment.tokens.extend(tokens);
    let length = segment.tokens.len();
    segment.mask.resize(length, mask);
    segment.logprobs.resize(length, 0.0);
}

/// Returns what the assistant writes: its text, then its calls.
fn text_of(message: &Message) -> String {
    let calls = message.tool_calls.iter().map(ToolCall::to_text);
    let parts = (!message.content.is_empty()).then(|| message.content.clone());
    parts
        .into_iter()
        .chain(calls)
        .collect::<Vec<_>>()
        .join("\n")
}

fn message_of(message: &Value) -> Result<Message, String> {
    let role = match message["role"].as_str() {
        Some("system" | "developer") => ChatRole::System,
        // In a rollout the result of a malformed call is a tool message as well. OpenAI's format
        // has none without a call.
        Some("user") if message["malformed_call"] == Value::Bool(true) => ChatRole::Tool,
        Some("user") => ChatRole::User,
        Some("assistant") => ChatRole::Assistant,
        Some("tool") => ChatRole::Tool,
        other => {
            let role = other.unwrap_or_default();
            return Err(format!(
                "the role {role:?} is none of system, user, assistant and tool"
            ));
        }
    };
    let content = match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        // Parts, as multimodal APIs write them.
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => return Err("`content` is no text".to_owned()),
    };
    let tool_calls: Vec<ToolCall> = match &message["tool_calls"] {
        Value::Array(calls) => calls.iter().map(call_of).collect::<Result<_, _>>()?,
        Value::Null => Vec::new(),
        _ => return Err("`tool_calls` is no list".to_owned()),
    };
    if message["function_call"].is_object() && tool_calls.is_empty() {
        return Err("`function_call` is not read; write the call as `tool_calls`".to_owned());
    }
    Ok(Message {
        tool_calls,
        ..Message::new(role, content)
    })
}

/// Reads a call. Its arguments are a JSON text, or JSON as transformers has them.
fn call_of(call: &Value) -> Result<ToolCall, String> {
    let function = &call["function"];
    let name = function["name"].as_str();
    let name = name.ok_or("a call in `tool_calls` has no `function.name`")?;
    let arguments = match &function["arguments"] {
        Value::String(text) => serde_json::from_str(text)
            .map_err(|fault| format!("the arguments of the call of {name} are no JSON: {fault}"))?,
        other => other.clone(),
    };
    Ok(ToolCall {
        name: name.to_owned(),
        arguments,
    })
}

#[cfg(test)]
mod tests {
    use actor::prompt::{opening, tool_message};
    use proto::v1::Observation;
    use serde_json::json;

    use super::*;

    fn chat() -> Chat {
        policy::embedded::base().unwrap().chat
    }

    fn observation() -> Observation {
        Observation {
            question: "How many?".to_owned(),
            schema_info: "Available tables:\n- t".to_owned(),
            result: "1. 3".to_owned(),
            ..Observation::default()
        }
    }

    fn call(name: &str, arguments: &str) -> Value {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        ]})
    }

    fn conversation() -> Value {
        let opening = opening(&observation(), 0);
        json!({"correct": true, "messages": [
            {"role": "system", "content": opening[0].content},
            {"role": "user", "content": opening[1].content},
            call("query", r#"{"sql": "SELECT COUNT(*) FROM t"}"#),
            {"role": "tool", "tool_call_id": "c", "content": "1. 3"},
            call("answer", r#"{"value": "3"}"#),
            {"role": "tool", "tool_call_id": "c", "content": "Answer submitted: correct."},
        ]})
    }

    /// The tokens are those of a rollout with the same messages.
    #[test]
    fn a_conversation_has_the_tokens_of_a_rollout() {
        let chat = chat();
        let prompt = chat
            .prompt_ids(&opening(&observation(), 0), &tool_schemas())
            .unwrap();
        let query = ToolCall::new("query", "sql", "SELECT COUNT(*) FROM t").to_text();
        let query = chat.completion_ids(&query).unwrap();
        let seen = chat
            .tool_suffix_ids(&[tool_message(&observation())])
            .unwrap();
        let answer = ToolCall::new("answer", "value", "3").to_text();
        let answer = chat.completion_ids(&answer).unwrap();
        let masks = [(&prompt, 0), (&query, 1), (&seen, 0), (&answer, 1)];
        let segment = demonstration_of(&chat, &conversation()).unwrap().unwrap();
        assert_eq!(
            segment.tokens,
            [prompt.clone(), query.clone(), seen.clone(), answer.clone()].concat()
        );
        let mask: Vec<u8> = masks
            .iter()
            .flat_map(|(tokens, mask)| vec![*mask; tokens.len()])
            .collect();
        assert_eq!(segment.mask, mask);
        assert_eq!(segment.logprobs.len(), segment.tokens.len());

        // With the rendered prompt in place of its messages.
        let mut written = conversation();
        let text = chat
            .render(&opening(&observation(), 0), &tool_schemas(), true)
            .unwrap();
        let messages = written["messages"].as_array_mut().unwrap();
        messages.drain(..2);
        written["prompt"] = json!(text);
        assert_eq!(demonstration_of(&chat, &written).unwrap().unwrap(), segment);
    }

    #[test]
    fn a_wrong_answer_is_not_imitated() {
        let mut wrong = conversation();
        wrong["correct"] = json!(false);
        assert_eq!(demonstration_of(&chat(), &wrong).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let chat = chat();
        let mut example = call("query", "{}");
        example["tool_calls"][0]["id"] = json!("example_1");
        for (line, named) in [
            (json!({}), "no list `messages`"),
            (json!({"messages": []}), "no message of the assistant"),
            (
                json!({"messages": [{"role": "user", "content": "x"}]}),
                "no message of the assistant",
            ),
            (
                json!({"messages": [{"role": "user", "content": "x"}, example]}),
                "apart from calls whose id begins with `example_`",
            ),
            (
                json!({"messages": [{"role": "robot"}]}),
                "message 0: the role \"robot\"",
            ),
            (
                json!({"messages": [call("query", "{}")]}),
                "begins with the assistant",
            ),
            (
                json!({"messages": [{"role": "user", "content": "x"}, call("query", "{")]}),
                "message 1: the arguments of the call of query are no JSON",
            ),
            (
                json!({"messages": [{"role": "user", "content": 3}]}),
                "message 0: `content` is no text",
            ),
            (
                json!({"correct": "false", "messages": []}),
                "`correct` is neither true nor false",
            ),
            (
                json!({"messages": [{"role": "assistant", "tool_calls": {"function": {}}}]}),
                "message 0: `tool_calls` is no list",
            ),
            (
                json!({"messages": [{"role": "user", "content": "x"},
                    {"role": "assistant", "content": "", "function_call": {"name": "query"}}]}),
                "message 1: `function_call` is not read; write the call as `tool_calls`",
            ),
            (
                json!({"messages": [{"role": "user", "content": "x"},
                    {"role": "assistant", "content": "", "function_call": null}]}),
                "message 1: the assistant says and calls nothing",
            ),
            (
                json!({"tools": "[]", "messages": [{"role": "user", "content": "x"},
                    call("query", "{}")]}),
                "`tools` is no list",
            ),
        ] {
            let fault = demonstration_of(&chat, &line).unwrap_err();
            assert!(fault.contains(named), "{line}: {fault}");
        }
    }
}
