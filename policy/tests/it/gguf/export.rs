//! Writes models as llama.cpp's converter writes them.

use std::collections::BTreeMap;
use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use policy::{DecoderConfig, Family, Weights, gguf};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// The content of a file before it is written.
pub(crate) struct File {
    pub(crate) metadata: BTreeMap<String, Value>,
    pub(crate) tensors: BTreeMap<String, QTensor>,
}

impl File {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let metadata: Vec<_> = self.metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
        let tensors: Vec<_> = self.tensors.iter().map(|(k, t)| (k.as_str(), t)).collect();
        let mut bytes = Cursor::new(Vec::new());
        gguf_file::write(&mut bytes, &metadata, &tensors).unwrap();
        bytes.into_inner()
    }

    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.metadata.insert(key.to_owned(), value);
    }

    /// Returns the error of reading it.
    pub(crate) fn refusal(&self) -> String {
        gguf::read(&self.bytes()).unwrap_err().to_string()
    }
}

pub(crate) fn small(family: Family, tied: bool) -> DecoderConfig {
    DecoderConfig {
        family,
        hidden_size: 64,
        intermediate_size: 96,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        vocab_size: 260,
        max_positions: 128,
        rope_theta: 20_000.0,
        rope_scaling: None,
        rms_norm_eps: 1e-5,
        tie_word_embeddings: tied,
        qkv_bias: family == Family::Qwen2,
        output_bias: false,
    }
}

/// Random weights, biases and norms among them.
pub(crate) fn random(config: &DecoderConfig) -> Weights {
    let jitter = |name: &str, tensor: &Tensor| {
        let is_flat = tensor.dims().len() == 1;
        let noise = |i| ((i + name.len()) as f32 * 0.618).fract() * 0.4 - 0.2;
        let noise: Vec<f32> = (0..tensor.elem_count()).map(noise).collect();
        let noise = Tensor::from_vec(noise, tensor.shape(), &Device::Cpu).unwrap();
        let moved = if is_flat {
            tensor + noise
        } else {
            Ok(tensor.clone())
        };
        (name.to_owned(), moved.unwrap())
    };
    let plain = Weights::random(config, 3).unwrap();
    Weights::new(plain.iter().map(|(name, x)| jitter(name, x)).collect())
}

/// Puts the rows of queries and keys into llama.cpp's order (`permute` of its converter): first and
/// second half of a head interleaved.
fn interleaved(tensor: &Tensor, heads: usize) -> Tensor {
    let half = tensor.dim(0).unwrap() / heads / 2;
    let halves = tensor.reshape((heads, 2, half, ())).unwrap();
    let pairs = halves.transpose(1, 2).unwrap().contiguous().unwrap();
    pairs.reshape(tensor.shape()).unwrap()
}

/// Converts a model as llama.cpp's converter does. The names are written out again, so that a
/// mistake in the reader shows.
pub(crate) fn export(config: &DecoderConfig, weights: &Weights, dtype: GgmlDType) -> File {
    let mut tensors = BTreeMap::new();
    for (name, tensor) in weights.iter() {
        let heads = match () {
            () if name.contains("q_proj") => config.heads,
            () => config.kv_heads,
        };
        let is_permuted =
            config.family == Family::Llama && (name.contains("q_proj") || name.contains("k_proj"));
        let tensor = if is_permuted {
            interleaved(tensor, heads)
        } else {
            tensor.clone()
        };
        let dtype = if tensor.dims().len() == 1 {
            GgmlDType::F32
        } else {
            dtype
        };
        let name = name
            .replace("model.layers.", "blk.")
            .replace("model.embed_tokens", "token_embd")
            .replace("model.norm", "output_norm")
            .replace("lm_head", "output")
            .replace("input_layernorm", "attn_norm")
            .replace("post_attention_layernorm", "ffn_norm")
            .replace("self_attn.o_proj", "attn_output")
            .replace("self_attn.", "attn_")
            .replace("mlp.", "ffn_")
            .replace("_proj", "");
        tensors.insert(name, QTensor::quantize(&tensor, dtype).unwrap());
    }
    File {
        metadata: metadata(config),
        tensors,
    }
}

fn metadata(config: &DecoderConfig) -> BTreeMap<String, Value> {
    let architecture = match config.family {
        Family::Llama => "llama",
        Family::Qwen2 => "qwen2",
        Family::Qwen3 => "qwen3",
    };
    let text = |text: &str| Value::String(text.to_owned());
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let letters: Vec<String> = alphabet.iter().map(char::to_string).collect();
    let plain = letters.iter().map(String::as_str).chain(["he"]);
    let tokens: Vec<Value> = CONTROL.into_iter().chain(plain).map(text).collect();
    let kinds = (0..tokens.len()).map(|id| Value::I32(if id < 3 { 3 } else { 1 }));
    let mut metadata = BTreeMap::from([
        ("general.architecture".to_owned(), text(architecture)),
        ("tokenizer.ggml.model".to_owned(), text("gpt2")),
        ("tokenizer.ggml.pre".to_owned(), text("smollm")),
        (
            "tokenizer.ggml.merges".to_owned(),
            Value::Array(vec![text("h e")]),
        ),
        (
            "tokenizer.ggml.token_type".to_owned(),
            Value::Array(kinds.collect()),
        ),
        ("tokenizer.ggml.tokens".to_owned(), Value::Array(tokens)),
        ("tokenizer.ggml.eos_token_id".to_owned(), Value::U32(2)),
        ("tokenizer.ggml.padding_token_id".to_owned(), Value::U32(0)),
        ("tokenizer.chat_template".to_owned(), text(TEMPLATE)),
    ]);
    let eps = config.rms_norm_eps as f32;
    for (name, value) in [
        ("block_count", Value::U32(config.layers as u32)),
        ("context_length", Value::U32(config.max_positions as u32)),
        ("embedding_length", Value::U32(config.hidden_size as u32)),
        (
            "feed_forward_length",
            Value::U32(config.intermediate_size as u32),
        ),
        ("attention.head_count", Value::U32(config.heads as u32)),
        (
            "attention.head_count_kv",
            Value::U32(config.kv_heads as u32),
        ),
        ("attention.layer_norm_rms_epsilon", Value::F32(eps)),
        ("rope.freq_base", Value::F32(config.rope_theta as f32)),
        ("rope.dimension_count", Value::U32(config.head_dim as u32)),
    ] {
        metadata.insert(format!("{architecture}.{name}"), value);
    }
    metadata
}
