//! The decoders that are measured, and their input.

use anyhow::{Context as _, Result};
use policy::{DecoderConfig, Model, Weights};
use serde_json::{Value, json};

use crate::args::{BenchPolicyArgs, Shape};

/// What the learner is given.
pub(super) struct Work {
    pub(super) rows: usize,
    pub(super) row_tokens: usize,
    pub(super) micro_batch_tokens: usize,
    pub(super) workers: usize,
}

/// The arguments, or what suits the shape. Of the large one a second gradient, be it another worker's or a sum over
/// micro-batches, does not fit in 20 GiB.
pub(super) fn work(shape: Shape, args: &BenchPolicyArgs) -> Work {
    let (rows, row_tokens, micro_batch_tokens, workers) = match shape {
        Shape::Tiny => (32, 192, 2_048, args.threads),
        Shape::Small => (32, 160, 2_048, args.threads),
        Shape::Qwen3_06b => (4, 160, 640, 1),
    };
    Work {
        rows: args.learner_rows.unwrap_or(rows),
        row_tokens: args.learner_tokens.unwrap_or(row_tokens),
        micro_batch_tokens: args.micro_batch_tokens.unwrap_or(micro_batch_tokens),
        workers,
    }
}

/// A model of this shape with random weights. Its text side is the embedded one, widened to all columns of the logits.
pub(crate) fn random_model(shape: Shape) -> Result<Model> {
    let config = config_json(shape);
    let mut files = policy::tiny::files();
    for (name, bytes) in &mut files {
        match name.as_str() {
            "config.json" => *bytes = config.to_string().into_bytes(),
            "tokenizer.json" => {
                let mut tokenizer: Value = serde_json::from_slice(bytes)?;
                let vocabulary = tokenizer["model"]["vocab"].as_object_mut();
                let vocabulary =
                    vocabulary.context("tokenizer.json has no vocabulary: this is a bug")?;
                let size = config["vocab_size"].as_u64().unwrap_or_default();
                vocabulary.insert("the last token".to_owned(), json!(size - 1));
                *bytes = tokenizer.to_string().into_bytes();
            }
            _ => {}
        }
    }
    let weights = Weights::random(&DecoderConfig::from_json(&config.to_string())?, 0)?;
    Ok(Model::from_files(files, weights)?)
}

/// [`random_model`], its weights where and as the arguments want them.
///
/// # Errors
/// There is no such device.
pub(crate) fn random_model_on(shape: Shape, args: &BenchPolicyArgs) -> Result<Model> {
    let device = args.device.open()?;
    let mut model = random_model(shape)?;
    model.weights = model.weights.to(&device, args.dtype.on(&device))?;
    Ok(model)
}

fn config_json(shape: Shape) -> Value {
    let (hidden, layers, heads, kv_heads, head, feed_forward, vocabulary) = match shape {
        Shape::Tiny => (256, 4, 4, 2, 64, 768, 4_096),
        Shape::Small => (512, 8, 8, 4, 64, 1_536, 8_192),
        Shape::Qwen3_06b => (1_024, 28, 16, 8, 128, 3_072, 151_936),
    };
    json!({
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "intermediate_size": feed_forward,
        "vocab_size": vocabulary,
        "rope_theta": 1e6,
        "tie_word_embeddings": true,
    })
}

/// Tokens of a text, other ones for each; `torch_policy.py` makes the same ones.
pub(crate) fn text(number: usize, length: usize, vocabulary: usize) -> Vec<u32> {
    let token = |place: usize| {
        let mixed = (number * 1_000_003 + place).wrapping_mul(2_654_435_761) as u32;
        ((u64::from(mixed) * vocabulary as u64) >> 32) as u32
    };
    (0..length).map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_token_may_be_drawn() {
        let model = random_model(Shape::Tiny).unwrap();
        assert_eq!(model.chat.vocabulary_size(), model.config.vocab_size);
    }

    #[test]
    fn the_peer_measures_the_same_tokens() {
        // By text() in python/benchmarks/torch_policy.py.
        assert_eq!(text(3, 4, 4_096), [2140, 576, 3107, 1543]);
    }
}
