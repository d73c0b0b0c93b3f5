//! GGUF files, written here as llama.cpp's converter writes them: what was exported is imported, what is wrong is named.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

use std::collections::BTreeMap;
use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use policy::{Decoder, DecoderConfig, Family, Model, PackedRows, Use, Weights, gguf};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// A file before it is written.
struct File {
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, QTensor>,
}

impl File {
    fn bytes(&self) -> Vec<u8> {
        let metadata: Vec<_> = self.metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
        let tensors: Vec<_> = self.tensors.iter().map(|(k, t)| (k.as_str(), t)).collect();
        let mut bytes = Cursor::new(Vec::new());
        gguf_file::write(&mut bytes, &metadata, &tensors).unwrap();
        bytes.into_inner()
    }

    fn set(&mut self, key: &str, value: Value) {
        self.metadata.insert(key.to_owned(), value);
    }

    /// The error of reading it.
    fn refusal(&self) -> String {
        gguf::read(&self.bytes()).unwrap_err().to_string()
    }
}

fn small(family: Family, tied: bool) -> DecoderConfig {
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
fn random(config: &DecoderConfig) -> Weights {
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

/// llama.cpp's order of the rows of queries and keys (`permute` of its converter): first and second half of a head
/// interleaved.
fn interleaved(tensor: &Tensor, heads: usize) -> Tensor {
    let half = tensor.dim(0).unwrap() / heads / 2;
    let halves = tensor.reshape((heads, 2, half, ())).unwrap();
    let pairs = halves.transpose(1, 2).unwrap().contiguous().unwrap();
    pairs.reshape(tensor.shape()).unwrap()
}

/// What llama.cpp's converter makes of a model; the names are spelled out again, so that a slip shows.
fn export(config: &DecoderConfig, weights: &Weights, dtype: GgmlDType) -> File {
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

fn logits(config: &DecoderConfig, weights: &Weights) -> Vec<Vec<f32>> {
    let decoder = Decoder::new(config, weights, Use::Sample).unwrap();
    let mut rows = PackedRows::default();
    rows.push(&[5, 17, 200, 42, 42, 9, 101]);
    let hidden = decoder.forward(&rows, None).unwrap();
    decoder.logits(&hidden).unwrap().to_vec2().unwrap()
}

/// Every family, tied and not: the same config, the same weights, the same logits, bit for bit.
#[test]
fn an_exported_model_is_imported_as_it_was() {
    for family in [Family::Llama, Family::Qwen2, Family::Qwen3] {
        for tied in [true, false] {
            let config = small(family, tied);
            let weights = random(&config);
            let file = export(&config, &weights, GgmlDType::F32);
            let model = gguf::read(&file.bytes()).unwrap();
            assert_eq!(model.config, config);
            assert_eq!(
                model.weights.to_bytes().unwrap(),
                weights.to_bytes().unwrap()
            );
            let (found, expected) = (logits(&config, &model.weights), logits(&config, &weights));
            assert_eq!(found, expected, "{family:?}");
        }
    }
}

/// Without undoing llama.cpp's order the logits are others, so the test above sees it.
#[test]
fn the_order_of_the_rows_matters() {
    let config = small(Family::Llama, true);
    let weights = random(&config);
    let wrong = |(name, tensor): (&str, &Tensor)| {
        let is_query = name.contains("q_proj");
        let tensor = if is_query {
            interleaved(tensor, config.heads)
        } else {
            tensor.clone()
        };
        (name.to_owned(), tensor)
    };
    let wrong = Weights::new(weights.iter().map(wrong).collect());
    assert_ne!(logits(&config, &wrong), logits(&config, &weights));
}

#[test]
fn quantised_weights_are_dequantised() {
    let config = small(Family::Qwen3, true);
    let file = export(&config, &random(&config), GgmlDType::Q4_1);
    let model = gguf::read(&file.bytes()).unwrap();
    let stored = &file.tensors["blk.1.ffn_down.weight"];
    assert_eq!(stored.dtype(), GgmlDType::Q4_1);
    let expected = stored.dequantize(&Device::Cpu).unwrap();
    let found = model.weights.get("model.layers.1.mlp.down_proj.weight");
    let values = |tensor: &Tensor| tensor.to_vec2::<f32>().unwrap();
    assert_eq!(values(found.unwrap()), values(&expected));
}

#[test]
fn the_text_side_comes_along() {
    let config = small(Family::Llama, true);
    let file = export(&config, &random(&config), GgmlDType::F32);
    let model = gguf::read(&file.bytes()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("model");
    model.save(&place).unwrap();
    let model = Model::open(&place, &Device::Cpu, DType::F32).unwrap();
    let text = "<|im_start|>user\nhe said: 12 é<|im_end|>";
    let ids = model.chat.encode(text).unwrap();
    assert_eq!(model.chat.decode(&ids).unwrap(), text);
    assert_eq!((ids[0], ids[ids.len() - 1]), (1, 2));
    // The one merge is made, and digits stand alone.
    assert!(ids.contains(&259));
    assert_eq!(model.chat.stop_ids(), [2]);
    let read = |name: &str| {
        let (_, bytes) = model.files.iter().find(|(file, _)| file == name).unwrap();
        serde_json::from_slice::<serde_json::Value>(bytes).unwrap()
    };
    assert_eq!(read("tokenizer_config.json")["eos_token"], "<|im_end|>");
    assert_eq!(read("generation_config.json")["eos_token_id"], 2);
}

#[test]
fn what_is_wrong_is_named() {
    type Change = fn(&mut File);
    let table: [(Change, &str, &str); 16] = [
        (
            |f| f.set("general.architecture", Value::String("gpt2".into())),
            "general.architecture",
            "llama, qwen2, qwen3",
        ),
        (
            |f| drop(f.metadata.remove("llama.block_count")),
            "llama.block_count",
            "missing",
        ),
        (
            |f| f.set("llama.block_count", Value::U32(u32::MAX)),
            "llama.block_count",
            "no model has",
        ),
        (
            |f| f.set("llama.block_count", Value::U32(5_000)),
            "llama.block_count",
            "the file holds 20 tensors",
        ),
        (
            |f| f.set("llama.attention.head_count", Value::U32(0)),
            "llama.attention.head_count",
            "at least 1",
        ),
        (
            |f| f.set("llama.rope.dimension_count", Value::U32(8)),
            "llama.rope.dimension_count",
            "16",
        ),
        (
            |f| f.set("llama.rope.scaling.type", Value::String("yarn".into())),
            "llama.rope.scaling.type",
            "none",
        ),
        (
            |f| f.set("llama.rope.scaling.factor", Value::F32(4.0)),
            "llama.rope.scaling.factor",
            "supported: 1",
        ),
        (
            |f| f.set("llama.rope.freq_base", Value::F32(f32::NAN)),
            "llama.rope.freq_base",
            "finite",
        ),
        (
            |f| f.set("tokenizer.ggml.model", Value::String("llama".into())),
            "tokenizer.ggml.model",
            "gpt2",
        ),
        (
            |f| f.set("tokenizer.ggml.pre", Value::String("falcon".into())),
            "tokenizer.ggml.pre",
            "smollm",
        ),
        (
            |f| f.set("tokenizer.ggml.eos_token_id", Value::U32(260)),
            "tokenizer.ggml.eos_token_id",
            "260 tokens",
        ),
        (
            |f| drop(f.metadata.remove("tokenizer.chat_template")),
            "tokenizer.chat_template",
            "instruction-tuned",
        ),
        (
            |f| drop(f.tensors.remove("blk.1.attn_k.weight")),
            "blk.1.attn_k.weight",
            "missing",
        ),
        (
            |f| {
                let embedding = f.tensors.remove("blk.0.ffn_up.weight").unwrap();
                f.tensors.insert("rope_freqs.weight".into(), embedding);
            },
            "blk.0.ffn_up.weight",
            "missing",
        ),
        (
            |f| f.set("llama.feed_forward_length", Value::U32(80)),
            "ffn_down.weight",
            "[64, 80]",
        ),
    ];
    let config = small(Family::Llama, true);
    let weights = random(&config);
    for (change, place, remedy) in table {
        let mut file = export(&config, &weights, GgmlDType::F32);
        change(&mut file);
        let error = file.refusal();
        assert!(error.contains(place) && error.contains(remedy), "{error}");
    }
    let mut file = export(&config, &weights, GgmlDType::F32);
    let norm = QTensor::quantize(
        &Tensor::ones(8, DType::F32, &Device::Cpu).unwrap(),
        GgmlDType::F32,
    );
    file.tensors
        .insert("rope_freqs.weight".into(), norm.unwrap());
    assert!(file.refusal().contains("rope_freqs.weight"));
}

/// candle would divide by it.
#[test]
fn an_alignment_of_nothing_is_refused() {
    let config = small(Family::Llama, true);
    let mut file = export(&config, &random(&config), GgmlDType::F32);
    file.set("general.alignment", Value::U32(32));
    gguf::read(&file.bytes()).unwrap();
    for nothing in [Value::U32(0), Value::U8(0), Value::I32(0)] {
        file.set("general.alignment", nothing);
        assert!(file.refusal().contains("general.alignment"));
    }
}

/// Cut anywhere, or with any one byte of the header changed, a file is refused or read; nothing panics.
#[test]
fn damaged_files_are_errors() {
    let config = small(Family::Llama, true);
    let whole = export(&config, &random(&config), GgmlDType::Q8_0).bytes();
    assert!(gguf::read(b"PK\x03\x04 something else").is_err());
    // The last tensor's padding may be missing.
    for length in (0..whole.len() - 32).step_by(211) {
        assert!(gguf::read(&whole[..length]).is_err(), "{length} bytes");
    }
    let data = 2 * 64 * 260;
    for at in (0..whole.len().min(data)).step_by(37) {
        for byte in [0, 0x7f, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            drop(gguf::read(&damaged));
        }
    }
}

/// Tensors that lie on each other make a small file large in memory.
#[test]
fn tensors_must_fit_beside_each_other() {
    let config = small(Family::Llama, true);
    let file = export(&config, &random(&config), GgmlDType::F32).bytes();
    let cut = &file[..file.len() - 64 * 260];
    let error = gguf::read(cut).unwrap_err().to_string();
    assert!(error.contains("does not fit"), "{error}");
}
