//! Tests of model folders whose files claim what is not so.

use std::fs;
use std::os::unix::fs::symlink;

use candle_core::{DType, Device};
use proptest::prelude::*;

use super::*;
use crate::Weights;

fn config() -> DecoderConfig {
    DecoderConfig::from_json(
        r#"{"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
        "vocab_size": 50, "tie_word_embeddings": true}"#,
    )
    .unwrap()
}

fn bytes() -> Vec<u8> {
    Weights::random(&config(), 1).unwrap().to_bytes().unwrap()
}

fn refusal(dir: &Path, config: &DecoderConfig) -> String {
    let loaded = Weights::load(dir, config, &Device::Cpu, DType::F32);
    loaded.unwrap_err().to_string()
}

/// The config claims a model of 4 TB in 4,000 layers, for a file of a few kilobytes.
#[test]
fn sizes_are_compared_before_anything_is_allocated() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE), bytes()).unwrap();
    let claims = DecoderConfig {
        layers: 4000,
        hidden_size: 1 << 20,
        ..config()
    };
    let refusal = refusal(dir.path(), &claims);
    assert!(
        refusal.contains(FILE) && refusal.contains("config.json asks for"),
        "{refusal}"
    );
}

/// A sparse file of a terabyte is not read to find out that it is wrong.
#[test]
fn the_size_of_a_file_is_compared_with_its_header() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    fs::write(&path, bytes()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    let refusal = refusal(dir.path(), &config());
    assert!(refusal.contains("its header describes"), "{refusal}");
}

#[test]
fn values_that_are_not_finite_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (dtype, value) in [
        (DType::F32, f32::NAN),
        (DType::BF16, f32::INFINITY),
        (DType::F16, f32::NEG_INFINITY),
        (DType::F64, f32::NAN),
    ] {
        let weights = Weights::random(&config(), 1).unwrap();
        let spoil = |(name, tensor): (&str, &Tensor)| {
            let mut values: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
            if name == "model.layers.0.mlp.up_proj.weight" {
                values[383] = value;
            }
            let tensor = Tensor::from_vec(values, tensor.shape(), &Device::Cpu).unwrap();
            (name.to_owned(), tensor.to_dtype(dtype).unwrap())
        };
        let spoiled = Weights::new(weights.iter().map(spoil).collect());
        spoiled.save(dir.path()).unwrap();
        let refusal = refusal(dir.path(), &config());
        assert!(
            refusal.contains("mlp.up_proj.weight") && refusal.contains("NaN or infinite"),
            "{dtype:?}: {refusal}"
        );
    }
}

#[test]
fn quantized_weights_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let weights = Weights::random(&config(), 1).unwrap();
    let quantize =
        |(name, tensor): (&str, &Tensor)| (name.to_owned(), tensor.to_dtype(DType::U8).unwrap());
    let quantized = Weights::new(weights.iter().map(quantize).collect());
    quantized.save(dir.path()).unwrap();
    assert!(refusal(dir.path(), &config()).contains("not quantized"));
}

#[test]
fn a_shard_is_a_file_of_the_folder() {
    let cache = tempfile::tempdir().unwrap();
    fs::write(cache.path().join("outside.safetensors"), bytes()).unwrap();
    let dir = cache.path().join("model");
    fs::create_dir(&dir).unwrap();
    for name in ["../outside.safetensors", "/etc/passwd", "..", "a/../b", ""] {
        let index = serde_json::json!({"weight_map": {"a": name}});
        fs::write(dir.join(INDEX), index.to_string()).unwrap();
        let refusal = refusal(&dir, &config());
        assert!(
            refusal.contains("a file of this folder"),
            "{name}: {refusal}"
        );
    }
    symlink("../outside.safetensors", dir.join(FILE)).unwrap();
    assert!(refusal(&dir, &config()).contains("outside of the folder"));
    fs::remove_file(dir.join(FILE)).unwrap();
    symlink("/dev/zero", dir.join(FILE)).unwrap();
    assert!(refusal(&dir, &config()).contains("outside of the folder"));
    fs::remove_file(dir.join(FILE)).unwrap();
    fs::create_dir(dir.join(FILE)).unwrap();
    assert!(refusal(&dir, &config()).contains("no regular file"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), bytes).unwrap();
        refusal(dir.path(), &config());
    }

    #[test]
    fn a_changed_byte_of_the_header_is_read_or_refused(at in 0..2000_usize, to: u8) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = bytes();
        bytes[at] = to;
        fs::write(dir.path().join(FILE), bytes).unwrap();
        drop(Weights::load(dir.path(), &config(), &Device::Cpu, DType::F32));
    }
}
