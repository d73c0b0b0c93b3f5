//! AdamW with decoupled weight decay and clipping by the global norm, with torch's semantics (golden values in
//! `tests/golden/adamw.json`, `tests/golden/clip.json`).
//!
//! Pure. Weights and moments are f32 on the host whatever the model computes in: in bf16 a step of 1e-6 on a weight of
//! 0.02 would round away. One fused pass a tensor; sums run in name order, so the bits depend on nothing else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    bounds::{below_one, positive, range},
    error::Result,
};

/// Gradients by parameter name, each in its parameter's row-major order.
pub type Gradients = BTreeMap<String, Vec<f32>>;

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
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: Vec<f32>,
    /// Whether weight decay applies.
    pub decays: bool,
}

impl Parameter {
    /// A parameter whose decay follows its shape: matrices decay, vectors (biases, norms) do not.
    #[must_use]
    pub fn new(shape: Vec<usize>, values: Vec<f32>) -> Self {
        let decays = shape.len() > 1;
        Self {
            shape,
            values,
            decays,
        }
    }
}

/// Running means of one parameter's gradient and squared gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// torch's `exp_avg`.
    pub first: Vec<f32>,
    /// torch's `exp_avg_sq`.
    pub second: Vec<f32>,
}

/// The optimiser and its state.
#[derive(Clone, Debug, PartialEq)]
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

    /// Clips `gradients`, makes one update at `learning_rate` and returns the norm before clipping.
    ///
    /// Every gradient's name must be a parameter's; parameters without a gradient stay as they are.
    pub fn step(
        &mut self,
        parameters: &mut BTreeMap<String, Parameter>,
        gradients: &mut Gradients,
        learning_rate: f64,
    ) -> f64 {
        let norm = clip_global_norm(gradients, self.settings.max_grad_norm);
        self.updates += 1;
        for (name, gradient) in gradients.iter() {
            let parameter = parameters
                .get_mut(name)
                .expect("a gradient belongs to a parameter: this is a bug");
            let moments = self.moments.entry(name.clone()).or_insert_with(|| Moments {
                first: vec![0.0; gradient.len()],
                second: vec![0.0; gradient.len()],
            });
            let pass = Pass::new(
                &self.settings,
                self.updates,
                learning_rate,
                parameter.decays,
            );
            pass.run(&mut parameter.values, gradient, moments);
        }
        norm
    }
}

/// The constants of one pass over one tensor.
struct Pass {
    keep: f32,
    first_rate: f32,
    second_keep: f32,
    second_rate: f32,
    step_size: f32,
    second_correction: f32,
    epsilon: f32,
}

impl Pass {
    fn new(settings: &OptimizerSettings, updates: u64, learning_rate: f64, decays: bool) -> Self {
        let decay = if decays { settings.weight_decay } else { 0.0 };
        let power = |beta: f64| beta.powf(updates as f64);
        Self {
            keep: (1.0 - learning_rate * decay) as f32,
            first_rate: (1.0 - settings.adam_beta1) as f32,
            second_keep: settings.adam_beta2 as f32,
            second_rate: (1.0 - settings.adam_beta2) as f32,
            step_size: (learning_rate / (1.0 - power(settings.adam_beta1))) as f32,
            second_correction: (1.0 - power(settings.adam_beta2)).sqrt() as f32,
            epsilon: settings.adam_epsilon as f32,
        }
    }

    fn run(&self, values: &mut [f32], gradient: &[f32], moments: &mut Moments) {
        let state = moments.first.iter_mut().zip(&mut moments.second);
        for ((value, &g), (first, second)) in values.iter_mut().zip(gradient).zip(state) {
            *first += self.first_rate * (g - *first);
            *second = self.second_keep * *second + self.second_rate * g * g;
            let denominator = second.sqrt() / self.second_correction + self.epsilon;
            *value = self.keep * *value - self.step_size * (*first / denominator);
        }
    }
}

/// Scales `gradients` so that their global norm is at most `max_norm` (0: leaves them) and returns the norm before.
///
/// As `torch.nn.utils.clip_grad_norm_`: the factor is `max_norm / (norm + 1e-6)`, capped at 1.
pub fn clip_global_norm(gradients: &mut Gradients, max_norm: f64) -> f64 {
    let square = |values: &Vec<f32>| values.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>();
    let norm = gradients.values().map(square).sum::<f64>().sqrt();
    let factor = (max_norm / (norm + 1e-6)).min(1.0) as f32;
    if max_norm > 0.0 && factor < 1.0 {
        gradients.values_mut().flatten().for_each(|g| *g *= factor);
    }
    norm
}
