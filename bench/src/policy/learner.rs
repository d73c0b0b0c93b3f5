//! Tokens per second and peak memory of learner steps.

use std::sync::Arc;

use ::learner::{
    LearnerConfig,
    batch::{MicroBatch, Prefixes, Sample, micro_batches},
    group::StepGroups,
    network::{Network, PassSettings, Scores},
    optimizer::OptimizerSettings,
    trainer::Trainer,
};
use actor::{Completion, FinishReason};
use anyhow::Result;
use candle_core::Device;
use policy::{GradientCheckpointing, Model, ops::LogprobGradients};

use super::{
    grpo::group,
    shape::{learner_config, text, workload},
    throughput::{GROUP_SIZE, Throughput, median, now},
};
use crate::{BenchPolicyArgs, ModelShape, memory::peak_mib};

const LEARNING_RATE: f64 = 1e-6;
/// Scored tokens that follow a long prompt.
const PREFIX_NEW_TOKENS: usize = 64;

/// Measures forward pass, backward pass and update, where every token but the first of a row is
/// scored.
pub(crate) fn measure(
    model: &Model,
    shape: ModelShape,
    args: &BenchPolicyArgs,
) -> Result<Throughput> {
    let work = workload(shape, args);
    let row = |row| Sample {
        tokens: text(row, work.row_tokens, model.config.vocab_size).into(),
        scored: (1..work.row_tokens).collect(),
        ..Sample::default()
    };
    let samples: Vec<Sample<'_>> = (0..work.rows).map(row).collect();
    let micro_batches = micro_batches(&samples, work.micro_batch_tokens, Prefixes::Repeated);
    let pass = one_pass(work.workers);
    let mut network = Network::new(&model.config, &model.weights, OptimizerSettings::default())?
        .with_threads(work.workers);
    let tokens = work.rows * work.row_tokens;
    let (tokens_per_second, peak_mib) = speed_and_peak(model, tokens, args.repeats, || {
        let (gradients, _) = network.gradients(&micro_batches, pass, mean_loss)?;
        network.update(gradients, LEARNING_RATE)?;
        Ok(())
    })?;
    Ok(Throughput {
        what: "learner".to_owned(),
        rows: work.rows,
        row_tokens: work.row_tokens,
        tokens_per_second,
        peak_mib,
        time_shares: String::new(),
    })
}

/// Returns how a pass computes on so many threads.
pub(crate) fn one_pass(threads: usize) -> PassSettings {
    PassSettings {
        temperature: 1.0,
        threads,
        checkpointing: GradientCheckpointing::Off,
    }
}

/// Returns the seconds of an update alone: the norm of the gradients, AdamW, and the copy of the
/// weights in the model's dtype.
pub(crate) fn update_seconds(model: &Model, repeats: usize) -> Result<f64> {
    let sample = Sample {
        tokens: text(0, 2, model.config.vocab_size).into(),
        scored: vec![1],
        ..Sample::default()
    };
    let micro_batches = micro_batches(&[sample], usize::MAX, Prefixes::Repeated);
    let mut network = Network::new(&model.config, &model.weights, OptimizerSettings::default())?;
    let (gradients, _) = network.gradients(&micro_batches, one_pass(1), mean_loss)?;
    let mut seconds = Vec::new();
    for _ in 0..=repeats {
        let gradients = gradients.clone();
        device(model).synchronize()?;
        let start = now();
        network.update(gradients, LEARNING_RATE)?;
        device(model).synchronize()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(median(seconds.split_off(1)))
}

/// Returns the derivatives of the mean negative log-probability.
pub(crate) fn mean_loss(_: usize, _: &MicroBatch, scores: &Scores) -> (LogprobGradients, ()) {
    let count = scores.logprobs.len();
    let coefficients = LogprobGradients {
        logprobs: vec![-1.0 / count as f64; count],
        entropies: None,
    };
    (coefficients, ())
}

/// Measures steps on one group whose members share a long prompt, in three variants.
pub(crate) fn measure_prefixes(
    model: &Model,
    shape: ModelShape,
    args: &BenchPolicyArgs,
) -> Result<Vec<Throughput>> {
    let row_tokens = args.prefix_tokens + PREFIX_NEW_TOKENS;
    let mut config = learner_config(shape, row_tokens, args);
    // A micro-batch of the default size holds one member of a larger shape, which shares nothing.
    let whole_group = args.prefix_tokens + GROUP_SIZE * PREFIX_NEW_TOKENS;
    config.micro_batch_tokens = config.micro_batch_tokens.max(whole_group);
    let groups = StepGroups {
        kept: vec![Arc::new(prefix_group(model, &config, args.prefix_tokens)?)],
        ..StepGroups::default()
    };
    let repeated = LearnerConfig {
        share_prefixes: false,
        ..config.clone()
    };
    let checkpointed = LearnerConfig {
        gradient_checkpointing: true,
        ..config.clone()
    };
    // The variant with the least memory comes first: the allocator keeps freed memory, which would
    // hide a lower peak later.
    let variants = [
        ("learner, prompt shared, checkpointed", checkpointed),
        ("learner, prompt shared", config),
        ("learner, prompt repeated", repeated),
    ];
    let measure = |(what, config)| {
        let mut trainer = Trainer::new(&config, workload(shape, args).workers, model)?;
        let tokens = GROUP_SIZE * row_tokens;
        let (tokens_per_second, peak_mib) = speed_and_peak(model, tokens, args.repeats, || {
            trainer.step(&groups, 0)?;
            Ok(())
        })?;
        Ok(Throughput {
            what: String::from(what),
            rows: GROUP_SIZE,
            row_tokens,
            tokens_per_second,
            peak_mib,
            time_shares: String::new(),
        })
    };
    variants.into_iter().map(measure).collect()
}

fn prefix_group(
    model: &Model,
    config: &LearnerConfig,
    prompt_tokens: usize,
) -> Result<::learner::group::Group> {
    let vocabulary = model.config.vocab_size;
    let prompt = text(0, prompt_tokens, vocabulary);
    let member = |member| {
        let completion = Completion {
            tokens: text(1 + member, PREFIX_NEW_TOKENS, vocabulary),
            logprobs: vec![-(vocabulary as f32).ln(); PREFIX_NEW_TOKENS],
            policy_version: 0,
            finish_reason: FinishReason::Length,
        };
        (prompt.clone(), completion)
    };
    let members: Vec<_> = (0..GROUP_SIZE).map(member).collect();
    group(0, &members, config, vocabulary)
}

/// Returns the median of the tokens per second of `step`, and the peak memory on the model's
/// device.
fn speed_and_peak(
    model: &Model,
    tokens: usize,
    repeats: usize,
    mut step: impl FnMut() -> Result<()>,
) -> Result<(f64, Option<f64>)> {
    let mut speeds = Vec::new();
    let (done, peak) = peak_mib(device(model), || {
        for _ in 0..=repeats {
            let start = now();
            step()?;
            speeds.push(tokens as f64 / start.elapsed().as_secs_f64());
        }
        anyhow::Ok(())
    });
    done?;
    Ok((median(speeds.split_off(1)), peak))
}

/// Returns the device of the model's weights.
fn device(model: &Model) -> &Device {
    let weights = model.weights.iter().next();
    weights.map_or(&Device::Cpu, |(_, weight)| weight.device())
}
