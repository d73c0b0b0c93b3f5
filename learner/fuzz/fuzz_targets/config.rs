//! Reads any text as the `config.json` of a model folder, with weights beside it. What is read is
//! written and read again unchanged, and weights that fit it make a decoder that runs.

#![no_main]

use std::{cell::LazyCell, fs};

use candle_core::{DType, Device};
use learner_fuzz::{CONFIG, mutate};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use policy::{Decoder, DecoderConfig, DecoderMode, PackedRows, Weights};
use tempfile::TempDir;

/// Memory that the sizes of a decoder may take before its weights are looked at: its list of
/// weights by name.
const MAX_SHAPES: usize = 1 << 16;

struct Fixture {
    folder: TempDir,
    seeds: Vec<Vec<u8>>,
}

thread_local! {
    static FIXTURE: LazyCell<Fixture> = LazyCell::new(Fixture::new);
}

fuzz_target!(|data: &[u8]| {
    // A zero byte, which no JSON holds, divides the config from the weights.
    let end = data.iter().position(|&byte| byte == 0);
    let (config, weights) = data.split_at(end.unwrap_or(data.len()));
    let Ok(config) = std::str::from_utf8(config) else {
        return;
    };
    let Ok(config) = DecoderConfig::from_json(config) else {
        return;
    };
    let again = DecoderConfig::from_json(&config.to_json());
    assert_eq!(again.expect("what was written is read"), config);
    assert!(config.shapes().len() < MAX_SHAPES);
    let frequencies = config.inverse_frequencies();
    assert!(frequencies.iter().all(|it| it.is_finite()));
    FIXTURE.with(|fixture| {
        if let Some(weights) = weights.get(1..) {
            let path = fixture.folder.path().join("model.safetensors");
            fs::write(path, weights).expect("a file");
        }
        run(fixture, &config);
    });
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    FIXTURE.with(|fixture| mutate(data, size, max_size, seed, &fixture.seeds))
});

/// Runs the decoder, if the weights of the folder fit.
fn run(fixture: &Fixture, config: &DecoderConfig) {
    let folder = fixture.folder.path();
    let Ok(weights) = Weights::load(folder, config, &Device::Cpu, DType::F32) else {
        return;
    };
    for mode in [DecoderMode::Train, DecoderMode::Sample] {
        let decoder = Decoder::new(config, &weights, mode).expect("weights that fit");
        let mut batch = PackedRows::default();
        batch.push(&[0, 1, config.vocab_size as u32 - 1]);
        let hidden = decoder.forward(&batch, None);
        let logits = hidden.and_then(|hidden| decoder.logits(&hidden));
        let shape = logits.map(|logits| logits.dims().to_vec());
        // A vocabulary of one token has no second one.
        assert!(config.vocab_size < 2 || shape.expect("logits") == [3, config.vocab_size]);
    }
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let families = [
            CONFIG.to_owned(),
            CONFIG.replace("qwen3", "qwen2"),
            CONFIG.replace("qwen3", "llama").replace("true", "false"),
        ];
        let mut seeds = Vec::new();
        for config in families {
            let shape = DecoderConfig::from_json(&config).expect("a config");
            let weights = Weights::random(&shape, 1).expect("weights");
            let bytes = weights.to_bytes().expect("bytes");
            seeds.push([config.as_bytes(), &[0], &bytes].concat());
            seeds.push(shape.to_json().into_bytes());
            let path = folder.path().join("model.safetensors");
            fs::write(path, bytes).expect("a file");
        }
        let llama3 = r#"{"model_type": "llama", "rope_scaling": {"rope_type": "llama3",
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}, "#;
        let rest = CONFIG.split_once(',').map_or("", |(_, rest)| rest);
        seeds.push([llama3, rest].concat().into_bytes());
        Self { folder, seeds }
    }
}
