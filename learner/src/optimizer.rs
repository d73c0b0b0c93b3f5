//! AdamW with decoupled weight decay and clipping by the global norm, with torch's semantics (golden values in
//! `tests/golden/adamw.json`, `tests/golden/clip.json`).
//!
//! Pure. Weights and moments are f32 on the weights' device whatever the model computes in (f64 for one in f64): in bf16 a
//! step of 1e-6 on a weight of 0.02 would round away. Nothing is changed in place, so weights that were handed out stay as
//! they are. On the CPU in f32 one fused pass a tensor, elsewhere one composition of tensor operations; sums run in name
//! order, so the bits depend on nothing else.

use std::collections::BTreeMap;

use candle_core::{DType, Storage, Tensor};
use serde::{Deserialize, Serialize};

use crate::{
    bounds::{below_one, positive, range},
    error::Result,
};

/// Elements of a tensor that the fused pass takes at a time: they stay in the nearest cache.
const BLOCK: usize = 1024;

/// Gradients by parameter name, each in its parameter's shape, dtype and device.
pub type Gradients = BTreeMap<String, Tensor>;

/// Hyperparameters; names and defaults as in transformers' `TrainingArguments`, the rate as in TRL's `GRPOConfig`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerSettings {
    /// Base rate; the schedule's factor multiplies it.
    pub learning_rate: f64,
    /// Decoupled weight decay of matrices (not of biases and norms).
    pub weight_decay: f64,
    /// Decay of the first moment.
    pub adam_beta1: f64,
    /// Decay of the second moment.
    pub adam_beta2: f64,
    /// Added to the denominator.
    pub adam_epsilon: f64,
    /// Gradients of a greater global norm are scaled down to it; 0: no clipping.
    pub max_grad_norm: f64,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            learning_rate: 1e-6,
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            max_grad_norm: 1.0,
        }
    }
}

impl OptimizerSettings {
    /// Checks every number, as f32 where the optimiser uses it as such.
    ///
    /// # Errors
    /// [`LearnerError::Setting`](crate::LearnerError::Setting) names the field and what it may be.
    pub fn validate(&self) -> Result<()> {
        let most = f64::from(f32::MAX);
        positive("optimizer.learning_rate", self.learning_rate)?;
        range("optimizer.weight_decay", self.weight_decay, 0.0, most)?;
        below_one("optimizer.adam_beta1", self.adam_beta1)?;
        below_one("optimizer.adam_beta2", self.adam_beta2)?;
        positive("optimizer.adam_epsilon", self.adam_epsilon)?;
        range("optimizer.max_grad_norm", self.max_grad_norm, 0.0, most)
    }
}

/// A trainable tensor's master copy.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its value, contiguous, in [`master_dtype`].
    pub value: Tensor,
    /// Whether weight decay applies.
    pub decays: bool,
}

/// What a weight of `dtype` is trained in: f64 if it is that, else f32.
#[must_use]
pub fn master_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

impl Parameter {
    /// The master copy of a weight. Decay follows its shape: matrices decay, vectors (biases, norms) do not.
    ///
    /// # Errors
    /// Only what the tensor library raises.
    pub fn new(weight: &Tensor) -> Result<Self> {
        let value = weight.to_dtype(master_dtype(weight.dtype()))?;
        Ok(Self {
            value: value.contiguous()?.detach(),
            decays: weight.rank() > 1,
        })
    }
}

/// Running means of one parameter's gradient and squared gradient, in its shape, dtype and device.
#[derive(Clone, Debug)]
pub struct Moments {
    /// torch's `exp_avg`.
    pub first: Tensor,
    /// torch's `exp_avg_sq`.
    pub second: Tensor,
}

/// The optimiser and its state.
#[derive(Clone, Debug)]
pub struct AdamW {
    /// Hyperparameters.
    pub settings: OptimizerSettings,
    /// Updates made.
    pub updates: u64,
    /// State by parameter name; a name enters with its first gradient.
    pub moments: BTreeMap<String, Moments>,
}

impl AdamW {
    /// An optimiser without history.
    #[must_use]
    pub fn new(settings: OptimizerSettings) -> Self {
        Self {
            settings,
            updates: 0,
            moments: BTreeMap::new(),
        }
    }

    /// Makes one update at `learning_rate` with `gradients` times `factor`, see [`clip_factor`].
    ///
    /// Every gradient's name must be a parameter's; parameters without a gradient stay as they are.
    ///
    /// # Errors
    /// Only what the tensor library raises, such as a want of memory.
    pub fn step(
        &mut self,
        parameters: &mut BTreeMap<String, Parameter>,
        gradients: Gradients,
        factor: f64,
        learning_rate: f64,
    ) -> Result<()> {
        self.updates += 1;
        for (name, gradient) in gradients {
            let parameter = parameters
                .get_mut(&name)
                .expect("a gradient belongs to a parameter: this is a bug");
            let moments = match self.moments.remove(&name) {
                Some(moments) => moments,
                None => Moments {
                    first: gradient.zeros_like()?,
                    second: gradient.zeros_like()?,
                },
            };
            let decays = parameter.decays;
            let pass = Pass::new(&self.settings, self.updates, learning_rate, decays, factor);
            let (value, moments) = pass.run(&parameter.value, &gradient, &moments)?;
            parameter.value = value;
            self.moments.insert(name, moments);
        }
        Ok(())
    }
}

/// The constants of one pass over one tensor.
struct Pass {
    factor: f64,
    keep: f64,
    first_rate: f64,
    second_keep: f64,
    step_size: f64,
    second_correction: f64,
    epsilon: f64,
}

impl Pass {
    fn new(
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

    /// The value and the moments after the update.
    fn run(
        &self,
        value: &Tensor,
        gradient: &Tensor,
        moments: &Moments,
    ) -> Result<(Tensor, Moments)> {
        let tensors = [value, gradient, &moments.first, &moments.second];
        let fused = on_slices(tensors, |[value, gradient, first, second]| {
            self.fused(value, gradient, [first, second])
        })?;
        let Some(fused) = fused else {
            return self.composed(value, gradient, moments);
        };
        let tensor = |values: Vec<f32>| Tensor::from_vec(values, value.shape(), value.device());
        let [value, first, second] = fused.map(tensor);
        let (first, second) = (first?, second?);
        Ok((value?, Moments { first, second }))
    }

    /// [`Self::run`] on the CPU in f32: each element is read and written once.
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

    fn update(&self, values: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32]) {
        let (factor, keep) = (self.factor as f32, self.keep as f32);
        let (first_rate, second_keep) = (self.first_rate as f32, self.second_keep as f32);
        let second_rate = (1.0 - self.second_keep) as f32;
        let (step_size, epsilon) = (self.step_size as f32, self.epsilon as f32);
        let second_correction = self.second_correction as f32;
        let state = first.iter_mut().zip(second);
        for ((value, &g), (first, second)) in values.iter_mut().zip(gradient).zip(state) {
            let g = factor * g;
            *first += first_rate * (g - *first);
            *second = second_keep * *second + second_rate * g * g;
            let denominator = second.sqrt() / second_correction + epsilon;
            *value = keep * *value - step_size * (*first / denominator);
        }
    }

    /// [`Self::run`] by tensor operations, on any device and in any float dtype.
    fn composed(
        &self,
        value: &Tensor,
        gradient: &Tensor,
        moments: &Moments,
    ) -> Result<(Tensor, Moments)> {
        let gradient = gradient.affine(self.factor, 0.0)?;
        let towards = (&gradient - &moments.first)?.affine(self.first_rate, 0.0)?;
        let first = (&moments.first + towards)?;
        let squares = gradient.sqr()?.affine(1.0 - self.second_keep, 0.0)?;
        let second = (moments.second.affine(self.second_keep, 0.0)? + squares)?;
        let denominator = second.sqrt()?;
        let denominator = denominator.affine(1.0 / self.second_correction, self.epsilon)?;
        let step = (&first / denominator)?.affine(self.step_size, 0.0)?;
        let value = (value.affine(self.keep, 0.0)? - step)?;
        Ok((value, Moments { first, second }))
    }
}

/// The norm of all tensors together. It is not finite where one of their values is not. From another device than the CPU
/// one scalar comes.
///
/// # Errors
/// Only what the tensor library raises.
pub fn global_norm(tensors: &Gradients) -> Result<f64> {
    let mut host = 0.0;
    let mut device = Vec::new();
    for tensor in tensors.values() {
        let squares = |[values]: [&[f32]; 1]| {
            let squares = values.iter().map(|&value| f64::from(value).powi(2));
            squares.sum::<f64>()
        };
        match on_slices([tensor], squares)? {
            Some(squares) => host += squares,
            None => device.push(tensor.sqr()?.sum_all()?),
        }
    }
    if !device.is_empty() {
        let sum = Tensor::stack(&device, 0)?.sum_all()?;
        host += sum.to_dtype(DType::F64)?.to_scalar::<f64>()?;
    }
    Ok(host.sqrt())
}

/// What gradients of this global norm are scaled by, so that it is at most `max_norm` (0: 1).
///
/// As `torch.nn.utils.clip_grad_norm_`: `max_norm / (norm + 1e-6)`, capped at 1.
#[must_use]
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    match max_norm > 0.0 {
        true => (max_norm / (norm + 1e-6)).min(1.0),
        false => 1.0,
    }
}

/// Calls `work` with the tensors' values in row-major order, if all lie contiguous on the CPU in f32.
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
    use candle_core::Device;

    use super::*;

    /// Values between -1 and 1, another row of them for each seed.
    fn tensor(dtype: DType, seed: usize) -> Tensor {
        let value = |at: usize| ((seed * 977 + at * at * 13 + at) as f64).sin();
        let values: Vec<f64> = (0..3 * 700).map(value).collect();
        let tensor = Tensor::from_vec(values, (3, 700), &Device::Cpu).unwrap();
        tensor.to_dtype(dtype).unwrap()
    }

    fn doubles(tensor: &Tensor) -> Vec<f64> {
        let flat = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
        flat.to_vec1().unwrap()
    }

    /// Clipped, with decay, over some updates, of a tensor that is no multiple of a block.
    #[test]
    fn the_composition_is_the_fused_pass() {
        let settings = OptimizerSettings {
            weight_decay: 0.1,
            ..OptimizerSettings::default()
        };
        for dtype in [DType::F32, DType::F64] {
            let zeros = tensor(dtype, 0).zeros_like().unwrap();
            let moments = Moments {
                first: zeros.clone(),
                second: zeros,
            };
            let mut composed = (tensor(dtype, 0), moments);
            let narrow = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap();
            let mut fused = (
                narrow(&composed.0),
                Moments {
                    first: narrow(&composed.1.first),
                    second: narrow(&composed.1.second),
                },
            );
            for update in 1..8 {
                let gradient = tensor(dtype, update);
                let pass = Pass::new(&settings, update as u64, 1e-2, true, 0.3);
                composed = pass.composed(&composed.0, &gradient, &composed.1).unwrap();
                fused = pass.run(&fused.0, &narrow(&gradient), &fused.1).unwrap();
            }
            let all = |(value, moments): (Tensor, Moments)| {
                [&value, &moments.first, &moments.second]
                    .map(doubles)
                    .concat()
            };
            for (found, expected) in all(composed).into_iter().zip(all(fused)) {
                assert!(
                    (found - expected).abs() < 1e-6,
                    "{dtype:?}: {found} != {expected}"
                );
            }
        }
    }

    #[test]
    fn a_norm_is_the_same_by_slices_and_by_operations_and_shows_what_is_not_finite() {
        let of = |dtype| {
            BTreeMap::from(
                [("a", 1), ("b", 2)].map(|(name, seed)| (name.to_owned(), tensor(dtype, seed))),
            )
        };
        let norms = [DType::F32, DType::F64].map(|dtype| global_norm(&of(dtype)).unwrap());
        assert!((norms[0] - norms[1]).abs() < 1e-5, "{norms:?}");
        for dtype in [DType::F32, DType::F64] {
            for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let mut tensors = of(dtype);
                let odd = Tensor::new(&[odd], &Device::Cpu)
                    .unwrap()
                    .to_dtype(dtype)
                    .unwrap();
                tensors.insert("odd".to_owned(), odd);
                assert!(!global_norm(&tensors).unwrap().is_finite());
            }
        }
    }
}
