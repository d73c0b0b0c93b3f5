//! The optimizer's passes over f32 tensors on NVIDIA GPUs, each by one kernel. On another device
//! or in another dtype they return none, and the caller computes them.

use candle_core::{Result, Tensor};

/// The constants of one AdamW update of one tensor, rounded to f32.
#[derive(Clone, Copy, Debug)]
pub struct AdamWConstants {
    /// Factor of the gradient: the clipping.
    pub gradient_factor: f32,
    /// Factor of the value: 1 less the weight decay.
    pub keep: f32,
    /// Share of the gradient in the first moment.
    pub first_rate: f32,
    /// Factor of the second moment.
    pub second_keep: f32,
    /// Share of the squared gradient in the second moment.
    pub second_rate: f32,
    /// The learning rate, corrected for the first moment's start at 0.
    pub step_size: f32,
    /// Divisor of the second moment's root, which corrects for its start at 0.
    pub second_correction: f32,
    /// Added to the denominator.
    pub epsilon: f32,
}

impl AdamWConstants {
    /// Returns the constants in the order in which the kernel takes them.
    #[cfg(feature = "cuda")]
    pub(super) fn in_order(&self) -> [f32; 8] {
        [
            self.gradient_factor,
            self.keep,
            self.first_rate,
            self.second_keep,
            self.second_rate,
            self.step_size,
            self.second_correction,
            self.epsilon,
        ]
    }
}

/// Returns the value, the first and the second moment after one update.
///
/// # Errors
/// The shapes differ, or the GPU failed.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
pub fn adamw_on_gpu(
    value: &Tensor,
    gradient: &Tensor,
    moments: [&Tensor; 2],
    constants: &AdamWConstants,
) -> Result<Option<[Tensor; 3]>> {
    #[cfg(feature = "cuda")]
    if are_f32_on_gpu(&[value, gradient, moments[0], moments[1]]) {
        return super::cuda::adamw(value, gradient, moments, constants).map(Some);
    }
    Ok(None)
}

/// Returns the sum of the squares of all values, in f64. It is finite only if all values are.
///
/// # Errors
/// The GPU failed.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
pub fn sum_of_squares_on_gpu(tensors: &[&Tensor]) -> Result<Option<f64>> {
    #[cfg(feature = "cuda")]
    if are_f32_on_gpu(tensors) {
        return super::cuda::sum_of_squares(tensors).map(Some);
    }
    Ok(None)
}

#[cfg(feature = "cuda")]
fn are_f32_on_gpu(tensors: &[&Tensor]) -> bool {
    let is =
        |tensor: &&Tensor| tensor.device().is_cuda() && tensor.dtype() == candle_core::DType::F32;
    tensors.iter().all(is)
}
