//! Conversations as tokens: prompts, completions and tool results in the chat template of one
//! model.
//!
//! Pure. Invariant: a conversation grows by appending segments (prompt, completion, tool results,
//! completion ...), and each is encoded on its own. Tokens that were sampled or prefilled are never
//! rendered or tokenized again. This module does not parse completions.

mod special_tokens;
mod template_source;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::chat_template::ChatTemplate;
use crate::error::{PolicyError, Result};
use crate::model_files::{ModelFiles, TOKENIZER_CONFIG};
use crate::tokenizer::{self, Tokenizer};

pub(crate) use template_source::{replace_template, with_tools};

/// The content of a placeholder assistant turn: text that no template prints by itself.
const PLACEHOLDER: &str = "qzxassistantturnxzq";
/// What tool calls begin with.
const CALL_OPEN: &str = "<tool_call>";

/// The role of the author.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    /// The instructions.
    System,
    /// The question.
    User,
    /// The policy.
    Assistant,
    /// The environment's response to a tool call.
    Tool,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The role of the author.
    pub role: ChatRole,
    /// The text; may be empty when there are tool calls.
    pub content: String,
    /// The tool calls of an assistant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    /// Builds a message without tool calls.
    pub fn new(role: ChatRole, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            tool_calls: Vec::new(),
        }
    }

    /// Builds an assistant's message that is one tool call.
    pub fn call(call: ToolCall) -> Self {
        Self {
            role: ChatRole::Assistant,
            content: String::new(),
            tool_calls: vec![call],
        }
    }

    /// Returns the message as templates see it.
    fn to_json(&self) -> Value {
        let mut message = json!({"role": self.role, "content": self.content});
        if !self.tool_calls.is_empty() {
            let calls = self
                .tool_calls
                .iter()
                .map(|call| json!({"type": "function", "function": call}));
            message["tool_calls"] = calls.collect();
        }
        message
    }
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// Its arguments, a JSON object.
    pub arguments: Value,
}

impl ToolCall {
    /// Builds a call of `tool` with one string argument.
    pub fn new(tool: &str, parameter: &str, argument: &str) -> Self {
        Self {
            name: tool.to_string(),
            arguments: json!({parameter: argument}),
        }
    }

    /// Returns the call in the format of Hermes and Qwen3: `<tool_call>\n{"name": ..., "arguments":
    /// {...}}\n</tool_call>`.
    pub fn to_text(&self) -> String {
        let call = crate::python_format::to_json(&minijinja::Value::from_serialize(self));
        format!("{CALL_OPEN}\n{call}\n</tool_call>")
    }
}

/// A model's tokenizer, chat template and stop tokens.
#[derive(Debug, Clone)]
pub struct Chat {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    /// The variables of the template besides the conversation: `bos_token`, `eos_token`,
    /// `enable_thinking` and so on.
    variables: Map<String, Value>,
    stop_ids: Vec<u32>,
    turn_end: String,
}

impl Chat {
    /// Reads `tokenizer.json`, `tokenizer_config.json`, the template (`chat_template.jinja`, or
    /// inside of the config) and the end-of-text ids of `generation_config.json`, or of
    /// `config.json` if that is missing. Older folders name their special tokens in
    /// `special_tokens_map.json`. Thinking is off.
    ///
    /// # Errors
    /// [`PolicyError`] names the file that is missing or malformed, or what the template does not
    /// support.
    pub fn from_files(files: &[(String, Vec<u8>)]) -> Result<Self> {
        let files = ModelFiles(files);
        let tokenizer = files.bytes(tokenizer::FILE).ok_or_else(|| {
            let reason = "missing: a Hugging Face model folder with a fast tokenizer has it";
            PolicyError::file(tokenizer::FILE, reason)
        })?;
        let tokenizer = Tokenizer::from_bytes(tokenizer)?;
        let config = files.json(TOKENIZER_CONFIG)?;
        let variables = special_tokens::named(files, &config)?;
        let named_end = variables.get("eos_token").and_then(Value::as_str);
        let named_end = named_end.and_then(|text| tokenizer.id_of(text));
        let listed_ends = special_tokens::end_ids(files, tokenizer.vocabulary_size())?;
        let template = ChatTemplate::new(&template_source::template_source(files, &config)?)?;

        let mut chat = Self {
            tokenizer,
            template,
            variables,
            stop_ids: Vec::new(),
            turn_end: String::new(),
        };
        chat = chat.with_thinking(false);
        let (id, text) = chat.find_turn_end()?;
        let mut ends = vec![id];
        ends.extend(chat.tokenizer.added_tokens_ending_with(&text));
        ends.extend(named_end);
        ends.extend(listed_ends);
        for id in ends {
            if !chat.stop_ids.contains(&id) {
                chat.stop_ids.push(id);
            }
        }
        chat.turn_end = text;
        Ok(chat)
    }

    /// Sets whether prompts invite the model to think (`enable_thinking`); off by default.
    /// Templates without thinking ignore it.
    pub fn with_thinking(mut self, enable: bool) -> Self {
        self.variables
            .insert("enable_thinking".into(), enable.into());
        self
    }

    /// Renders a conversation as text. Without `tools` the template sees none.
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[Value],
        add_generation_prompt: bool,
    ) -> Result<String> {
        let mut context = self.variables.clone();
        context.insert(
            "messages".into(),
            messages.iter().map(Message::to_json).collect(),
        );
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        if !tools.is_empty() {
            context.insert("tools".into(), tools.into());
        }
        self.template.render(&context)
    }

    /// Returns the tokens of the prompt: those before the first completion, up to and including the
    /// generation prompt.
    pub fn prompt_ids(&self, messages: &[Message], tools: &[Value]) -> Result<Vec<u32>> {
        self.encode(&self.render(messages, tools, true)?)
    }

    /// Returns the tokens that a completion with this text would be sampled as, its stop token
    /// included.
    pub fn completion_ids(&self, text: &str) -> Result<Vec<u32>> {
        self.encode(&format!("{text}{}", self.turn_end))
    }

    /// Returns the text of a sampled completion without the end of its turn.
    pub fn completion_text(&self, ids: &[u32]) -> Result<String> {
        let text = self.decode(ids)?;
        match (text.strip_suffix(&self.turn_end), ids.split_last()) {
            (Some(body), _) => Ok(body.to_string()),
            // It ended with the end-of-text token instead.
            (None, Some((last, body))) if self.stop_ids.contains(last) => self.decode(body),
            _ => Ok(text),
        }
    }

    /// Returns the tokens after a completion that ended with a stop token: the tool results and the
    /// next generation prompt.
    ///
    /// As in TRL, this renders a placeholder conversation and takes what follows the assistant's
    /// turn. It counts from that turn, since templates such as Qwen3's print past turns
    /// differently.
    pub fn tool_suffix_ids(&self, tool_messages: &[Message]) -> Result<Vec<u32>> {
        let after = self.after_placeholder(tool_messages)?;
        let suffix = after.strip_prefix(&self.turn_end).ok_or_else(|| {
            PolicyError::Text(format!(
                "chat template: prints {after:?} after an assistant's turn, expected {:?}",
                self.turn_end
            ))
        })?;
        self.encode(suffix)
    }

    /// Returns whether the template prints the tool calls of an assistant in the format of Hermes
    /// and Qwen3, in which completions are read. Most templates that print no calls were made
    /// before tools were common; they show a model neither tools nor calls. Others have a format of
    /// their own, as Llama 3's, or fail at arguments that are no string.
    pub fn prints_tool_calls(&self) -> bool {
        let call = ToolCall::new(PLACEHOLDER, "x", "x");
        let messages = [Message::new(ChatRole::User, "x"), Message::call(call)];
        let text = self.render(&messages, &[], false);
        text.is_ok_and(|text| text.split(CALL_OPEN).skip(1).any(is_placeholder_call))
    }

    /// Returns the ids that end a completion: the token that the template writes after a turn, then
    /// all tokens that end with its text, then those that the configs name.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// Returns the text of the token that the template writes after a turn.
    pub(crate) fn turn_end(&self) -> &str {
        &self.turn_end
    }

    /// Returns one more than the largest token id. Logit columns from here on are padding.
    pub fn vocabulary_size(&self) -> usize {
        self.tokenizer.vocabulary_size()
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// See [`Tokenizer::encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenizer.encode(text)
    }

    /// See [`Tokenizer::decode`].
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids)
    }

    /// Returns the text that the template prints after the content of a placeholder assistant turn
    /// that `tool_messages` follow.
    fn after_placeholder(&self, tool_messages: &[Message]) -> Result<String> {
        let mut messages = vec![
            Message::new(ChatRole::User, "x"),
            Message::new(ChatRole::Assistant, PLACEHOLDER),
        ];
        messages.extend_from_slice(tool_messages);
        let text = self.render(&messages, &[], !tool_messages.is_empty())?;
        match text.split_once(PLACEHOLDER) {
            Some((_, after)) => Ok(after.to_string()),
            None => Err(PolicyError::Text(format!(
                "chat template: prints no content of an assistant's turn: {text:?} should contain \
                 {PLACEHOLDER:?}"
            ))),
        }
    }

    /// Returns the token that the template writes after an assistant's turn.
    fn find_turn_end(&self) -> Result<(u32, String)> {
        let after = self.after_placeholder(&[])?;
        self.tokenizer.leading_added_token(&after)?.ok_or_else(|| {
            PolicyError::Text(format!(
                "chat template: ends an assistant's turn with {after:?}, which begins with no \
                 control token of {}; use a template that ends turns with one",
                tokenizer::FILE
            ))
        })
    }
}

/// Returns whether a text begins with the JSON of a call of [`PLACEHOLDER`] with arguments.
fn is_placeholder_call(text: &str) -> bool {
    let values = serde_json::Deserializer::from_str(text);
    let first = values.into_iter::<Map<String, Value>>().next();
    first.and_then(Result::ok).is_some_and(|call| {
        let name = call.get("name").and_then(Value::as_str);
        name == Some(PLACEHOLDER) && call.contains_key("arguments")
    })
}
