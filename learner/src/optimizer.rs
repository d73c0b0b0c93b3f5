//! AdamW with decoupled weight decay (arXiv:1711.05101) and clipping by the global norm, with
//! torch's semantics (golden values in `tests/golden/adamw.json` and `tests/golden/clip.json`).
//!
//! Weights and moments are f32 on the weights' device whatever the model computes in (f64 for a
//! model in f64): in bf16 a step of 1e-6 on a weight of 0.02 would round away. Nothing is changed
//! in place, so weights that a snapshot holds do not change. In f32 one fused loop updates a tensor
//! on the CPU, and one kernel on an NVIDIA GPU; elsewhere tensor operations do. Sums run in the
//! order of names, and threads share whole tensors, so the bits depend on nothing else.

mod dither;
mod update;

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::{
    bounds::{below_one, positive, range},
    error::Result,
    parallel,
};
use dither::dither;
use policy::ops::sum_of_squares_on_gpu;
use update::AdamWUpdate;
pub(crate) use update::on_slices;

pub use policy::Gradients;

/// Hyperparameters; names and defaults as in transformers' `TrainingArguments`, the rate as in
/// TRL's `GRPOConfig`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerSettings {
    /// Base learning rate; the schedule's factor multiplies it.
    #[default(1e-6)]
    pub learning_rate: f64,
    /// Decoupled weight decay of matrices; biases and norms have none.
    pub weight_decay: f64,
    /// Decay of the first moment.
    #[default(0.9)]
    pub adam_beta1: f64,
    /// Decay of the second moment.
    #[default(0.999)]
    pub adam_beta2: f64,
    /// Added to the denominator.
    #[default(1e-8)]
    pub adam_epsilon: f64,
    /// Global norm that gradients are scaled down to; 0: no clipping.
    #[default(1.0)]
    pub max_grad_norm: f64,
}

impl OptimizerSettings {
    /// Checks every number, rounded to f32 where the optimizer computes in f32; the error names the
    /// field and what it may be.
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
    /// Contiguous value in [`master_dtype`].
    pub value: Tensor,
    /// Whether weight decay applies.
    pub decays: bool,
}

/// Returns the dtype that weights of `dtype` are trained in: f64 for f64, else f32.
pub fn master_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

impl Parameter {
    /// Returns the master copy of a weight. Matrices decay; vectors, which are biases and norms, do
    /// not.
    pub fn new(weight: &Tensor) -> Result<Self> {
        let value = weight.to_dtype(master_dtype(weight.dtype()))?;
        Ok(Self {
            value: value.contiguous()?.detach(),
            decays: weight.rank() > 1,
        })
    }

    /// Returns the master copy from which the training of the weight `name` starts. The copy of a
    /// bf16 weight is a random f32 value that is rounded to it, so that updates smaller than the
    /// unit in the last place change the rounded weights in the mean.
    pub fn start(name: &str, weight: &Tensor) -> Result<Self> {
        let mut parameter = Self::new(weight)?;
        if weight.dtype() == DType::BF16 {
            let mut values = parameter.value.flatten_all()?.to_vec1()?;
            dither(&mut values, name);
            parameter.value = Tensor::from_vec(values, weight.shape(), weight.device())?;
        }
        Ok(parameter)
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

/// The optimizer and its state.
#[derive(Clone, Debug)]
pub struct AdamW {
    /// Hyperparameters.
    pub settings: OptimizerSettings,
    /// Updates made.
    pub updates: u64,
    /// State by parameter name; a parameter has one from its first gradient on.
    pub moments: BTreeMap<String, Moments>,
    /// Tensors that the CPU updates at a time. Results do not depend on it.
    pub threads: usize,
}

impl AdamW {
    /// Returns an optimizer that made no updates.
    pub fn new(settings: OptimizerSettings) -> Self {
        Self {
            settings,
            updates: 0,
            moments: BTreeMap::new(),
            threads: 1,
        }
    }

    /// Makes one update at `learning_rate` with `gradients` times `factor`, see [`clip_factor`].
    ///
    /// Every gradient's name must be a parameter's. Parameters without a gradient do not change.
    ///
    /// # Errors
    /// An operation of a device failed. The parameters and the optimizer are then of no use.
    pub fn step(
        &mut self,
        parameters: &mut BTreeMap<String, Parameter>,
        gradients: Gradients,
        factor: f64,
        learning_rate: f64,
    ) -> Result<()> {
        self.updates = self.updates.saturating_add(1);
        let is_on_cpu = gradients.values().all(|it| it.device().is_cpu());
        let threads = if is_on_cpu { self.threads } else { 1 };
        let mut moments = std::mem::take(&mut self.moments);
        let mut left = gradients;
        let mut updated = Vec::with_capacity(left.len());
        for (name, parameter) in parameters.iter_mut() {
            if let Some(gradient) = left.remove(name) {
                updated.push((name, parameter, gradient, moments.remove(name)));
            }
        }
        assert!(
            left.is_empty(),
            "a gradient belongs to a parameter: this is a bug"
        );
        // Each tensor's old values are freed when it has its new ones.
        let done = Mutex::new(moments);
        let result = parallel::for_each(threads, updated.into_iter(), |work| {
            let (name, parameter, gradient, known) = work;
            let (value, after) =
                self.updated(parameter, &gradient, known, factor, learning_rate)?;
            parameter.value = value;
            let mut done = done.lock();
            done.insert(name.clone(), after);
            Ok(())
        });
        self.moments = done.into_inner();
        result
    }

    /// Returns the value and the moments of one parameter after the update.
    fn updated(
        &self,
        parameter: &Parameter,
        gradient: &Tensor,
        known: Option<Moments>,
        factor: f64,
        learning_rate: f64,
    ) -> Result<(Tensor, Moments)> {
        let before = match known {
            Some(Moments { first, second }) => [first, second],
            None => [gradient.zeros_like()?, gradient.zeros_like()?],
        };
        let decays = parameter.decays;
        let update = AdamWUpdate::new(&self.settings, self.updates, learning_rate, decays, factor);
        let (value, [first, second]) = update.run(&parameter.value, gradient, before.each_ref())?;
        Ok((value, Moments { first, second }))
    }
}

/// Returns the norm of all tensors together. It is finite only if all values are.
pub fn global_norm(tensors: &Gradients) -> Result<f64> {
    norm(tensors.values())
}

fn norm<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<f64> {
    let mut host = 0.0;
    let mut elsewhere = Vec::new();
    for tensor in tensors {
        let squares = |[values]: [&[f32]; 1]| {
            let squares = values.iter().map(|&value| f64::from(value).powi(2));
            squares.sum::<f64>()
        };
        match on_slices([tensor], squares)? {
            Some(squares) => host += squares,
            None => elsewhere.push(tensor),
        }
    }
    if let Some(squares) = sum_of_squares_on_gpu(&elsewhere)? {
        return Ok((host + squares).sqrt());
    }
    let squares = elsewhere.iter().map(|tensor| tensor.sqr()?.sum_all());
    let squares = squares.collect::<candle_core::Result<Vec<_>>>()?;
    if !squares.is_empty() {
        let sum = Tensor::stack(&squares, 0)?.sum_all()?;
        host += sum.to_dtype(DType::F64)?.to_scalar::<f64>()?;
    }
    Ok(host.sqrt())
}

/// Returns whether all values are finite. On the CPU in f32 the loop reads every value even after
/// one that is not: without a branch it vectorises. Elsewhere the norm is finite only if all values
/// are.
pub(crate) fn all_finite<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<bool> {
    let finite = |[values]: [&[f32]; 1]| {
        let finite = values.iter().map(|value| value.is_finite());
        finite.fold(true, |all, finite| all & finite)
    };
    let mut elsewhere = Vec::new();
    for tensor in tensors {
        match on_slices([tensor], finite)? {
            Some(true) => {}
            Some(false) => return Ok(false),
            None => elsewhere.push(tensor),
        }
    }
    Ok(norm(elsewhere)?.is_finite())
}

/// Returns the factor that brings gradients of norm `norm` to at most `max_norm`: as
/// `torch.nn.utils.clip_grad_norm_` it is `max_norm / (norm + 1e-6)`, at most 1. A `max_norm` of 0
/// means no clipping.
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    match max_norm > 0.0 {
        true => (max_norm / (norm + 1e-6)).min(1.0),
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Values between -1 and 1, another row of them for each seed.
    pub(super) fn tensor(dtype: DType, seed: usize) -> Tensor {
        let value = |at: usize| ((seed * 977 + at * at * 13 + at) as f64).sin();
        let values: Vec<f64> = (0..3 * 700).map(value).collect();
        let tensor = Tensor::from_vec(values, (3, 700), &Device::Cpu).unwrap();
        tensor.to_dtype(dtype).unwrap()
    }

    #[test]
    fn threads_change_no_bit() {
        let settings = OptimizerSettings {
            learning_rate: 1e-2,
            ..OptimizerSettings::default()
        };
        let names = [
            "model.norm.weight",
            "model.layers.0.mlp.up_proj.weight",
            "lm_head.weight",
        ];
        let run = |threads| {
            let mut optimizer = AdamW {
                threads,
                ..AdamW::new(settings.clone())
            };
            let parameter = |(seed, name): (usize, &str)| {
                let parameter = Parameter::new(&tensor(DType::F32, seed)).unwrap();
                (name.to_owned(), parameter)
            };
            let mut parameters: BTreeMap<_, _> =
                names.into_iter().enumerate().map(parameter).collect();
            for step in 0..3 {
                let gradient = |name: &str| (name.to_owned(), tensor(DType::F32, 10 + step));
                let gradients = names.map(gradient).into();
                optimizer
                    .step(&mut parameters, gradients, 0.5, 1e-2)
                    .unwrap();
            }
            let values = parameters.values().map(|it| &it.value);
            let moments = optimizer.moments.values().map(|it| &it.first);
            let flat = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            values
                .chain(moments)
                .flat_map(flat)
                .map(f32::to_bits)
                .collect::<Vec<_>>()
        };
        let expected = run(1);
        assert!(run(2) == expected && run(7) == expected);
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
                assert!(!all_finite(tensors.values()).unwrap());
                assert!(all_finite(of(dtype).values()).unwrap());
            }
        }
    }
}
