//! One AdamW update of one tensor.
//!
//! Pure. In f32 a fused loop on the CPU and a kernel on NVIDIA GPUs, elsewhere tensor operations;
//! all compute the same formula.

use candle_core::{DType, Storage, Tensor};
use policy::ops::{AdamWConstants, adamw_on_gpu};

use super::OptimizerSettings;
use crate::error::Result;

/// Elements that the fused loop updates at a time: copies of them stay in the L1 cache.
const BLOCK: usize = 1024;

/// The constants of one update of one tensor.
pub(super) struct AdamWUpdate {
    factor: f64,
    keep: f64,
    first_rate: f64,
    second_keep: f64,
    step_size: f64,
    second_correction: f64,
    epsilon: f64,
}

impl AdamWUpdate {
    pub(super) fn new(
        settings: &OptimizerSettings,
        updates: u64,
        learning_rate: f64,
        decays: bool,
        factor: f64,
    ) -> Self {
        let decay = if decays { settings.weight_decay } else { 0.0 };
        let power = |beta: f64| beta.powf(updates as f64);
        Self {
            factor,
            keep: 1.0 - learning_rate * decay,
            first_rate: 1.0 - settings.adam_beta1,
            second_keep: settings.adam_beta2,
            step_size: learning_rate / (1.0 - power(settings.adam_beta1)),
            second_correction: (1.0 - power(settings.adam_beta2)).sqrt(),
            epsilon: settings.adam_epsilon,
        }
    }

    /// Returns the value and the moments after the update.
    pub(super) fn run(
        &self,
        value: &Tensor,
        gradient: &Tensor,
        moments: [&Tensor; 2],
    ) -> Result<(Tensor, [Tensor; 2])> {
        let tensors = [value, gradient, moments[0], moments[1]];
        let fused = on_slices(tensors, |[value, gradient, first, second]| {
            self.fused(value, gradient, [first, second])
        })?;
        if let Some(fused) = fused {
            let tensor = |values: Vec<f32>| Tensor::from_vec(values, value.shape(), value.device());
            let [value, first, second] = fused.map(tensor);
            return Ok((value?, [first?, second?]));
        }
        match adamw_on_gpu(value, gradient, moments, &self.constants())? {
            Some([value, first, second]) => Ok((value, [first, second])),
            None => self.by_tensor_ops(value, gradient, moments),
        }
    }

    /// Computes [`Self::run`] on the CPU in f32; memory is read and written once.
    fn fused(&self, value: &[f32], gradient: &[f32], moments: [&[f32]; 2]) -> [Vec<f32>; 3] {
        let [first, second] = moments;
        let mut after = [(); 3].map(|()| Vec::with_capacity(value.len()));
        for start in (0..value.len()).step_by(BLOCK) {
            let block = start..value.len().min(start + BLOCK);
            for (after, before) in after.iter_mut().zip([value, first, second]) {
                after.extend_from_slice(&before[block.clone()]);
            }
            let [value, first, second] = &mut after;
            self.update(
                &mut value[start..],
                &gradient[block],
                &mut first[start..],
                &mut second[start..],
            );
        }
        after
    }

    fn constants(&self) -> AdamWConstants {
        AdamWConstants {
            gradient_factor: self.factor as f32,
            keep: self.keep as f32,
            first_rate: self.first_rate as f32,
            second_keep: self.second_keep as f32,
            second_rate: (1.0 - self.second_keep) as f32,
            step_size: self.step_size as f32,
            second_correction: self.second_correction as f32,
            epsilon: self.epsilon as f32,
        }
    }

    /// Updates a block in place. The kernel for GPUs (`policy/src/ops/cuda/optimizer.cu`) computes
    /// the same sequence of operations.
    fn update(&self, values: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32]) {
        let AdamWConstants {
            gradient_factor,
            keep,
            first_rate,
            second_keep,
            second_rate,
            step_size,
            second_correction,
            epsilon,
        } = self.constants();
        let state = first.iter_mut().zip(second);
        for ((value, &g), (first, second)) in values.iter_mut().zip(gradient).zip(state) {
            let g = gradient_factor * g;
            *first += first_rate * (g - *first);
            *second = second_keep * *second + second_rate * g * g;
            let denominator = second.sqrt() / second_correction + epsilon;
            *value = keep * *value - step_size * (*first / denominator);
        }
    }

    /// Computes [`Self::run`] by tensor operations, on any device and in any float dtype.
    fn by_tensor_ops(
        &self,
        value: &Tensor,
        gradient: &Tensor,
        [first, second]: [&Tensor; 2],
    ) -> Result<(Tensor, [Tensor; 2])> {
        let gradient = gradient.affine(self.factor, 0.0)?;
        let towards = (&gradient - first)?.affine(self.first_rate, 0.0)?;
        let first = (first + towards)?;
        let squares = gradient.sqr()?.affine(1.0 - self.second_keep, 0.0)?;
        let second = (second.affine(self.second_keep, 0.0)? + squares)?;
        let denominator = second.sqrt()?;
        let denominator = denominator.affine(1.0 / self.second_correction, self.epsilon)?;
        let step = (&first / denominator)?.affine(self.step_size, 0.0)?;
        let value = (value.affine(self.keep, 0.0)? - step)?;
        Ok((value, [first, second]))
    }
}

/// Calls `work` with the tensors' values in row-major order, if all are contiguous f32 tensors on
/// the CPU; else returns none.
pub(crate) fn on_slices<const N: usize, T>(
    tensors: [&Tensor; N],
    work: impl FnOnce([&[f32]; N]) -> T,
) -> Result<Option<T>> {
    let is_plain = |tensor: &&Tensor| {
        tensor.device().is_cpu() && tensor.dtype() == DType::F32 && tensor.is_contiguous()
    };
    if !tensors.iter().all(is_plain) {
        return Ok(None);
    }
    let held = tensors.map(Tensor::storage_and_layout);
    let mut slices: [&[f32]; N] = [&[]; N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&held) {
        let (Storage::Cpu(storage), Some((start, end))) = (&**storage, layout.contiguous_offsets())
        else {
            return Ok(None);
        };
        *slice = &storage.as_slice::<f32>()?[start..end];
    }
    Ok(Some(work(slices)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::tests::tensor;

    fn doubles(tensor: &Tensor) -> Vec<f64> {
        let flat = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
        flat.to_vec1().unwrap()
    }

    /// Clipped, with decay, over some updates, of a tensor that is no multiple of a block.
    #[test]
    fn tensor_operations_equal_the_fused_loop() {
        let settings = OptimizerSettings {
            weight_decay: 0.1,
            ..OptimizerSettings::default()
        };
        for dtype in [DType::F32, DType::F64] {
            let zeros = tensor(dtype, 0).zeros_like().unwrap();
            let mut by_ops = (tensor(dtype, 0), [zeros.clone(), zeros]);
            let narrow = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap();
            let mut fused = (narrow(&by_ops.0), by_ops.1.each_ref().map(narrow));
            for update in 1..8 {
                let gradient = tensor(dtype, update);
                let update = AdamWUpdate::new(&settings, update as u64, 1e-2, true, 0.3);
                by_ops = update
                    .by_tensor_ops(&by_ops.0, &gradient, by_ops.1.each_ref())
                    .unwrap();
                fused = update
                    .run(&fused.0, &narrow(&gradient), fused.1.each_ref())
                    .unwrap();
            }
            let all = |(value, [first, second]): (Tensor, [Tensor; 2])| {
                [&value, &first, &second].map(doubles).concat()
            };
            for (found, expected) in all(by_ops).into_iter().zip(all(fused)) {
                assert!(
                    (found - expected).abs() < 1e-6,
                    "{dtype:?}: {found} != {expected}"
                );
            }
        }
    }
}
