//! Episodes of a model that is reached by messages, such as one behind a chat API.
//!
//! Invariant: the prompt, the tools and the texts of observations are those of [`crate::Rollout`],
//! and calls are parsed by the same rules, so results can be compared. Nothing is sampled here, so
//! there are no tokens and no log-probabilities.

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use proto::v1::{Observation, Question, Turn};
use serde_json::{Value, json};
use tonic::{Response, Status};

use crate::{
    env_session::EnvSession,
    episode_settings::{EpisodeSettings, EpisodeSpec},
    error::ActorError,
    evaluate::{EnvStepRecord, EpisodeRecord, EvaluationMetrics, evaluation_spec},
    prompt,
    retry::Retry,
    rollout::record_response,
    tool_call::{self, ParsedCall},
    tool_schemas::tool_schemas,
};

/// Seconds that a reply may take: a local model may be slow, and answer other requests first.
const REPLY_TIMEOUT_SECONDS: u32 = 300;

/// A model that is reached by messages.
#[async_trait]
pub trait ChatModel: Send + Sync {
    /// Returns the assistant's next message in OpenAI's format. The caller limits the time.
    ///
    /// # Errors
    /// The model did not answer. A status that may pass is retried.
    async fn reply(&self, messages: &[Value], tools: &[Value]) -> Result<Value, Status>;
}

/// Runs one episode of `model` per question, `concurrency` at a time. Returns the metrics and the
/// episodes in the order of the questions. Calls `on_done` with the number of finished episodes.
pub async fn evaluate_chat(
    model: &dyn ChatModel,
    settings: &EpisodeSettings,
    questions: &[Question],
    seed: u64,
    concurrency: usize,
    mut on_done: impl FnMut(usize),
) -> (EvaluationMetrics, Vec<EpisodeRecord>) {
    let mut running = stream::iter(questions.iter().enumerate())
        .map(
            |(index, question)| async move { (index, play(model, settings, question, seed).await) },
        )
        .buffer_unordered(concurrency.max(1));
    let mut episodes = std::collections::BTreeMap::new();
    while let Some((index, episode)) = running.next().await {
        episodes.insert(index, episode);
        on_done(episodes.len());
    }
    let episodes: Vec<EpisodeRecord> = episodes.into_values().collect();
    (EvaluationMetrics::of(&episodes), episodes)
}

/// Plays the episode of a question. One that fails counts as incorrect.
async fn play(
    model: &dyn ChatModel,
    settings: &EpisodeSettings,
    question: &Question,
    seed: u64,
) -> EpisodeRecord {
    let mut record = EpisodeRecord::of_question(question);
    let spec = evaluation_spec(&question.question_id, seed);
    if let Err(error) = drive(model, settings, &spec, &mut record).await {
        record.failure = error.to_string();
    }
    record
}

async fn drive(
    model: &dyn ChatModel,
    settings: &EpisodeSettings,
    spec: &EpisodeSpec,
    record: &mut EpisodeRecord,
) -> Result<(), ActorError> {
    let (mut session, first) = EnvSession::reset(settings, spec).await?;
    let opening = prompt::opening(&first, settings.limits.shots);
    let mut messages = prompt::openai_messages(&opening);
    let tools = tools();
    let retry = Retry {
        call_timeout_seconds: REPLY_TIMEOUT_SECONDS,
        ..settings.retry
    };
    loop {
        let reply = async || model.reply(&messages, &tools).await.map(Response::new);
        let call = ChatCall::of(&retry.call("ChatModel", reply).await?);
        let response = session.step(call.parsed.action.clone()).await?;
        let mut turn = Turn {
            action: Some(call.parsed.action.clone()),
            malformed: call.parsed.malformed,
            ..Turn::default()
        };
        record_response(&mut turn, &response);
        record.reward += turn.reward;
        let text = call.text.clone();
        record.steps.push(EnvStepRecord::new(text, &turn));
        let observation = response.observation.unwrap_or_default();
        if observation.done {
            record.correct = response.correct;
            return Ok(());
        }
        messages.extend(call.exchange(&observation));
    }
}

/// The first tool call of an assistant's message.
struct ChatCall {
    parsed: ParsedCall,
    /// The whole message, as a text.
    text: String,
    /// The call as the model wrote it, if it used the API's tools.
    native: Option<Value>,
    content: Value,
}

impl ChatCall {
    /// Reads a message. A call that stands in the text counts as well: servers without a parser for
    /// a model's tool calls leave it there.
    fn of(message: &Value) -> Self {
        let content = message["content"].as_str().unwrap_or_default();
        let native = message["tool_calls"].get(0).cloned();
        let (parsed, text) = match &native {
            // The content is not parsed: it may mention `<tool_call>`, or open a think block that
            // the server cut off.
            Some(call) => {
                let call = call_text(&call["function"]);
                (tool_call::parse(&call), format!("{content}{call}"))
            }
            None => (tool_call::parse(content), content.to_owned()),
        };
        Self {
            parsed,
            text,
            native,
            content: json!(content),
        }
    }

    /// Returns the messages that follow the ones before: the call and its observation.
    fn exchange(&self, observation: &Observation) -> [Value; 2] {
        let seen = prompt::tool_text(observation);
        match &self.native {
            Some(call) => [
                json!({"role": "assistant", "content": self.content, "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": call["id"], "content": seen}),
            ],
            // Without an id there is no call that a tool message could answer.
            None => [
                json!({"role": "assistant", "content": self.content}),
                json!({"role": "user", "content": seen}),
            ],
        }
    }
}

/// Writes a call of the API in the form that models sample. Its arguments are a JSON text.
fn call_text(function: &Value) -> String {
    let arguments = match &function["arguments"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let name = &function["name"];
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
}

/// Returns the tools as the API takes them. Servers may refuse a key that they do not know.
fn tools() -> Vec<Value> {
    let mut tools = tool_schemas();
    for tool in &mut tools {
        if let Some(function) = tool["function"].as_object_mut() {
            function.remove("return");
        }
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(result: &str) -> Observation {
        Observation {
            result: result.to_owned(),
            ..Observation::default()
        }
    }

    #[test]
    fn a_native_call_and_one_in_the_text_are_the_same_action() {
        let arguments = r#"{"sql": "SELECT 1"}"#;
        let native = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function",
             "function": {"name": "query", "arguments": arguments}}
        ]});
        let text =
            format!("<tool_call>{{\"name\": \"query\", \"arguments\": {arguments}}}</tool_call>");
        let in_text = json!({"role": "assistant", "content": text});
        for message in [&native, &in_text] {
            let call = ChatCall::of(message);
            assert!(!call.parsed.malformed, "{message}");
            assert_eq!(call.parsed.action, tool_call::action("QUERY", "SELECT 1"));
        }
        let [call, seen] = ChatCall::of(&native).exchange(&observed("1. 1"));
        assert_eq!(call["tool_calls"][0]["id"], "c1");
        assert_eq!(
            seen,
            json!({"role": "tool", "tool_call_id": "c1", "content": "1. 1"})
        );
        let [_, seen] = ChatCall::of(&in_text).exchange(&observed(""));
        assert_eq!(seen, json!({"role": "user", "content": "(empty)"}));
    }

    #[test]
    fn a_native_call_counts_whatever_the_content_says() {
        for content in ["I call it by <tool_call>.", "<think>\nFirst I", ""] {
            let call = json!({"id": "c1", "type": "function", "function": {
                "name": "query", "arguments": r#"{"sql": "SELECT 1"}"#
            }});
            let message = json!({"role": "assistant", "content": content, "tool_calls": [call]});
            let call = ChatCall::of(&message);
            assert!(!call.parsed.malformed, "{message}");
            assert_eq!(call.parsed.action, tool_call::action("QUERY", "SELECT 1"));
            assert!(call.text.starts_with(content), "{}", call.text);
            assert!(call.text.contains("SELECT 1"), "{}", call.text);
        }
    }

    #[test]
    fn what_is_no_call_is_malformed() {
        for message in [
            json!({"role": "assistant", "content": "I think it is 7."}),
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "query", "arguments": "{"}}]}),
            json!({}),
            json!("text"),
        ] {
            assert!(ChatCall::of(&message).parsed.malformed, "{message}");
        }
    }

    #[test]
    fn tools_say_nothing_of_what_they_return() {
        let returns = |tool: &Value| tool["function"].get("return").is_some();
        assert!(!tools().iter().any(returns));
    }
}
