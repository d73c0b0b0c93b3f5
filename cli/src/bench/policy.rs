//! `sqlenv bench policy`: output tokens per second of the sampler, tokens per second of the learner.
//!
//! Weights and prompts are random: what a step costs does not depend on them. As in a run, the threads are engines over
//! conversations and workers over micro-batches. Each figure is the median of some repeats.

use std::time::Instant;

use actor::{CompletionRequest, Engine, EngineSettings};
use anyhow::Result;
use futures::future::try_join_all;
use learner::{
    batch::{MicroBatch, Sample, micro_batches},
    network::{Coefficients, Network, Pass, Scores},
    optimizer::OptimizerSettings,
};
use policy::{
    Coordinates, DecoderConfig, Keep, Model, SamplingSettings, Weights, random::derive_seed,
};

use crate::{
    args::{BenchPolicyArgs, Shape},
    number::short_count,
    stdout,
};

const HEADER: &str = "| shape | parameters | what | rows | tokens/s |\n|---|---|---|---|---|";
const LEARNING_RATE: f64 = 1e-6;

/// Measures every shape and prints a row for each batch of the sampler and one for the learner.
///
/// # Errors
/// The engine or the learner fails, which is a bug.
pub async fn bench_policy(args: &BenchPolicyArgs) -> Result<()> {
    stdout::print(format_args!("{HEADER}\n"))?;
    for &shape in &args.shapes {
        let config = config(shape)?;
        let weights = Weights::random(&config, 0)?;
        let parameters = short_count(config.parameters() as u64);
        let row = |what: &str, rows: usize, speed: f64| {
            stdout::print(format_args!(
                "| {shape} | {parameters} | {what} | {rows} | {speed:.0} |\n"
            ))
        };
        for &rows in &args.rows {
            let speed = sampler(&config, &weights, rows, args).await?;
            row("sampler", rows, speed)?;
        }
        let speed = learner(&config, &weights, args)?;
        row("learner", args.learner_rows, speed)?;
    }
    Ok(())
}

fn config(shape: Shape) -> Result<DecoderConfig> {
    let (hidden, layers, heads, kv_heads, head, feed_forward, vocabulary) = match shape {
        Shape::Tiny => (256, 4, 4, 2, 64, 768, 4_096),
        Shape::Small => (512, 8, 8, 4, 64, 1_536, 8_192),
        Shape::Qwen3_06b => (1_024, 28, 16, 8, 128, 3_072, 151_936),
    };
    let config = serde_json::json!({
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
    });
    Ok(DecoderConfig::from_json(&config.to_string())?)
}

/// Random tokens, other ones for each row.
fn tokens(config: &DecoderConfig, row: usize, count: usize) -> Vec<u32> {
    (0..count)
        .map(|place| {
            let random = derive_seed(row as u64, &place.to_string());
            (random % config.vocab_size as u64) as u32
        })
        .collect()
}

/// Output tokens per second, prompts included in the time. A completion that happens to stop counts with what it has.
async fn sampler(
    config: &DecoderConfig,
    weights: &Weights,
    rows: usize,
    args: &BenchPolicyArgs,
) -> Result<f64> {
    let model = Model {
        config: config.clone(),
        weights: weights.clone(),
        ..policy::tiny::model(0)?
    };
    let engines = args.threads.min(rows);
    let settings = EngineSettings {
        slots: rows.div_ceil(engines),
        ..EngineSettings::default()
    };
    let context_tokens = args.prompt_tokens + args.new_tokens;
    let engines = (0..engines)
        .map(|_| Engine::spawn(&model, 0, context_tokens, &settings))
        .collect::<Result<Vec<_>, _>>()?;
    let mut speeds = Vec::new();
    for repeat in 0..=args.repeats {
        let completions = (0..rows).map(|row| {
            engines[row % engines.len()].complete(CompletionRequest {
                context: tokens(config, row + repeat * rows, args.prompt_tokens),
                max_tokens: args.new_tokens,
                sampling: SamplingSettings::default(),
                coordinates: Coordinates {
                    run_seed: repeat as u64,
                    group: row as u64,
                    ..Coordinates::default()
                },
            })
        });
        let (seconds, completions) = timed(try_join_all(completions)).await;
        let sampled: usize = completions?.iter().map(|done| done.tokens.len()).sum();
        speeds.push(sampled as f64 / seconds);
    }
    Ok(median(&mut speeds[1..]))
}

/// Tokens per second of forward, backward and update, every token scored.
fn learner(config: &DecoderConfig, weights: &Weights, args: &BenchPolicyArgs) -> Result<f64> {
    let mut network = Network::new(config, weights, OptimizerSettings::default())?;
    let samples: Vec<Sample> = (0..args.learner_rows)
        .map(|row| Sample {
            tokens: tokens(config, row, args.learner_tokens),
            scored: (1..args.learner_tokens).collect(),
        })
        .collect();
    let micro_batches = micro_batches(&samples, args.micro_batch_tokens);
    let pass = Pass {
        temperature: 1.0,
        threads: args.threads,
        keep: Keep::default(),
    };
    let mean = |_, _: &MicroBatch, scores: &Scores| {
        let count = scores.logprobs.len();
        let coefficients = Coefficients {
            d_logprobs: vec![-1.0 / count as f64; count],
            d_entropies: None,
        };
        (coefficients, ())
    };
    let mut speeds = Vec::new();
    for _ in 0..=args.repeats {
        let start = now();
        let (gradients, _) = network.gradients(&micro_batches, pass, mean)?;
        network.update(gradients, LEARNING_RATE)?;
        let count = args.learner_rows * args.learner_tokens;
        speeds.push(count as f64 / start.elapsed().as_secs_f64());
    }
    Ok(median(&mut speeds[1..]))
}

async fn timed<T>(work: impl Future<Output = T>) -> (f64, T) {
    let start = now();
    let done = work.await;
    (start.elapsed().as_secs_f64(), done)
}

#[expect(clippy::disallowed_methods, reason = "measures time")]
fn now() -> Instant {
    Instant::now()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
