//! How fast the device is, by the same measurements as `sqlenv bench policy`.

use actor::{CompletionRequest, Engine, EngineSettings};
use anyhow::Result;
use candle_core::Tensor;
use policy::{Coordinates, DTypeChoice, DecoderConfig, Placement, SamplingSettings};
use serde::{Deserialize, Serialize};

use super::{Subject, report::Figure};
use crate::{
    args::BenchPolicyArgs,
    bench::policy::{Line, learner, now, sampler, shape},
};

/// Bytes of the copy, on a GPU and on the CPU.
const COPIED: [usize; 2] = [1 << 30, 1 << 26];

/// Where the time to the first token goes, in seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct FirstToken {
    /// Drawing the model's random weights, which a run does not.
    pub(super) weights: f64,
    /// Opening the device and bringing the weights there.
    pub(super) engine: f64,
    /// The first token of a completion.
    pub(super) token: f64,
    /// Modules of kernels that were loaded meanwhile as machine code, and those that the driver had to compile.
    pub(super) carried_modules: u32,
    pub(super) compiled_modules: u32,
}

pub(super) async fn first_token(subject: &Subject<'_>) -> Result<String> {
    let begun = now();
    let model = shape::random_model(subject.shape)?;
    let weights = begun.elapsed().as_secs_f64();
    let settings = EngineSettings {
        slots: 1,
        ..EngineSettings::default()
    };
    let placement = Placement {
        device: subject.args.device,
        dtype: DTypeChoice::Auto,
    };
    let engine = Engine::spawn(&model, 0, subject.args.tokens + 1, &settings, placement)?;
    let ready = begun.elapsed().as_secs_f64();
    let request = CompletionRequest {
        context: shape::text(0, subject.args.tokens, model.config.vocab_size),
        max_tokens: 1,
        sampling: SamplingSettings::default(),
        coordinates: Coordinates::default(),
    };
    engine.complete(request).await?;
    let (carried_modules, compiled_modules) = policy::cuda::modules();
    let first = FirstToken {
        weights,
        engine: ready - weights,
        token: begun.elapsed().as_secs_f64() - ready,
        carried_modules,
        compiled_modules,
    };
    Ok(serde_json::to_string(&first)? + "\n")
}

/// Bytes read and written a second by a copy from the device to itself.
pub(super) fn bandwidth(subject: &Subject<'_>) -> Result<Vec<Figure>> {
    Ok(vec![Figure::of(
        "copy",
        bytes_per_second(subject)? / 1e9,
        "GB/s",
    )])
}

fn bytes_per_second(subject: &Subject<'_>) -> Result<f64> {
    const COPIES: usize = 8;
    let bytes = COPIED[usize::from(subject.device.is_cpu())];
    let numbers = Tensor::zeros(
        bytes / size_of::<f32>(),
        candle_core::DType::F32,
        &subject.device,
    )?;
    let mut best = 0.0_f64;
    for _ in 0..3 {
        subject.device.synchronize()?;
        let begun = now();
        for _ in 0..COPIES {
            numbers.copy()?;
        }
        subject.device.synchronize()?;
        best = best.max((2 * COPIES * bytes) as f64 / begun.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Output tokens a second at each number of rows, and how much of what the device's memory allows that is.
pub(super) async fn sampler(subject: &Subject<'_>) -> Result<Vec<Figure>> {
    let args = bench_args(subject);
    let model = shape::random_model_on(subject.shape, &args)?;
    let bytes_per_second = bytes_per_second(subject)?;
    let mut figures = Vec::new();
    for &rows in &args.rows {
        let line = sampler::line(&model, rows, 1, &args).await?;
        let most = rows as f64 * bytes_per_second / step_bytes(&model.config, rows, subject);
        figures.push(Figure::of(format!("{rows} rows"), line.speed, "tokens/s"));
        figures.push(Figure::of(
            format!("{rows} rows, share of what reading weights and KV cache allows"),
            100.0 * line.speed / most,
            "%",
        ));
    }
    Ok(figures)
}

/// Bytes that drawing a token for each row must read: the weights, and keys and values of a context half way.
fn step_bytes(config: &DecoderConfig, rows: usize, subject: &Subject<'_>) -> f64 {
    let size = DTypeChoice::Auto.on(&subject.device).size_in_bytes();
    let token = 2 * config.layers * config.kv_heads * config.head_dim;
    let context = subject.args.tokens + subject.args.tokens / 2;
    (size * (config.parameters() + rows * context * token)) as f64
}

pub(super) fn learner(subject: &Subject<'_>) -> Result<Vec<Figure>> {
    let args = bench_args(subject);
    let model = shape::random_model_on(subject.shape, &args)?;
    let line = learner::line(&model, subject.shape, &args)?;
    Ok(figures([line], subject.memory()))
}

pub(super) fn prefix(subject: &Subject<'_>) -> Result<Vec<Figure>> {
    let args = bench_args(subject);
    let model = shape::random_model_on(subject.shape, &args)?;
    let lines = learner::prefix_lines(&model, subject.shape, &args)?;
    Ok(figures(lines, subject.memory()))
}

fn figures(lines: impl IntoIterator<Item = Line>, memory: &str) -> Vec<Figure> {
    let figures = |line: Line| {
        let what = format!(
            "{}, {} rows of {} tokens",
            line.what, line.rows, line.row_tokens
        );
        let speed = Figure::of(&what, line.speed, "tokens/s");
        let peak = line.peak_mib;
        [
            Some(speed),
            peak.map(|peak| Figure::of(format!("{what}, peak of {memory}"), peak, "MiB")),
        ]
    };
    lines.into_iter().flat_map(figures).flatten().collect()
}

/// The arguments of `sqlenv bench policy` that measure the same.
fn bench_args(subject: &Subject<'_>) -> BenchPolicyArgs {
    let args = subject.args;
    BenchPolicyArgs {
        shapes: vec![subject.shape],
        parts: Vec::new(),
        rows: args.rows.clone(),
        prompt_tokens: args.tokens,
        new_tokens: args.tokens,
        learner_rows: Some(args.learner_rows),
        learner_tokens: Some(args.learner_tokens),
        prefix_tokens: args.learner_tokens,
        micro_batch_tokens: Some(args.micro_batch_tokens),
        // One engine and one worker keep a device busy.
        threads: 1,
        repeats: args.repeats,
        device: args.device,
        dtype: DTypeChoice::Auto,
    }
}
