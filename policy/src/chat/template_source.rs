//! The text of a model's chat template: where it is, and how it is replaced.

use serde_json::Value;

use crate::error::{PolicyError, Result};
use crate::model_files::{CHAT_TEMPLATE, ModelFiles, TOKENIZER_CONFIG};

/// What [`with_tools`] puts before a template.
const TOOL_PRELUDE: &str = include_str!("tool_prelude.jinja");
/// The tokenizer's configuration of the embedded policy, whose turns have the same form.
const EMBEDDED_CONFIG: &str = include_str!("../../embedded/tokenizer_config.json");

/// Returns the template among a model's files with a prelude, which states tools in the system
/// message, and turns calls and their results into text, in the format of Hermes and Qwen3.
/// Conversations without tools are rendered as before.
///
/// # Errors
/// [`PolicyError`] names the file that is missing or malformed.
pub(crate) fn with_tools(files: ModelFiles<'_>) -> Result<String> {
    let template = template_source(files, &files.json(TOKENIZER_CONFIG)?)?;
    // As in transformers, a line break after a block is not printed. Without it, blanks at the
    // start of the template would no longer be those of a line.
    Ok(format!("{}\n{template}", TOOL_PRELUDE.trim_end()))
}

/// Puts a template into a model's files: as its own file, and in the tokenizer's configuration if
/// that has one, which older readers prefer. For a template of ChatML the configuration gets a
/// `response_template`, without which TRL refuses a template that it does not know.
///
/// # Errors
/// [`PolicyError`] names the file that is malformed.
pub(crate) fn replace_template(files: &mut Vec<(String, Vec<u8>)>, template: String) -> Result<()> {
    let mut config = ModelFiles(files).json(TOKENIZER_CONFIG)?;
    if let Some(old) = config.get_mut("chat_template") {
        *old = template.clone().into();
    }
    // A line break is written as such, or escaped in a string.
    let is_chat_ml = ["<|im_start|>assistant\n", "<|im_start|>assistant\\n"]
        .iter()
        .any(|start| template.contains(start));
    if let Some(config) = config.as_object_mut()
        && is_chat_ml
        && template.contains("<|im_end|>")
    {
        let embedded: Value = serde_json::from_str(EMBEDDED_CONFIG)
            .map_err(|error| PolicyError::file(TOKENIZER_CONFIG, error))?;
        let name = "response_template";
        config.insert(name.to_owned(), embedded[name].clone());
    }
    for (_, bytes) in files
        .iter_mut()
        .filter(|(name, _)| name == TOKENIZER_CONFIG)
    {
        *bytes = format!("{config:#}").into_bytes();
    }
    files.retain(|(name, _)| name != CHAT_TEMPLATE);
    files.push((CHAT_TEMPLATE.to_owned(), template.into_bytes()));
    Ok(())
}

/// Returns the template's source: its own file first, as in transformers; of several named ones in
/// the tokenizer's `config` that for tool use.
///
/// # Errors
/// [`PolicyError::File`] if there is none, or it is not UTF-8.
pub(super) fn template_source(files: ModelFiles<'_>, config: &Value) -> Result<String> {
    if let Some(bytes) = files.bytes(CHAT_TEMPLATE) {
        return String::from_utf8(bytes.to_vec())
            .map_err(|error| PolicyError::file(CHAT_TEMPLATE, format!("not UTF-8: {error}")));
    }
    let named = |name: &str| {
        let entries = config["chat_template"].as_array()?;
        entries.iter().find(|entry| entry["name"] == name)?["template"].as_str()
    };
    config["chat_template"]
        .as_str()
        .or_else(|| named("tool_use"))
        .or_else(|| named("default"))
        .map(str::to_string)
        .ok_or_else(|| {
            let reason = format!(
                "missing, and {TOKENIZER_CONFIG} has no `chat_template`: use an instruction-tuned \
                 model or add one"
            );
            PolicyError::file(CHAT_TEMPLATE, reason)
        })
}
