//! Speed of the device, by the benchmarks of `sqlenv bench policy`.

use actor::{CompletionRequest, Engine, EngineSettings};
use anyhow::Result;
use candle_core::{DType, Tensor};
use policy::{Coordinates, DTypeChoice, DecoderConfig, Placement, SamplingSettings};
use serde::{Deserialize, Serialize};

use super::{report::Measurement, target::CheckTarget};
use crate::{
    BenchPolicyArgs,
    policy::{
        learner, sampler, shape,
        throughput::{Throughput, now},
    },
};

/// Bytes of the copy on a GPU, and on the CPU.
const COPY_BYTES: [usize; 2] = [1 << 30, 1 << 26];

/// The parts of the time to the first token, in seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct FirstToken {
    /// Drawing the random weights of the model, which a run does not do.
    pub(super) weights: f64,
    /// Opening the device and copying the weights to it.
    pub(super) engine: f64,
    /// The first token of a completion.
    pub(super) token: f64,
    /// Kernel modules that were loaded as machine code meanwhile.
    pub(super) carried_modules: u32,
    /// Kernel modules that the driver compiled meanwhile.
    pub(super) compiled_modules: u32,
}

/// Measures the time to the first token and returns the parts as JSON.
pub(super) async fn first_token(target: &CheckTarget<'_>) -> Result<String> {
    let start = now();
    let model = shape::random_model(target.shape)?;
    let weights = start.elapsed().as_secs_f64();
    let settings = EngineSettings {
        slots: 1,
        ..EngineSettings::default()
    };
    let placement = Placement {
        device: target.args.device,
        dtype: DTypeChoice::Auto,
    };
    let context_tokens = target.args.tokens + 1;
    let engine = Engine::spawn(&model, 0, context_tokens, &settings, placement)?;
    let ready = start.elapsed().as_secs_f64();
    let request = CompletionRequest {
        context: shape::text(0, target.args.tokens, model.config.vocab_size),
        max_tokens: 1,
        coordinates: Coordinates::default(),
    };
    engine
        .complete(request, SamplingSettings::default())
        .await?;
    let (carried_modules, compiled_modules) = policy::cuda::modules();
    let first = FirstToken {
        weights,
        engine: ready - weights,
        token: start.elapsed().as_secs_f64() - ready,
        carried_modules,
        compiled_modules,
    };
    Ok(serde_json::to_string(&first)?)
}

/// Measures the bytes per second that a copy on the device reads and writes.
pub(super) fn bandwidth(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let speed = bytes_per_second(target)? / 1e9;
    Ok(vec![Measurement::new("copy", speed, "GB/s")])
}

fn bytes_per_second(target: &CheckTarget<'_>) -> Result<f64> {
    const COPIES: usize = 8;
    let bytes = COPY_BYTES[usize::from(target.device.is_cpu())];
    let numbers = Tensor::zeros(bytes / 4, DType::F32, &target.device)?;
    let mut best = 0.0_f64;
    for _ in 0..3 {
        target.device.synchronize()?;
        let start = now();
        for _ in 0..COPIES {
            numbers.copy()?;
        }
        target.device.synchronize()?;
        best = best.max((2 * COPIES * bytes) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Measures output tokens per second for each number of rows, and their share of what the memory
/// bandwidth allows.
pub(super) async fn sampler(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let args = bench_args(target);
    let model = shape::random_model_on(target.shape, &args)?;
    let bytes_per_second = bytes_per_second(target)?;
    let mut measurements = Vec::new();
    for &rows in &args.rows {
        let result = sampler::measure(&model, rows, 1, &args).await?;
        let most = rows as f64 * bytes_per_second / step_bytes(&model.config, rows, target);
        let speed = result.tokens_per_second;
        let name = format!("{rows} rows");
        let share = format!("{name}, share of what reading weights and KV cache allows");
        measurements.push(Measurement::new(name, speed, "tokens/s"));
        measurements.push(Measurement::new(share, 100.0 * speed / most, "%"));
    }
    Ok(measurements)
}

/// Returns the bytes that one decode step must read: the weights, and keys and values of contexts
/// whose completions are half done.
fn step_bytes(config: &DecoderConfig, rows: usize, target: &CheckTarget<'_>) -> f64 {
    let size = DTypeChoice::Auto.on(&target.device, config).size_in_bytes();
    let token = 2 * config.layers * config.kv_heads * config.head_dim;
    let context = target.args.tokens + target.args.tokens / 2;
    (size * (config.parameters() + rows * context * token)) as f64
}

pub(super) fn learner(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let args = bench_args(target);
    let model = shape::random_model_on(target.shape, &args)?;
    let result = learner::measure(&model, target.shape, &args)?;
    let mut measurements = measurements([result], target.memory());
    let update = learner::update_seconds(&model, args.repeats)?;
    measurements.push(Measurement::new("update", 1e3 * update, "ms"));
    Ok(measurements)
}

pub(super) fn prefix(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let args = bench_args(target);
    let model = shape::random_model_on(target.shape, &args)?;
    let results = learner::measure_prefixes(&model, target.shape, &args)?;
    Ok(measurements(results, target.memory()))
}

/// Returns the speed and the peak memory of each result.
pub(super) fn measurements(
    results: impl IntoIterator<Item = Throughput>,
    memory: &str,
) -> Vec<Measurement> {
    let mut measurements = Vec::new();
    for found in results {
        let (what, rows, tokens) = (found.what, found.rows, found.row_tokens);
        let name = format!("{what}, {rows} rows of {tokens} tokens");
        let speed = found.tokens_per_second;
        measurements.push(Measurement::new(&name, speed, "tokens/s"));
        let peak_name = format!("{name}, peak of {memory}");
        let peak = found.peak_mib;
        measurements.extend(peak.map(|peak| Measurement::new(peak_name, peak, "MiB")));
    }
    measurements
}

/// Returns the arguments of `sqlenv bench policy` for the same measurements.
fn bench_args(target: &CheckTarget<'_>) -> BenchPolicyArgs {
    let args = target.args;
    BenchPolicyArgs {
        shapes: vec![target.shape],
        parts: Vec::new(),
        rows: args.rows.clone(),
        prompt_tokens: args.tokens,
        new_tokens: args.tokens,
        learner_rows: Some(args.learner_rows),
        learner_tokens: Some(args.learner_tokens),
        prefix_tokens: args.learner_tokens,
        micro_batch_tokens: Some(args.micro_batch_tokens),
        // One engine and one worker are enough to keep a device busy.
        threads: 1,
        repeats: args.repeats,
        device: args.device,
        dtype: DTypeChoice::Auto,
    }
}
