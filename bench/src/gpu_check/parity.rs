//! The decoder on the device against the CPU in f32, and the sampler against the learner, on the embedded policy with random
//! weights. The CPU's own measurements are held to recordings of transformers by the tests of `policy`.

use actor::{Completion, CompletionRequest, Engine, EngineSettings};
use anyhow::{Context as _, Result};
use candle_core::{DType, Device, Tensor};
use futures::future::try_join_all;
use learner::{
    batch::{MicroBatch, Prefixes, Sample, micro_batches},
    network::{LossDerivatives, Network, PassSettings, Scores, scores},
    optimizer::OptimizerSettings,
};
use policy::{
    Coordinates, DTypeChoice, Decoder, DecoderMode, GradientCheckpointing, Gradients, KvCache,
    Model, PackedRows, Placement, SamplingSettings, TrainingPass, ops::LogprobGradients,
};

use super::{CheckTarget, report::Measurement};
use crate::policy::shape::text;

/// Lengths of the rows: one token, odd ones, and some around a page of the KV cache.
const LENGTHS: [usize; 6] = [1, 5, 15, 16, 33, 96];
/// How far single values may lie from the CPU's in f32.
const EXACT: f64 = 1e-4;
/// How far the sampler's log-probabilities may lie from the learner's on average, and their KL by the k3 estimator.
/// On the CPU both are 0 (policy/src/ops/fixed_shape.rs). Where they are not on a GPU, its library sums rows of one product in
/// different orders.
pub(super) const MEAN_DIFFERENCE: f64 = 1e-3;
pub(super) const KL: f64 = 1e-5;
/// How far bf16, which keeps 8 bits, may lie from f32: log-probabilities on average, the gradient of all weights, and that of
/// the weight which fares worst.
const BF16_LOGPROBS: f64 = 0.03;
const BF16_GRADIENT: f64 = 0.05;
const BF16_WORST_GRADIENT: f64 = 0.15;

/// A decoder somewhere, and the texts it is asked about.
struct DecoderUnderTest {
    decoder: Decoder,
    batch: MicroBatch,
}

impl DecoderUnderTest {
    fn new(device: &Device, dtype: DType) -> Result<Self> {
        let model = policy::tiny::model(0)?;
        let sample = |(number, &length): (usize, &usize)| Sample {
            tokens: text(number, length + 1, model.config.vocab_size),
            scored: (1..=length).collect(),
        };
        let samples: Vec<Sample> = LENGTHS.iter().enumerate().map(sample).collect();
        let mut batches = micro_batches(&samples, usize::MAX, Prefixes::Repeated);
        let weights = model.weights.to(device, dtype)?;
        Ok(Self {
            decoder: Decoder::new(&model.config, &weights, DecoderMode::Train)?,
            batch: batches
                .pop()
                .context("texts make no batch: this is a bug")?,
        })
    }

    fn reference() -> Result<Self> {
        Self::new(&Device::Cpu, DType::F32)
    }

    /// Logits of every token, and log-probabilities and entropies of the next ones.
    fn forward(&self) -> Result<[Vec<f64>; 3]> {
        let hidden = self.decoder.forward(&self.batch.packed, None)?;
        let logits = values(&self.decoder.logits(&hidden)?)?;
        let found = self
            .decoder
            .token_logprobs(&hidden, &self.batch.targets, 1.0)?;
        Ok([logits, values(&found.logprobs)?, values(&found.entropies)?])
    }

    /// The gradient of the mean log-probability, with entropies at a tenth of its weight.
    fn gradients(&self) -> Result<Gradients> {
        let scored = self.batch.scored_tokens(1.0);
        let pass = TrainingPass::forward(
            &self.decoder,
            &self.batch.packed,
            scored,
            GradientCheckpointing::Off,
        )?;
        let weight = 1.0 / self.batch.targets.len() as f64;
        let count = self.batch.targets.len();
        let derivatives = LogprobGradients {
            logprobs: &vec![weight; count],
            entropies: Some(&vec![0.1 * weight; count]),
        };
        Ok(pass.backward(derivatives)?)
    }
}

pub(super) fn forward(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let found = DecoderUnderTest::new(&target.device, target.exact())?.forward()?;
    let expected = DecoderUnderTest::reference()?.forward()?;
    let names = ["logits", "log-probabilities", "entropies"];
    let measurement = |((name, found), expected): ((&str, &Vec<f64>), &Vec<f64>)| {
        Measurement::within(
            EXACT,
            format!("largest difference of {name}"),
            largest(found, expected),
        )
    };
    Ok(names
        .into_iter()
        .zip(&found)
        .zip(&expected)
        .map(measurement)
        .collect())
}

pub(super) fn gradients(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let found = DecoderUnderTest::new(&target.device, target.exact())?.gradients()?;
    let errors = GradientErrors::new(&found, &DecoderUnderTest::reference()?.gradients()?)?;
    Ok(errors.measurements(EXACT, EXACT))
}

pub(super) fn bf16(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let (probe, reference) = (
        DecoderUnderTest::new(&target.device, DType::BF16)?,
        DecoderUnderTest::reference()?,
    );
    let ([_, found, _], [_, expected, _]) = (probe.forward()?, reference.forward()?);
    let mut measurements = vec![Measurement::within(
        BF16_LOGPROBS,
        "mean difference of log-probabilities",
        mean(&found, &expected),
    )];
    let errors = GradientErrors::new(&probe.gradients()?, &reference.gradients()?)?;
    measurements.extend(errors.measurements(BF16_GRADIENT, BF16_WORST_GRADIENT));
    Ok(measurements)
}

/// All rows at once: a prompt each, a piece, then token after token, as far as each goes.
pub(super) fn cache(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (dtype, what) in [
        (target.exact(), "in full precision"),
        (DType::BF16, "in bf16"),
    ] {
        let probe = DecoderUnderTest::new(&target.device, dtype)?;
        let [_, expected, _] = probe.forward()?;
        let found = fed_in_pieces(&probe, &target.device, dtype)?;
        measurements.extend(agreement(what, &found, &expected));
        if dtype != DType::BF16 {
            let name = format!("largest difference {what}");
            measurements.push(Measurement::within(EXACT, name, largest(&found, &expected)));
        }
    }
    Ok(measurements)
}

fn fed_in_pieces(probe: &DecoderUnderTest, device: &Device, dtype: DType) -> Result<Vec<f64>> {
    let config = probe.decoder.config();
    let packed = &probe.batch.packed;
    let longest = *LENGTHS.iter().max().unwrap_or(&0);
    let mut cache = KvCache::on(config, packed.rows.len(), longest, device, dtype)?;
    let starts: Vec<usize> = starts(packed);
    let mut logprobs = vec![f64::NAN; packed.tokens.len()];
    // Where a piece ends: the prompt's end, the next piece's, then each token's.
    let mut fed = 0;
    while fed < longest {
        let next = match fed {
            0 => 4,
            4 => 24,
            fed => fed + 1,
        };
        let mut batch = PackedRows::default();
        let mut places = Vec::new();
        for (slot, (row, &start)) in packed.rows.iter().zip(&starts).enumerate() {
            let (from, to) = (fed.min(row.len), next.min(row.len));
            if from < to {
                batch.push_cached(&packed.tokens[start + from..start + to], from, slot);
                places.extend(start + from..start + to);
            }
        }
        let hidden = probe.decoder.forward(&batch, Some(&mut cache))?;
        let targets: Vec<u32> = places
            .iter()
            .map(|&place| probe.batch.targets[place])
            .collect();
        let found = probe.decoder.token_logprobs(&hidden, &targets, 1.0)?;
        for (place, logprob) in places.into_iter().zip(values(&found.logprobs)?) {
            logprobs[place] = logprob;
        }
        fed = next;
    }
    Ok(logprobs)
}

/// Completes groups of a common prompt on an engine, and scores what it drew as the learner does.
pub(super) async fn engine(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (choice, what) in [(DTypeChoice::F32, "in f32"), (DTypeChoice::Bf16, "in bf16")] {
        let model = policy::tiny::model(0)?;
        let completions = completions(&model, target, choice).await?;
        let sample = |(prompt, completion): &(Vec<u32>, Completion)| Sample {
            tokens: [prompt.as_slice(), &completion.tokens].concat(),
            scored: (prompt.len()..prompt.len() + completion.tokens.len()).collect(),
        };
        let samples: Vec<Sample> = completions.iter().map(sample).collect();
        let batches = micro_batches(&samples, 512, Prefixes::Repeated);
        let weights = model
            .weights
            .to(&target.device, choice.on(&target.device))?;
        let decoder = Decoder::new(&model.config, &weights, DecoderMode::Train)?;
        let found = scores(&decoder, &batches, pass())?;
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
        measurements.extend(agreement(what, &recorded, &learned));
    }
    Ok(measurements)
}

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

/// One update from the same weights; what AdamW makes of a gradient near 0 is its sign, so a few weights may differ by a step.
pub(super) fn update(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    const LEARNING_RATE: f64 = 1e-3;
    let dtype = match target.device {
        Device::Cpu => DType::BF16,
        _ => DType::F32,
    };
    let updated = |device: &Device, dtype| -> Result<Vec<f64>> {
        let probe = DecoderUnderTest::new(device, dtype)?;
        let model = policy::tiny::model(0)?;
        let weights = model.weights.to(device, dtype)?;
        let mut network = Network::new(&model.config, &weights, OptimizerSettings::default())?;
        let (gradients, _) =
            network.gradients(&[probe.batch], pass(), |_, _, scores: &Scores| {
                let count = scores.logprobs.len();
                let coefficients = LossDerivatives {
                    d_logprobs: vec![-1.0 / count as f64; count],
                    d_entropies: None,
                };
                (coefficients, ())
            })?;
        network.update(gradients, LEARNING_RATE)?;
        let weights = network.weights();
        let all = weights
            .iter()
            .map(|(_, tensor)| values(tensor))
            .collect::<Result<Vec<_>>>()?;
        Ok(all.concat())
    };
    let (found, expected) = (
        updated(&target.device, dtype)?,
        updated(&Device::Cpu, DType::F32)?,
    );
    let limit = if dtype == DType::BF16 {
        LEARNING_RATE
    } else {
        EXACT
    };
    Ok(vec![Measurement::within(
        limit,
        "mean difference of weights",
        mean(&found, &expected),
    )])
}

fn pass() -> PassSettings {
    PassSettings {
        temperature: 1.0,
        threads: 1,
        checkpointing: GradientCheckpointing::Off,
    }
}

fn starts(packed: &PackedRows) -> Vec<usize> {
    let lengths = packed.rows.iter().map(|row| row.len);
    let next = |start: &mut usize, length| {
        *start += length;
        Some(*start - length)
    };
    lengths.scan(0, next).collect()
}

/// The mean difference of log-probabilities, and the KL of the distributions by the k3 estimator.
fn agreement(what: &str, sampled: &[f64], learned: &[f64]) -> [Measurement; 2] {
    let k3 = |(sampled, learned): (&f64, &f64)| {
        let log_ratio = learned - sampled;
        log_ratio.exp_m1() - log_ratio
    };
    let kl = sampled.iter().zip(learned).map(k3).sum::<f64>() / sampled.len() as f64;
    [
        Measurement::within(
            MEAN_DIFFERENCE,
            format!("mean difference {what}"),
            mean(sampled, learned),
        ),
        Measurement::within(KL, format!("KL {what}"), kl),
    ]
}

pub(super) fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    let on_cpu = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    Ok(on_cpu.flatten_all()?.to_vec1()?)
}

/// NaN where one is, so that it fails.
fn largest(found: &[f64], expected: &[f64]) -> f64 {
    let differences = differences(found, expected);
    differences.fold(0.0, |largest: f64, difference| {
        if difference <= largest || largest.is_nan() {
            largest
        } else {
            difference
        }
    })
}

fn mean(found: &[f64], expected: &[f64]) -> f64 {
    differences(found, expected).sum::<f64>() / found.len() as f64
}

fn differences<'a>(found: &'a [f64], expected: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    assert_eq!(
        found.len(),
        expected.len(),
        "as many on the device as on the CPU"
    );
    found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs())
}

/// |difference| / |gradient|.
struct GradientErrors {
    of_all: f64,
    worst: f64,
    worst_weight: String,
}

impl GradientErrors {
    fn new(found: &Gradients, expected: &Gradients) -> Result<Self> {
        let (mut error, mut whole) = (0.0, 0.0);
        let (mut worst, mut worst_weight) = (0.0, String::new());
        for (name, expected) in expected.iter() {
            let found = found.get(name);
            let found = found.with_context(|| format!("{name} has no gradient on the device"))?;
            let (found, expected) = (values(found)?, values(expected)?);
            let of_error: f64 = differences(&found, &expected).map(|x| x * x).sum();
            let of_whole: f64 = expected.iter().map(|x| x * x).sum();
            let relative = (of_error / of_whole).sqrt();
            if relative.is_nan() || relative > worst {
                (worst, worst_weight) = (relative, name.to_owned());
            }
            error += of_error;
            whole += of_whole;
        }
        Ok(Self {
            of_all: (error / whole).sqrt(),
            worst,
            worst_weight,
        })
    }

    fn measurements(self, limit: f64, worst_limit: f64) -> Vec<Measurement> {
        let worst = format!(
            "relative error of the worst gradient, {}",
            self.worst_weight
        );
        vec![
            Measurement::within(limit, "relative error of all gradients", self.of_all),
            Measurement::within(worst_limit, worst, self.worst),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_no_agreement() {
        let (found, expected) = ([0.0, f64::NAN, 0.5], [0.0, 0.0, 0.0]);
        assert!(!Measurement::within(1.0, "", largest(&found, &expected)).is_fine());
        assert!(
            agreement("", &found, &expected)
                .iter()
                .all(|measurement| !measurement.is_fine())
        );
        assert_eq!(largest(&found[2..], &expected[2..]), 0.5);
    }

    #[test]
    fn kl_is_zero_where_they_agree_and_grows_with_the_square() {
        let [_, same] = agreement("", &[-1.0, -2.0], &[-1.0, -2.0]);
        assert_eq!(same.value, 0.0);
        let [_, apart] = agreement("", &[-1.0, -2.0], &[-1.01, -2.01]);
        assert!((apart.value - 5e-5).abs() < 1e-6, "{}", apart.value);
    }
}
