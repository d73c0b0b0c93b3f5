//! Tests the import of GGUF files that are written here as llama.cpp's converter writes them.
//! Errors name what is wrong.

mod export;

use std::collections::BTreeMap;

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use policy::{DecoderConfig, Family, Model, Weights, gguf};
use serde_json::Value as Json;

use crate::common::golden;
use crate::qwen3_package;
use export::{File, export, random, small};

/// Every family, tied and not: the same config and the same weights, bit for bit.
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
                weights.to_bytes().unwrap(),
                "{family:?}"
            );
        }
    }
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
        serde_json::from_slice::<Json>(bytes).unwrap()
    };
    assert_eq!(read("tokenizer_config.json")["eos_token"], "<|im_end|>");
    assert_eq!(read("generation_config.json")["eos_token_id"], 2);
}

/// Qwen3's own tokenizer, converted to GGUF and back, gives transformers' ids
/// (`golden/chat/render.json`).
#[test]
fn qwen3_s_tokenizer_survives() {
    let Some(folder) = qwen3_package::folder() else {
        return;
    };
    let tokenizer = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let tokenizer: Json = serde_json::from_slice(&tokenizer).unwrap();
    let tokens = tokens_and_kinds(&tokenizer);
    let config = DecoderConfig {
        vocab_size: tokens.len(),
        hidden_size: 8,
        head_dim: 2,
        ..small(Family::Qwen3, true)
    };
    let weights = Weights::random(&config, 1).unwrap();
    let mut file = export(&config, &weights, GgmlDType::F32);
    let text = |text: &str| Value::String(text.to_owned());
    let merge = |merge: &Json| match merge.as_array() {
        Some(pair) => Value::String(format!(
            "{} {}",
            pair[0].as_str().unwrap(),
            pair[1].as_str().unwrap()
        )),
        None => text(merge.as_str().unwrap()),
    };
    let merges = tokenizer["model"]["merges"].as_array().unwrap();
    let kinds = tokens.iter().map(|(_, kind)| Value::I32(*kind)).collect();
    let tokens = tokens.iter().map(|(token, _)| text(token)).collect();
    file.set("tokenizer.ggml.pre", text("qwen2"));
    file.set(
        "tokenizer.ggml.merges",
        Value::Array(merges.iter().map(merge).collect()),
    );
    file.set("tokenizer.ggml.token_type", Value::Array(kinds));
    file.set("tokenizer.ggml.tokens", Value::Array(tokens));
    let chat = gguf::read(&file.bytes()).unwrap().chat;

    let mut checked = 0;
    for case in golden("chat/render.json")["cases"].as_array().unwrap() {
        let expected = &case["expected"];
        let Some(ids) = expected["token_ids"].as_array() else {
            continue;
        };
        let found = chat.encode(expected["text"].as_str().unwrap()).unwrap();
        assert!(found.iter().eq(ids), "{}", case["id"]);
        checked += 1;
    }
    assert_eq!(checked, 360);
}

/// Tokens by id, and llama.cpp's kind of each: 1 plain, 3 control, 4 added.
fn tokens_and_kinds(tokenizer: &Json) -> Vec<(String, i32)> {
    let plain = tokenizer["model"]["vocab"].as_object().unwrap();
    let plain = plain
        .iter()
        .map(|(token, id)| (id.as_u64(), token.as_str(), 1));
    let added = tokenizer["added_tokens"].as_array().unwrap().iter();
    let added = added.map(|token| {
        let kind = if token["special"] == true { 3 } else { 4 };
        (
            token["id"].as_u64(),
            token["content"].as_str().unwrap(),
            kind,
        )
    });
    let by_id: BTreeMap<_, _> = plain
        .chain(added)
        .map(|(id, token, kind)| (id.unwrap(), (token.to_owned(), kind)))
        .collect();
    assert_eq!(by_id.keys().last(), Some(&(by_id.len() as u64 - 1)));
    by_id.into_values().collect()
}

/// A change to a file, and two parts of the error: where it is wrong, and the remedy.
type WrongFile = (fn(&mut File), &'static str, &'static str);

const WRONG_FILES: [WrongFile; 16] = [
    (
        |f| f.set("split.count", Value::U16(3)),
        "split.count: is 3",
        "--merge",
    ),
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

#[test]
fn what_is_wrong_is_named() {
    let config = small(Family::Llama, true);
    let weights = random(&config);
    for (change, place, remedy) in WRONG_FILES {
        let mut file = export(&config, &weights, GgmlDType::F32);
        change(&mut file);
        let error = file.refusal();
        assert!(error.contains(place) && error.contains(remedy), "{error}");
    }
}

#[test]
fn rope_frequencies_of_another_length_are_refused() {
    let config = small(Family::Llama, true);
    let mut file = export(&config, &random(&config), GgmlDType::F32);
    let norm = QTensor::quantize(
        &Tensor::ones(8, DType::F32, &Device::Cpu).unwrap(),
        GgmlDType::F32,
    );
    file.tensors
        .insert("rope_freqs.weight".into(), norm.unwrap());
    assert!(file.refusal().contains("rope_freqs.weight"));
}

/// candle would divide by zero.
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
    // The shortest: the key is the last thing in the file, and its value one byte.
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([0_u64, 1, 17].map(u64::to_le_bytes).concat());
    bytes.extend(b"general.alignment\0\0\0\0\0");
    let refusal = gguf::read(&bytes).unwrap_err().to_string();
    assert!(refusal.contains("general.alignment"), "{refusal}");
}

#[test]
fn a_model_that_is_split_into_one_file_is_whole() {
    let config = small(Family::Llama, true);
    let mut file = export(&config, &random(&config), GgmlDType::F32);
    file.set("split.count", Value::U16(1));
    gguf::read(&file.bytes()).unwrap();
}

/// The name of the key may be part of a text.
#[test]
fn a_text_may_mention_the_alignment() {
    let config = small(Family::Llama, true);
    let mut file = export(&config, &random(&config), GgmlDType::F32);
    let text = "GGUF files have general.alignment, which is 32";
    file.set("general.description", Value::String(text.into()));
    gguf::read(&file.bytes()).unwrap();
}

/// candle takes 32 bytes for each element, and twice that while the array grows.
#[test]
fn an_array_that_no_tokenizer_has_is_refused_before_it_is_read() {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([0_u64, 1, 1].map(u64::to_le_bytes).concat());
    bytes.extend(b"a");
    // An array of bytes.
    bytes.extend([9_u32, 0].map(u32::to_le_bytes).concat());
    let count = 32 << 20;
    bytes.extend(u64::to_le_bytes(count));
    bytes.resize(bytes.len() + count as usize, 0);
    let refusal = gguf::read(&bytes).unwrap_err().to_string();
    assert!(
        refusal.contains("gguf: a: has 33554432 elements"),
        "{refusal}"
    );
}

/// candle would keep the last of them.
#[test]
fn a_tensor_or_key_that_is_there_twice_is_refused() {
    let config = small(Family::Llama, true);
    let file = export(&config, &random(&config), GgmlDType::F32);
    let bytes = file.bytes();
    // Names of one length, so that the file stays whole.
    for (from, to, named) in [
        (
            "blk.1.attn_k.weight",
            "blk.1.attn_q.weight",
            "tensor blk.1.attn_q.weight",
        ),
        ("llama.block_count", "llama.block_count", ""),
        (
            "tokenizer.ggml.merges",
            "tokenizer.ggml.tokens",
            "gguf: tokenizer.ggml.tokens",
        ),
    ] {
        let mut changed = bytes.clone();
        let found = changed
            .windows(from.len())
            .position(|it| it == from.as_bytes());
        let at = found.unwrap_or_else(|| panic!("{from} is in the file"));
        changed[at..at + to.len()].copy_from_slice(to.as_bytes());
        match gguf::read(&changed) {
            Ok(_) => assert_eq!(named, ""),
            Err(refusal) => {
                let refusal = refusal.to_string();
                assert!(
                    refusal.contains(named) && refusal.contains("twice"),
                    "{refusal}"
                );
            }
        }
    }
}

/// 9 is Q8_1, which candle knows and does not read, and 23 is IQ4_XS, which it does not know.
#[test]
fn a_quantisation_that_is_not_supported_is_named_with_its_tensor() {
    let config = small(Family::Llama, true);
    let mut bytes = export(&config, &random(&config), GgmlDType::F32).bytes();
    let name = "blk.1.attn_k.weight";
    let found = bytes
        .windows(name.len())
        .position(|it| it == name.as_bytes());
    // The number of dimensions and two dimensions stand between the name and the type.
    let at = found.unwrap() + name.len() + 4 + 2 * 8;
    for kind in [9_u32, 23] {
        bytes[at..at + 4].copy_from_slice(&kind.to_le_bytes());
        let refusal = gguf::read(&bytes).unwrap_err().to_string();
        let named = format!("tensor {name}: is stored as type {kind} ");
        assert!(
            refusal.starts_with(&named) && refusal.contains("use a file in F16"),
            "{refusal}"
        );
    }
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    let config = small(Family::Llama, true);
    let mut file = export(&config, &random(&config), GgmlDType::F32);
    let norm = Tensor::full(f32::NAN, config.hidden_size, &Device::Cpu).unwrap();
    let norm = QTensor::quantize(&norm, GgmlDType::F32).unwrap();
    file.tensors.insert("blk.1.attn_norm.weight".into(), norm);
    let refusal = file.refusal();
    assert!(
        refusal.contains("layers.1.input_layernorm.weight") && refusal.contains("NaN"),
        "{refusal}"
    );
}

proptest::proptest! {
    #[test]
    fn any_header_is_an_error(body in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend([1_u64, 2].map(u64::to_le_bytes).concat());
        bytes.extend(body);
        proptest::prop_assert!(gguf::read(&bytes).is_err());
    }
}

/// A file that is truncated anywhere, or has any one byte of the header changed, is an error or is
/// read; nothing panics.
#[test]
fn damaged_files_are_errors() {
    let config = small(Family::Llama, true);
    let whole = export(&config, &random(&config), GgmlDType::Q8_0).bytes();
    let error = gguf::read(b"PK\x03\x04 something else").unwrap_err();
    assert_eq!(error.to_string(), "not a GGUF file");
    let mut newer = whole.clone();
    newer[4] = 99;
    let error = gguf::read(&newer).unwrap_err().to_string();
    assert!(error.contains("version 99"), "{error}");
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

/// Overlapping tensors would make a small file large in memory.
#[test]
fn tensors_must_fit_beside_each_other() {
    let config = small(Family::Llama, true);
    let file = export(&config, &random(&config), GgmlDType::F32).bytes();
    let cut = &file[..file.len() - 64 * 260];
    let error = gguf::read(cut).unwrap_err().to_string();
    assert!(error.contains("does not fit"), "{error}");
}
