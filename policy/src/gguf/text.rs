//! The tokenizer of a GGUF file as the files of a Hugging Face folder: byte-level BPE, special
//! tokens, chat template.
//!
//! Invariant: text is split into the same pieces as by llama.cpp, or the file is an error.

use serde_json::{Map, Value, json};

use super::invalid_key;
use super::metadata::GgufMetadata;
use crate::error::Result;
use crate::model_files::{CHAT_TEMPLATE, GENERATION_CONFIG, TOKENIZER_CONFIG};
use crate::tokenizer::FILE;

const TOKENS: &str = "tokenizer.ggml.tokens";
/// The kinds of tokens: control tokens, which decoding may hide, and added ones, which it does not;
/// unused ones are padding.
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Builds all text files of the folder.
pub(super) fn files(metadata: &GgufMetadata<'_>, rows: usize) -> Result<Vec<(String, Vec<u8>)>> {
    let template = metadata.text("tokenizer.chat_template")?.ok_or_else(|| {
        let reason = "is missing; import an instruction-tuned model, which comes with one";
        invalid_key("tokenizer.chat_template", reason)
    })?;
    let tokens = metadata.texts(TOKENS)?;
    if tokens.len() > rows {
        let reason = format!(
            "has {} entries for {rows} rows of the embedding",
            tokens.len()
        );
        return Err(invalid_key(TOKENS, reason));
    }
    let special = special_tokens(metadata, tokens.len())?;
    let json = |name: &str, content: &Value| (name.to_owned(), format!("{content:#}").into_bytes());
    Ok(vec![
        json(FILE, &tokenizer(metadata, &tokens)?),
        json(TOKENIZER_CONFIG, &tokenizer_config(&special, &tokens)),
        json(GENERATION_CONFIG, &generation_config(&special)),
        (CHAT_TEMPLATE.to_owned(), template.as_bytes().to_vec()),
    ])
}

fn tokenizer(metadata: &GgufMetadata<'_>, tokens: &[&str]) -> Result<Value> {
    let model = metadata.required_text("tokenizer.ggml.model")?;
    if model != "gpt2" {
        let reason =
            format!("is {model:?}; supported: gpt2 (byte-level BPE). Use the Hugging Face folder");
        return Err(invalid_key("tokenizer.ggml.model", reason));
    }
    let pieces = metadata.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let kinds = metadata.kinds("tokenizer.ggml.token_type")?;
    let kind = |id: usize| kinds.get(id).copied().unwrap_or(0);
    let used = || {
        tokens
            .iter()
            .enumerate()
            .filter(|(id, _)| kind(*id) != UNUSED)
    };
    let added = used().filter(|(id, _)| matches!(kind(*id), CONTROL | USER_DEFINED));
    let vocabulary: Map<String, Value> = used()
        .map(|(id, token)| ((*token).to_owned(), id.into()))
        .collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added
            .map(|(id, token)| added_token(id, token, kind(id) == CONTROL))
            .collect::<Vec<_>>(),
        "normalizer": if pieces == "qwen2" { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": pre_tokenizer(pieces)?,
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pieces == "llama-bpe",
            "vocab": vocabulary,
            "merges": merges(metadata)?,
        },
    }))
}

fn added_token(id: usize, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "special": special,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    })
}

fn merges(metadata: &GgufMetadata<'_>) -> Result<Vec<Value>> {
    const KEY: &str = "tokenizer.ggml.merges";
    let pair = |merge: &str| match merge.split_once(' ') {
        Some((left, right)) => Ok(json!([left, right])),
        None => Err(invalid_key(
            KEY,
            format!("holds {merge:?}, which is not a pair"),
        )),
    };
    metadata.texts(KEY)?.into_iter().map(pair).collect()
}

/// Returns the pre-tokenizer, which splits text before merges, by llama.cpp's name for it.
fn pre_tokenizer(pieces: &str) -> Result<Value> {
    let split = |pattern: &str| {
        let pattern = json!({"Regex": pattern});
        json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
    };
    let first = match pieces {
        "gpt-2" => return Ok(byte_level(true)),
        "smollm" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            return Ok(json!({"type": "Sequence", "pretokenizers": [digits, byte_level(true)]}));
        }
        "qwen2" => split(QWEN2),
        "llama-bpe" => split(LLAMA3),
        other => {
            let reason = format!(
                "is {other:?}; supported: gpt-2, llama-bpe, qwen2, smollm. Use the Hugging Face \
                 folder"
            );
            return Err(invalid_key("tokenizer.ggml.pre", reason));
        }
    };
    Ok(json!({"type": "Sequence", "pretokenizers": [first, byte_level(false)]}))
}

fn byte_level(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex,
    })
}

/// Returns Hugging Face's name and the id of each special token that the file names.
fn special_tokens(metadata: &GgufMetadata<'_>, count: usize) -> Result<Vec<(&'static str, usize)>> {
    let mut special = Vec::new();
    for (name, key) in [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ] {
        match metadata.id(key)? {
            Some(id) if id >= count => {
                let reason = format!("is {id}, but there are {count} tokens");
                return Err(invalid_key(key, reason));
            }
            id => special.extend(id.map(|id| (name, id))),
        }
    }
    Ok(special)
}

fn tokenizer_config(special: &[(&str, usize)], tokens: &[&str]) -> Value {
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
    });
    for &(name, id) in special {
        config[name] = tokens[id].into();
    }
    config
}

fn generation_config(special: &[(&str, usize)]) -> Value {
    let ids = special.iter().filter(|(name, _)| *name != "unk_token");
    ids.map(|&(name, id)| (format!("{name}_id"), id.into()))
        .collect::<Map<_, _>>()
        .into()
}
