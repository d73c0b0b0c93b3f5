//! Import of GGUF files, the format of llama.cpp: shape, weights in f32, tokenizer, chat template.
//!
//! Pure. Invariant: the imported model computes what the file's model computes; a key or tensor
//! that would change that is an error that names it. Of the end-of-text tokens only the
//! end-of-sequence token is taken. Untrusted bytes cost memory in proportion to their length,
//! whatever sizes they claim. Writing GGUF is not supported.

mod header;
mod metadata;
mod tensors;
mod text;

use std::io::Cursor;

use candle_core::quantized::gguf_file::Content;

use self::metadata::GgufMetadata;
use crate::config::{DecoderConfig, Family};
use crate::error::{PolicyError, Result};
use crate::model::Model;
use crate::model_files::CONFIG;

/// Reads the bytes of a GGUF file of the architectures llama, qwen2 and qwen3 with a byte-level BPE
/// tokenizer.
///
/// # Errors
/// [`PolicyError`] names the key or tensor that is missing, damaged or not supported.
pub fn read(bytes: &[u8]) -> Result<Model> {
    header::check(bytes)?;
    let content = Content::read(&mut Cursor::new(bytes))
        .map_err(|error| PolicyError::Usage(format!("not a GGUF file: {}", message(error))))?;
    let metadata = GgufMetadata::new(&content.metadata)?;
    let config = config(&metadata, &content)?;
    let mut files = text::files(&metadata, config.vocab_size)?;
    files.push((CONFIG.to_owned(), config.to_json().into_bytes()));
    Model::from_files(files, tensors::weights(bytes, &content, &config)?)
}

/// Returns the message of an error without the backtrace that `RUST_BACKTRACE` adds.
fn message(error: candle_core::Error) -> String {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => inner.to_string(),
        error => error.to_string(),
    }
}

fn config(metadata: &GgufMetadata<'_>, content: &Content) -> Result<DecoderConfig> {
    let architecture = metadata.architecture;
    let family = Family::named(architecture).ok_or_else(|| {
        let reason = format!("is {architecture:?}; supported: llama, qwen2, qwen3");
        invalid_key("general.architecture", reason)
    })?;
    metadata.refuse_unsupported()?;
    let tensors = &content.tensor_infos;
    let layers = metadata.required("block_count")?;
    // Check before anything is allocated for each layer.
    if layers > tensors.len() {
        let reason = format!("is {layers}, but the file holds {} tensors", tensors.len());
        return Err(invalid_key(&metadata.key("block_count"), reason));
    }
    let (hidden_size, heads) = (
        metadata.required("embedding_length")?,
        metadata.required("attention.head_count")?,
    );
    let head_dim = match metadata.count("attention.key_length")? {
        Some(width) => width,
        None => hidden_size / heads,
    };
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(found) = metadata.count(name)?.filter(|&width| width != head_dim) {
            let reason = format!("is {found}; supported: the width of a head ({head_dim})");
            return Err(invalid_key(&metadata.key(name), reason));
        }
    }
    let embedding = tensors::info(content, tensors::EMBEDDING)?.shape.dims();
    let config = DecoderConfig {
        family,
        hidden_size,
        intermediate_size: metadata.required("feed_forward_length")?,
        layers,
        heads,
        kv_heads: metadata.count("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        vocab_size: embedding.first().copied().unwrap_or(0),
        max_positions: metadata.required("context_length")?,
        rope_theta: metadata.number("rope.freq_base")?.unwrap_or(10_000.0),
        rope_scaling: None,
        rms_norm_eps: metadata
            .number("attention.layer_norm_rms_epsilon")?
            .unwrap_or(1e-6),
        tie_word_embeddings: !tensors.contains_key(tensors::HEAD),
        qkv_bias: tensors.contains_key("blk.0.attn_q.bias"),
        output_bias: tensors.contains_key("blk.0.attn_output.bias"),
    };
    // Validates the config as the folder's config.json will be.
    DecoderConfig::from_json(&config.to_json())
}

/// Builds the error for a key of the metadata.
fn invalid_key(key: &str, reason: impl ToString) -> PolicyError {
    PolicyError::setting(format!("gguf: {key}"), reason)
}
