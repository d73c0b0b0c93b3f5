//! The special tokens that a model's files name: variables of its chat template, and ends of text.

use serde_json::{Map, Value};

use crate::error::Result;
use crate::model_files::{CONFIG, GENERATION_CONFIG, ModelFiles, SPECIAL_TOKENS_MAP};

/// Returns `bos_token`, `eos_token` and so on as plain strings, as transformers passes them to
/// templates. Older folders have no `added_tokens_decoder` in the tokenizer's `config`; their
/// `special_tokens_map.json` has priority.
///
/// # Errors
/// [`crate::PolicyError`] names the file that is malformed.
pub(super) fn named(files: ModelFiles<'_>, config: &Value) -> Result<Map<String, Value>> {
    let older = match config.get("added_tokens_decoder") {
        Some(_) => Value::Null,
        None => files.json(SPECIAL_TOKENS_MAP)?,
    };
    let text = |name: &str| {
        let token = older.get(name).unwrap_or(&config[name]);
        let text = token.as_str().or_else(|| token["content"].as_str())?;
        Some((name.to_owned(), text.into()))
    };
    let names = ["bos_token", "eos_token", "pad_token", "unk_token"];
    Ok(names.into_iter().filter_map(text).collect())
}

/// Returns the end-of-text ids below `vocabulary_size` that are listed for generation. As in
/// transformers, `config.json` lists them if there is no `generation_config.json`.
///
/// # Errors
/// [`crate::PolicyError`] names the file that is malformed.
pub(super) fn end_ids(files: ModelFiles<'_>, vocabulary_size: usize) -> Result<Vec<u32>> {
    let name = match files.bytes(GENERATION_CONFIG) {
        Some(_) => GENERATION_CONFIG,
        None => CONFIG,
    };
    let config = files.json(name)?;
    let listed = match &config["eos_token_id"] {
        Value::Array(ids) => ids.as_slice(),
        id => std::slice::from_ref(id),
    };
    let ids = listed.iter().filter_map(Value::as_u64);
    let ids = ids.filter(|&id| id < vocabulary_size as u64);
    Ok(ids.map(|id| id as u32).collect())
}
