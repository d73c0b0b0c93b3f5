//! The decoders that the benchmarks measure, their input and their learner.

use anyhow::{Context as _, Result};
use learner::{LearnerConfig, TrustConfig, config::RolloutConfig};
use policy::{DecoderConfig, Model, Weights};
use serde_json::{Value, json};

use super::throughput::GROUP_SIZE;
use crate::{BenchPolicyArgs, ModelShape};

/// The input of a learner benchmark.
pub(super) struct LearnerWorkload {
    pub(super) rows: usize,
    pub(super) row_tokens: usize,
    pub(super) micro_batch_tokens: usize,
    pub(super) workers: usize,
}

/// Returns the workload of the arguments, with defaults that suit the shape.
///
/// Qwen3-0.6B has one worker and one micro-batch: a second gradient, be it of another worker or a
/// sum over micro-batches, does not fit in 20 GiB.
pub(super) fn workload(shape: ModelShape, args: &BenchPolicyArgs) -> LearnerWorkload {
    let (rows, row_tokens, micro_batch_tokens, workers) = match shape {
        ModelShape::Tiny => (32, 192, 2_048, args.threads),
        ModelShape::Small => (32, 160, 2_048, args.threads),
        ModelShape::SmolLm2_135m => (8, 160, 640, args.threads),
        ModelShape::Qwen3_06b => (4, 160, 640, 1),
    };
    LearnerWorkload {
        rows: args.learner_rows.unwrap_or(rows),
        row_tokens: args.learner_tokens.unwrap_or(row_tokens),
        micro_batch_tokens: args.micro_batch_tokens.unwrap_or(micro_batch_tokens),
        workers,
    }
}

/// Returns the settings of a learner whose contexts have up to `context_tokens`.
pub(super) fn learner_config(
    shape: ModelShape,
    context_tokens: usize,
    args: &BenchPolicyArgs,
) -> LearnerConfig {
    let workload = workload(shape, args);
    LearnerConfig {
        group_size: GROUP_SIZE,
        micro_batch_tokens: workload.micro_batch_tokens.max(context_tokens),
        rollout: RolloutConfig {
            max_context_tokens: context_tokens as u32,
            ..RolloutConfig::default()
        },
        // Made-up completions do not have the log-probabilities that they claim.
        trust: TrustConfig::of_one_process(1),
        ..LearnerConfig::default()
    }
}

/// Returns a model of this shape with random weights. Tokenizer and template are those of the
/// embedded policy; the vocabulary is widened to that of the shape.
pub(crate) fn random_model(shape: ModelShape) -> Result<Model> {
    let config = config_json(shape);
    let mut files = policy::embedded::files();
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

/// Returns [`random_model`] on the device and in the dtype of the arguments.
pub(crate) fn random_model_on(shape: ModelShape, args: &BenchPolicyArgs) -> Result<Model> {
    let device = args.device.open()?;
    let mut model = random_model(shape)?;
    model.weights = model
        .weights
        .to(&device, args.dtype.on(&device, &model.config))?;
    Ok(model)
}

fn config_json(shape: ModelShape) -> Value {
    let (hidden, layers, heads, kv_heads, head, feed_forward, vocabulary) = match shape {
        ModelShape::Tiny => (256, 4, 4, 2, 64, 768, 4_096),
        ModelShape::Small => (512, 8, 8, 4, 64, 1_536, 8_192),
        ModelShape::SmolLm2_135m => (576, 30, 9, 3, 64, 1_536, 49_152),
        ModelShape::Qwen3_06b => (1_024, 28, 16, 8, 128, 3_072, 151_936),
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

/// Returns the tokens of a text, which differ for each `number`. `torch_policy.py` makes the same
/// ones.
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
        let model = random_model(ModelShape::Tiny).unwrap();
        assert_eq!(model.chat.vocabulary_size(), model.config.vocab_size);
    }

    #[test]
    fn the_peer_measures_the_same_tokens() {
        // By text() in python/benchmarks/torch_policy.py.
        assert_eq!(text(3, 4, 4_096), [2140, 576, 3107, 1543]);
    }
}
