//! Reads any bytes as a GGUF file. They are refused, or make a model that runs.

#![no_main]

#[path = "../../../policy/tests/it/gguf/export.rs"]
#[allow(dead_code)]
mod export;

use std::cell::LazyCell;

use candle_core::quantized::GgmlDType;
use learner_fuzz::{let_panics_be_caught, mutate};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use policy::{ChatRole, Decoder, DecoderConfig, DecoderMode, Family, Message, PackedRows, gguf};

/// Tokens that the model runs on.
const MAX_TOKENS: usize = 64;

thread_local! {
    static SEEDS: LazyCell<Vec<Vec<u8>>> = LazyCell::new(seeds);
}

fuzz_target!(init: let_panics_be_caught(), |data: &[u8]| {
    let Ok(model) = gguf::read(data) else {
        return;
    };
    // Dequantised weights have at most 8 times the bytes of the file.
    assert!(model.config.parameters() <= 8 * data.len());
    let messages = [Message::new(ChatRole::User, "How many cars?\n12 é")];
    let tokens = model.chat.prompt_ids(&messages, &[]).unwrap_or_default();
    assert!(tokens.iter().all(|&id| (id as usize) < model.config.vocab_size));
    let decoder = Decoder::new(&model.config, &model.weights, DecoderMode::Sample);
    let decoder = decoder.expect("weights that fit");
    // A template may print a long text.
    let tokens = &tokens[..tokens.len().min(MAX_TOKENS)];
    let mut batch = PackedRows::default();
    batch.push(if tokens.is_empty() { &[0] } else { tokens });
    let hidden = decoder.forward(&batch, None).expect("hidden states");
    decoder.logits(&hidden).expect("logits");
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    SEEDS.with(|seeds| mutate(data, size, max_size, seed, seeds))
});

fn seeds() -> Vec<Vec<u8>> {
    let seed = |family, dtype| {
        let config = DecoderConfig {
            hidden_size: 32,
            intermediate_size: 32,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            ..export::small(family, true)
        };
        export::export(&config, &export::random(&config), dtype).bytes()
    };
    vec![
        seed(Family::Qwen3, GgmlDType::Q4_0),
        seed(Family::Llama, GgmlDType::Q8_0),
        seed(Family::Qwen2, GgmlDType::F16),
    ]
}
