//! Checks the decoder on the device against the CPU in f32, and the sampler against the learner,
//! with the embedded policy and random weights.
//!
//! The tests of `policy` check the CPU against recordings of transformers.

mod compare;
mod update;

use actor::{Completion, CompletionRequest, Engine, EngineSettings};
use anyhow::{Context as _, Result};
use candle_core::{DType, Device};
use futures::future::try_join_all;
use learner::{
    batch::{MicroBatch, Prefixes, Sample, micro_batches},
    network::scores,
};
use policy::{
    Coordinates, DTypeChoice, Decoder, DecoderMode, Family, GradientCheckpointing, Gradients,
    Model, PackedRows, Placement, SamplingSettings, TrainingPass, Weights,
    ops::{self, LogprobGradients},
};

pub(super) use self::compare::{EQUAL_BITS, values};
use self::compare::{agreement, gradient_errors, largest_difference, mean_difference};
pub(super) use self::update::update;
use super::{report::Measurement, target::CheckTarget};
use crate::policy::{
    learner::{mean_loss, one_pass},
    shape::text,
};

/// Lengths of the rows: one token, odd ones, and some around a page of the KV cache.
const LENGTHS: [usize; 6] = [1, 5, 15, 16, 33, 96];
/// Tokens of a prompt that several rows share, more than a block of keys, and those of each row
/// after it.
const PROMPT: usize = 70;
const AFTER_PROMPT: [usize; 3] = [3, 40, 17];
/// Head sizes of the models. Kernels are compiled for each.
const HEAD_SIZES: [usize; 3] = [32, 64, 128];
/// Largest difference of a single value from the CPU in f32.
const EXACT: f64 = 1e-4;
/// Largest mean difference of log-probabilities in bf16, which has 8 significant bits, from f32.
const BF16_LOGPROBS: f64 = 0.03;
/// Largest relative error in bf16 of the gradient of all weights, and of a single weight.
const BF16_GRADIENT: f64 = 0.05;
const BF16_WORST_GRADIENT: f64 = 0.15;

/// A decoder on a device, and the batch that it is checked with.
struct DecoderUnderTest {
    decoder: Decoder,
    batch: MicroBatch,
}

/// Returns the embedded policy with random weights and heads of this size, each size in another
/// family and in other groups of heads.
fn model_with_heads_of(head_dim: usize) -> Result<Model> {
    let mut model = policy::embedded::model(0)?;
    let config = &mut model.config;
    config.head_dim = head_dim;
    match head_dim {
        64 => {
            config.family = Family::Llama;
            config.tie_word_embeddings = false;
            // No multiple of what a product computes at a time.
            (config.hidden_size, config.intermediate_size) = (200, 328);
        }
        128 => {
            config.family = Family::Qwen2;
            config.qkv_bias = true;
            (config.heads, config.kv_heads) = (5, 1);
        }
        _ => {}
    }
    model.weights = Weights::random(&model.config, 0)?;
    Ok(model)
}

/// Rows of the lengths above, and rows after one prompt. A prompt that is shared is not scored.
fn samples(vocabulary: usize, prefixes: Prefixes) -> Vec<Sample<'static>> {
    let first_scored = match prefixes {
        Prefixes::Shared => PROMPT,
        Prefixes::Repeated => 1,
    };
    let row = |tokens: Vec<u32>, first_scored| Sample {
        scored: (first_scored..tokens.len()).collect(),
        tokens: tokens.into(),
        ..Sample::default()
    };
    let alone = LENGTHS.iter().enumerate();
    let alone = alone.map(|(number, length)| row(text(number, length + 1, vocabulary), 1));
    let after_prompt = AFTER_PROMPT.iter().enumerate().map(|(number, &length)| {
        let prompt = text(100, PROMPT, vocabulary);
        let completion = text(101 + number, length, vocabulary);
        row([prompt, completion].concat(), first_scored)
    });
    alone.chain(after_prompt).collect()
}

impl DecoderUnderTest {
    fn new(model: &Model, device: &Device, dtype: DType, prefixes: Prefixes) -> Result<Self> {
        let samples = samples(model.config.vocab_size, prefixes);
        let mut batches = micro_batches(&samples, usize::MAX, prefixes);
        let weights = model.weights.to(device, dtype)?;
        Ok(Self {
            decoder: Decoder::new(&model.config, &weights, DecoderMode::Train)?,
            batch: batches.pop().context("there is no batch: this is a bug")?,
        })
    }

    /// Returns the embedded policy on a device, with a shared prompt.
    fn embedded(device: &Device, dtype: DType) -> Result<Self> {
        let model = policy::embedded::model(0)?;
        Self::new(&model, device, dtype, Prefixes::Shared)
    }

    fn reference() -> Result<Self> {
        Self::embedded(&Device::Cpu, DType::F32)
    }

    /// Returns the logits of every token, and log-probabilities and entropies of the scored tokens.
    fn forward(&self) -> Result<[Vec<f64>; 3]> {
        let hidden = self.decoder.forward(&self.batch.packed, None)?;
        let logits = values(&self.decoder.logits(&hidden)?)?;
        let hidden = ops::select_rows(&hidden, &self.batch.predictors)?;
        let targets = &self.batch.targets;
        let found = self.decoder.token_logprobs(&hidden, targets, 1.0)?;
        Ok([logits, values(&found.logprobs)?, values(&found.entropies)?])
    }

    /// Returns the gradient of the mean log-probability plus a tenth of the mean entropy.
    fn gradients(&self) -> Result<Gradients> {
        let scored = self.batch.scored_tokens(1.0);
        let pass = TrainingPass::forward(
            &self.decoder,
            &self.batch.packed,
            scored,
            GradientCheckpointing::Off,
        )?;
        let count = self.batch.targets.len();
        let weight = 1.0 / count as f64;
        let derivatives = LogprobGradients {
            logprobs: vec![weight; count],
            entropies: Some(vec![0.1 * weight; count]),
        };
        Ok(pass.backward(&derivatives)?)
    }
}

pub(super) fn forward(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let found = DecoderUnderTest::embedded(&target.device, target.exact())?.forward()?;
    let expected = DecoderUnderTest::reference()?.forward()?;
    let names = ["logits", "log-probabilities", "entropies"];
    let pairs = names.into_iter().zip(found.iter().zip(&expected));
    let measurement = |(name, (found, expected)): (&str, (&Vec<f64>, &Vec<f64>))| {
        let name = format!("largest difference of {name}");
        Measurement::within(EXACT, name, largest_difference(found, expected))
    };
    Ok(pairs.map(measurement).collect())
}

pub(super) fn gradients(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let found = DecoderUnderTest::embedded(&target.device, target.exact())?.gradients()?;
    let expected = DecoderUnderTest::reference()?.gradients()?;
    gradient_errors(&found, &expected, EXACT, EXACT)
}

pub(super) fn bf16(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for head_dim in HEAD_SIZES {
        let model = model_with_heads_of(head_dim)?;
        let on = |device, dtype| DecoderUnderTest::new(&model, device, dtype, Prefixes::Shared);
        let (decoder, reference) = (
            on(&target.device, DType::BF16)?,
            on(&Device::Cpu, DType::F32)?,
        );
        let ([_, found, _], [_, expected, _]) = (decoder.forward()?, reference.forward()?);
        let of_head = |name: &str| format!("heads of {head_dim}: {name}");
        measurements.push(Measurement::within(
            BF16_LOGPROBS,
            of_head("mean difference of log-probabilities"),
            mean_difference(&found, &expected),
        ));
        let (found, expected) = (decoder.gradients()?, reference.gradients()?);
        let errors = gradient_errors(&found, &expected, BF16_GRADIENT, BF16_WORST_GRADIENT)?;
        measurements.extend(errors.into_iter().map(|error| Measurement {
            name: of_head(&error.name),
            ..error
        }));
    }
    Ok(measurements)
}

/// Compares prefill and decode through the KV cache with one forward pass.
pub(super) fn cache(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for head_dim in HEAD_SIZES {
        let model = model_with_heads_of(head_dim)?;
        for (dtype, what) in [
            (target.exact(), "in full precision"),
            (DType::BF16, "in bf16"),
        ] {
            let what = format!("{what}, heads of {head_dim}");
            let device = &target.device;
            let decoder = DecoderUnderTest::new(&model, device, dtype, Prefixes::Repeated)?;
            let [_, expected, _] = decoder.forward()?;
            let found = logprobs_in_pieces(&decoder)?;
            measurements.extend(agreement(&what, &found, &expected, dtype));
            if dtype != DType::BF16 {
                let name = format!("largest difference {what}");
                let difference = largest_difference(&found, &expected);
                measurements.push(Measurement::within(EXACT, name, difference));
            }
        }
    }
    Ok(measurements)
}

/// Returns the log-probabilities that the decoder computes for all rows at once through its KV
/// cache: a prefill of 4 tokens, one of the next 20, then decode steps of one token.
fn logprobs_in_pieces(under_test: &DecoderUnderTest) -> Result<Vec<f64>> {
    let packed = &under_test.batch.packed;
    let longest = packed.rows.iter().map(|row| row.len).max().unwrap_or(0);
    let mut cache = under_test.decoder.kv_cache(packed.rows.len(), longest)?;
    let mut logprobs = vec![f64::NAN; packed.tokens.len()];
    let mut cached = 0;
    while cached < longest {
        let end = match cached {
            0 => 4,
            4 => 24,
            cached => cached + 1,
        };
        let mut batch = PackedRows::default();
        let mut positions = Vec::new();
        let mut start = 0;
        for (slot, row) in packed.rows.iter().enumerate() {
            let (from, to) = (cached.min(row.len), end.min(row.len));
            if from < to {
                batch.push_after(&packed.tokens[start + from..start + to], from, slot);
                positions.extend(start + from..start + to);
            }
            start += row.len;
        }
        let hidden = under_test.decoder.forward(&batch, Some(&mut cache))?;
        let targets: Vec<u32> = positions
            .iter()
            .map(|&position| under_test.batch.targets[position])
            .collect();
        let found = under_test.decoder.token_logprobs(&hidden, &targets, 1.0)?;
        for (position, logprob) in positions.into_iter().zip(values(&found.logprobs)?) {
            logprobs[position] = logprob;
        }
        cached = end;
    }
    Ok(logprobs)
}

/// Compares the log-probabilities that the engine records with those that the learner computes.
pub(super) async fn engine(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (choice, what) in [(DTypeChoice::F32, "in f32"), (DTypeChoice::Bf16, "in bf16")] {
        let model = policy::embedded::model(0)?;
        let completions = completions(&model, target, choice).await?;
        let sample = |(prompt, completion): &(Vec<u32>, Completion)| Sample {
            tokens: [prompt.as_slice(), &completion.tokens].concat().into(),
            scored: (prompt.len()..prompt.len() + completion.tokens.len()).collect(),
            ..Sample::default()
        };
        let samples: Vec<Sample<'_>> = completions.iter().map(sample).collect();
        let batches = micro_batches(&samples, 512, Prefixes::Repeated);
        let weights = model
            .weights
            .to(&target.device, choice.on(&target.device, &model.config))?;
        let decoder = Decoder::new(&model.config, &weights, DecoderMode::Train)?;
        let found = scores(&decoder, &batches, one_pass(1))?;
        let learned: Vec<f64> = found
            .into_iter()
            .flat_map(|scores| scores.logprobs)
            .collect();
        let drawn = batches.iter().flat_map(|batch| &batch.samples);
        let recorded: Vec<f64> = drawn
            .flat_map(|&sample| {
                completions[sample]
                    .1
                    .logprobs
                    .iter()
                    .copied()
                    .map(f64::from)
            })
            .collect();
        measurements.extend(agreement(what, &recorded, &learned, decoder.dtype()));
    }
    Ok(measurements)
}

/// Samples groups of completions with a common prompt.
async fn completions(
    model: &Model,
    target: &CheckTarget<'_>,
    dtype: DTypeChoice,
) -> Result<Vec<(Vec<u32>, Completion)>> {
    const GROUPS: usize = 3;
    const MEMBERS: usize = 4;
    let settings = EngineSettings {
        slots: GROUPS * MEMBERS,
        ..EngineSettings::default()
    };
    let placement = Placement {
        device: target.args.device,
        dtype,
    };
    let engine = &Engine::spawn(model, 0, 160, &settings, placement)?;
    let complete = |row: usize| async move {
        let prompt = text(
            row / MEMBERS,
            20 + 30 * (row / MEMBERS),
            model.config.vocab_size,
        );
        let request = CompletionRequest {
            context: prompt.clone(),
            max_tokens: 48,
            coordinates: Coordinates {
                group: row as u64,
                ..Coordinates::default()
            },
        };
        anyhow::Ok((
            prompt,
            engine
                .complete(request, SamplingSettings::default())
                .await?,
        ))
    };
    try_join_all((0..GROUPS * MEMBERS).map(complete)).await
}
