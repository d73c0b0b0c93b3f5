//! Differences of log-probabilities, gradients and weights.

use anyhow::{Context as _, Result};
use candle_core::{DType, Device, Tensor};
use policy::Gradients;

use crate::gpu_check::report::Measurement;

/// Largest mean difference of the sampler's log-probabilities from the learner's, and largest KL of
/// the two by the k3 estimator. Kernels give the same bits. A library may sum the rows of one
/// product in different orders, which tensor operations on a GPU would show.
pub(in crate::gpu_check) const EQUAL_BITS: [f64; 2] = [0.0, 0.0];
pub(super) const TENSOR_OPERATIONS: [f64; 2] = [1e-3, 1e-5];

/// Returns the mean difference of log-probabilities, and their KL by the k3 estimator.
pub(super) fn agreement(
    what: &str,
    sampled: &[f64],
    learned: &[f64],
    dtype: DType,
) -> [Measurement; 2] {
    // Kernels compute bf16 on every device.
    let limits = match dtype {
        DType::BF16 => EQUAL_BITS,
        _ => TENSOR_OPERATIONS,
    };
    let k3 = |(sampled, learned): (&f64, &f64)| {
        let log_ratio = learned - sampled;
        log_ratio.exp_m1() - log_ratio
    };
    let kl = sampled.iter().zip(learned).map(k3).sum::<f64>() / sampled.len() as f64;
    let difference = mean_difference(sampled, learned);
    [
        Measurement::within(limits[0], format!("mean difference {what}"), difference),
        Measurement::within(limits[1], format!("KL {what}"), kl),
    ]
}

/// Copies a tensor to the CPU as f64.
pub(in crate::gpu_check) fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    let on_cpu = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    Ok(on_cpu.flatten_all()?.to_vec1()?)
}

/// Returns the largest difference; NaN if any is NaN, so that the check fails.
pub(super) fn largest_difference(found: &[f64], expected: &[f64]) -> f64 {
    // NaN is the largest value of the total order, and `f64::max` would ignore it.
    let largest = differences(found, expected).max_by(f64::total_cmp);
    largest.unwrap_or(0.0)
}

/// Returns the mean difference.
pub(super) fn mean_difference(found: &[f64], expected: &[f64]) -> f64 {
    differences(found, expected).sum::<f64>() / found.len() as f64
}

fn differences<'a>(found: &'a [f64], expected: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    assert_eq!(found.len(), expected.len(), "values on device and CPU");
    found.iter().zip(expected).map(|(a, b)| (a - b).abs())
}

/// Returns the norm of the difference of all gradients, divided by the norm of the gradients, and
/// the same for the parameter where it is largest.
pub(super) fn gradient_errors(
    found: &Gradients,
    expected: &Gradients,
    limit: f64,
    worst_limit: f64,
) -> Result<Vec<Measurement>> {
    let (mut error, mut whole) = (0.0, 0.0);
    let (mut worst, mut worst_name) = (0.0, "");
    for (name, expected) in expected {
        let found = found.get(name);
        let found = found.with_context(|| format!("{name} has no gradient on the device"))?;
        let (found, expected) = (values(found)?, values(expected)?);
        let of_error: f64 = differences(&found, &expected).map(|x| x * x).sum();
        let of_whole: f64 = expected.iter().map(|x| x * x).sum();
        let relative = (of_error / of_whole).sqrt();
        if relative.is_nan() || relative > worst {
            (worst, worst_name) = (relative, name.as_str());
        }
        error += of_error;
        whole += of_whole;
    }
    let of_all = (error / whole).sqrt();
    let worst_name = format!("relative error of the worst gradient, {worst_name}");
    Ok(vec![
        Measurement::within(limit, "relative error of all gradients", of_all),
        Measurement::within(worst_limit, worst_name, worst),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_no_agreement() {
        let (found, expected) = ([0.0, f64::NAN, 0.5], [0.0, 0.0, 0.0]);
        assert!(!Measurement::within(1.0, "", largest_difference(&found, &expected)).is_fine());
        assert!(
            agreement("", &found, &expected, DType::F32)
                .iter()
                .all(|measurement| !measurement.is_fine())
        );
        assert_eq!(largest_difference(&found[2..], &expected[2..]), 0.5);
    }

    #[test]
    fn kl_is_zero_where_they_agree_and_grows_with_the_square() {
        let [_, same] = agreement("", &[-1.0, -2.0], &[-1.0, -2.0], DType::F32);
        assert_eq!(same.value, 0.0);
        let [_, apart] = agreement("", &[-1.0, -2.0], &[-1.01, -2.01], DType::F32);
        assert!((apart.value - 5e-5).abs() < 1e-6, "{}", apart.value);
    }

    #[test]
    fn kernels_must_give_equal_bits_and_tensor_operations_nearly() {
        let is_fine = |dtype| {
            let nearly = [-1.0, -2.0 + 1e-6];
            agreement("", &[-1.0, -2.0], &nearly, dtype).map(|it| it.is_fine())
        };
        assert_eq!(is_fine(DType::F32), [true; 2]);
        assert_eq!(is_fine(DType::BF16), [false; 2]);
    }
}
