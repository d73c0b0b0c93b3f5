//! Checks an update of the weights.

use std::collections::BTreeMap;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use learner::{
    network::Network,
    optimizer::{AdamW, Gradients, OptimizerSettings, Parameter, global_norm},
};

use super::{DecoderUnderTest, EXACT, compare::mean_difference, mean_loss, one_pass, values};
use crate::gpu_check::{report::Measurement, target::CheckTarget};

const LEARNING_RATE: f64 = 1e-3;
/// Numbers of values of the tensors, around what a block of a kernel computes.
const COUNTS: [usize; 7] = [1, 255, 257, 8_191, 8_192, 8_193, 200_000];

/// Compares the optimizer with that of the CPU, and a whole update of the embedded policy.
pub(in crate::gpu_check) fn update(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let mut measurements = optimizer(&target.device)?;
    measurements.push(embedded(&target.device)?);
    Ok(measurements)
}

/// Compares three updates from the same gradients. Both devices round each operation in the same
/// way, so the bits are equal.
fn optimizer(device: &Device) -> Result<Vec<Measurement>> {
    let [found, expected] = [updated(device)?, updated(&Device::Cpu)?];
    let differing = found.bits.iter().zip(&expected.bits);
    let differing = differing.filter(|(found, expected)| found != expected);
    let difference = (found.norm / expected.norm - 1.0).abs();
    let not_finite = gradients(device, 0, f32::NAN)?;
    let finite_norms = usize::from(global_norm(&not_finite)?.is_finite());
    Ok(vec![
        Measurement::within(0.0, "values of AdamW that differ", differing.count() as f64),
        Measurement::within(1e-12, "relative difference of the norm", difference),
        Measurement::within(0.0, "NaN missed by the norm", finite_norms as f64),
    ])
}

struct Updated {
    /// Those of weights and moments.
    bits: Vec<u64>,
    /// Norm of the last gradients.
    norm: f64,
}

fn updated(device: &Device) -> Result<Updated> {
    let settings = OptimizerSettings {
        weight_decay: 0.1,
        ..OptimizerSettings::default()
    };
    let mut optimizer = AdamW::new(settings);
    let start = gradients(device, 100, 0.5)?;
    let parameter = |(name, value): (&String, &Tensor)| {
        let decays = !name.ends_with('1');
        let value = value.clone();
        (name.clone(), Parameter { value, decays })
    };
    let mut parameters: BTreeMap<_, _> = start.iter().map(parameter).collect();
    let mut norm = 0.0;
    for step in 0..3 {
        let gradients = gradients(device, step, 0.5)?;
        norm = global_norm(&gradients)?;
        optimizer.step(&mut parameters, gradients, 0.3, LEARNING_RATE)?;
    }
    let moments = optimizer.moments.values();
    let moments = moments.flat_map(|it| [&it.first, &it.second]);
    let tensors = parameters.values().map(|it| &it.value).chain(moments);
    let all = tensors.map(values).collect::<Result<Vec<_>>>()?;
    let bits = all.iter().flatten().map(|value| value.to_bits());
    Ok(Updated {
        bits: bits.collect(),
        norm,
    })
}

/// Tensors of values between -1 and 1, of which each begins with `first`.
fn gradients(device: &Device, seed: usize, first: f32) -> Result<Gradients> {
    let tensor = |count: usize| -> Result<_> {
        let value = |at: usize| ((seed * 977 + at * 13 + count) as f64).sin() as f32;
        let mut values: Vec<f32> = (0..count).map(value).collect();
        values[0] = first;
        let tensor = Tensor::from_vec(values, count, device)?;
        Ok((format!("tensor of {count}"), tensor))
    };
    COUNTS.into_iter().map(tensor).collect()
}

/// Compares the weights of the embedded policy after one update. The first step of AdamW is the
/// sign of the gradient, so a few weights with gradients near 0 may differ by up to twice the
/// learning rate.
fn embedded(device: &Device) -> Result<Measurement> {
    let dtype = match device {
        Device::Cpu => DType::BF16,
        _ => DType::F32,
    };
    let updated = |device: &Device, dtype| -> Result<Vec<f64>> {
        let decoder = DecoderUnderTest::embedded(device, dtype)?;
        let model = policy::embedded::model(0)?;
        let weights = model.weights.to(device, dtype)?;
        let mut network = Network::new(&model.config, &weights, OptimizerSettings::default())?;
        let (gradients, _) = network.gradients(&[decoder.batch], one_pass(1), mean_loss)?;
        network.update(gradients, LEARNING_RATE)?;
        let weights = network.weights();
        let all = weights
            .iter()
            .map(|(_, tensor)| values(tensor))
            .collect::<Result<Vec<_>>>()?;
        Ok(all.concat())
    };
    let (found, expected) = (updated(device, dtype)?, updated(&Device::Cpu, DType::F32)?);
    let limit = match dtype {
        DType::BF16 => LEARNING_RATE,
        _ => EXACT,
    };
    let difference = mean_difference(&found, &expected);
    let name = "mean difference of weights";
    Ok(Measurement::within(limit, name, difference))
}
