//! A decoder in training: scores, gradients and updates, for supervised training and for GRPO.
//!
//! Invariant: gradients are summed in micro-batch order, so the bits of an update depend on the
//! micro-batches alone, not on the number of threads. A parameter without a gradient is an error,
//! never a silent zero.

mod passes;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
};

use candle_core::{DType, Device};
use policy::{
    Decoder, DecoderConfig, DecoderMode, PolicyError, TrainingPass, Weights, check_gradients,
    free_memory, ops::LogprobGradients,
};
use safetensors::View as _;

use crate::{
    batch::MicroBatch,
    error::{LearnerError, Result},
    optimizer::{
        AdamW, Gradients, Moments, OptimizerSettings, Parameter, all_finite, clip_factor,
        global_norm, master_dtype,
    },
};
pub(crate) use passes::scores_unless;
pub use passes::{PassSettings, Scores, scores};
use passes::{add, in_order, threads};

const WEIGHTS: &str = "weights";
const FIRST: &str = "first";
const SECOND: &str = "second";

/// A decoder, its master weights and its optimizer.
pub struct Network {
    decoder: Decoder,
    /// The decoder's weights, in its dtype.
    weights: Weights,
    parameters: BTreeMap<String, Parameter>,
    /// Set to end a pass early.
    stopping: Arc<AtomicBool>,
    /// The optimizer with its state.
    pub optimizer: AdamW,
}

/// The master copies and the optimizer of a network at one moment.
pub(crate) struct TrainingState {
    parameters: BTreeMap<String, Parameter>,
    optimizer: AdamW,
}

impl Network {
    /// Returns a network that starts from a copy of `weights`, on their device and in their dtype.
    ///
    /// # Errors
    /// The weights do not fit the configuration.
    pub fn new(
        config: &DecoderConfig,
        weights: &Weights,
        settings: OptimizerSettings,
    ) -> Result<Self> {
        let mut parameters = BTreeMap::new();
        for (name, tensor) in weights.iter() {
            parameters.insert(name.to_owned(), Parameter::start(name, tensor)?);
        }
        let decoder = Decoder::new(config, weights, DecoderMode::Train)?;
        Ok(Self {
            decoder,
            weights: weights.clone(),
            parameters,
            stopping: Arc::default(),
            optimizer: AdamW::new(settings),
        })
    }

    /// Uses `threads` threads of the CPU between micro-batches. Results do not depend on it.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.optimizer.threads = threads;
        self
    }

    /// Returns a flag that ends [`Self::gradients`] and [`Self::scores`] with
    /// [`LearnerError::Stopped`] between two micro-batches.
    pub fn stopping(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stopping)
    }

    /// Returns the master copies by name.
    pub fn parameters(&self) -> &BTreeMap<String, Parameter> {
        &self.parameters
    }

    /// Replaces the weights, for instance by those of a checkpoint.
    ///
    /// # Errors
    /// A name or shape is not this network's.
    fn set_parameters(&mut self, parameters: BTreeMap<String, Parameter>) -> Result<()> {
        self.parameters = parameters;
        self.rebuild()
    }

    /// Returns the master copies and the optimizer as they are now. Updates make new tensors, so
    /// this copies no weights.
    pub(crate) fn training_state(&self) -> TrainingState {
        TrainingState {
            parameters: self.parameters.clone(),
            optimizer: self.optimizer.clone(),
        }
    }

    /// Returns to an earlier state.
    pub(crate) fn put_back(&mut self, state: TrainingState) -> Result<()> {
        self.optimizer = state.optimizer;
        self.set_parameters(state.parameters)
    }

    /// Returns the device that computes.
    pub fn device(&self) -> &Device {
        self.decoder.device()
    }

    /// Returns the dtype of the forward pass.
    pub fn dtype(&self) -> DType {
        self.decoder.dtype()
    }

    /// Returns the CRC-32 (IEEE) of the master copies in the order of their names.
    ///
    /// # Errors
    /// The device has failed.
    pub fn digest(&self) -> Result<u32> {
        let mut hash = crc32fast::Hasher::new();
        for parameter in self.parameters.values() {
            // On a failed device the copy below would panic.
            parameter.value.device().synchronize()?;
            hash.update(&parameter.value.data());
        }
        Ok(hash.finalize())
    }

    /// Returns the weights after the last update, in the model's dtype. Later updates do not change
    /// them.
    pub fn weights(&self) -> Weights {
        self.weights.clone()
    }

    /// Returns master copies and moments under the names `weights.NAME`, `first.NAME` and
    /// `second.NAME`. With the number of updates this is all that [`Self::restore`] needs.
    pub fn state(&self) -> Weights {
        let mut tensors = BTreeMap::new();
        for (name, parameter) in &self.parameters {
            tensors.insert(format!("{WEIGHTS}.{name}"), parameter.value.clone());
        }
        for (name, moments) in &self.optimizer.moments {
            tensors.insert(format!("{FIRST}.{name}"), moments.first.clone());
            tensors.insert(format!("{SECOND}.{name}"), moments.second.clone());
        }
        Weights::new(tensors)
    }

    /// Restores a [`Self::state`] after `updates` updates from its safetensors file.
    ///
    /// # Errors
    /// The state belongs to another model.
    pub fn restore(&mut self, state: &[u8], updates: u64) -> Result<()> {
        let (device, dtype) = (self.decoder.device(), self.decoder.dtype());
        let state = Weights::from_bytes(state, device, master_dtype(dtype))?;
        let (mut parameters, mut moments) = (BTreeMap::new(), BTreeMap::new());
        for (full_name, tensor) in state.iter() {
            match full_name.split_once('.') {
                Some((WEIGHTS, name)) => {
                    parameters.insert(name.to_owned(), Parameter::new(tensor)?);
                }
                Some((FIRST, name)) => {
                    let second = state.get(&format!("{SECOND}.{name}")).map_err(|_| {
                        let reason = "has one moment of the optimizer in place of two; the state \
                                      is damaged or of another model";
                        PolicyError::tensor(name, reason)
                    })?;
                    let (first, second) = (tensor.clone(), second.clone());
                    moments.insert(name.to_owned(), Moments { first, second });
                }
                _ => {}
            }
        }
        check_shapes(&parameters, &moments)?;
        self.set_parameters(parameters)?;
        self.optimizer.moments = moments;
        self.optimizer.updates = updates;
        Ok(())
    }

    /// Computes scores without gradient, one per micro-batch.
    pub fn scores(&self, micro_batches: &[MicroBatch], pass: PassSettings) -> Result<Vec<Scores>> {
        scores_unless(&self.stopping, &self.decoder, micro_batches, pass)
    }

    /// Computes the gradient of a loss, summed over the micro-batches. `loss` gets the number of a
    /// micro-batch and its scores; it returns the derivatives of its part of the loss, and any
    /// other value, which is returned in order.
    ///
    /// # Errors
    /// A pass failed, or a parameter received no gradient.
    pub fn gradients<T: Send>(
        &self,
        micro_batches: &[MicroBatch],
        pass: PassSettings,
        loss: impl Fn(usize, &MicroBatch, &Scores) -> (LogprobGradients, T) + Sync,
    ) -> Result<(Gradients, Vec<T>)> {
        let mut sum = Gradients::new();
        let mut values = Vec::with_capacity(micro_batches.len());
        let one = |number: usize, micro: &MicroBatch| {
            // A device with too little memory keeps less than the settings request.
            let (config, tokens) = (self.decoder.config(), micro.packed.tokens.len());
            let free = free_memory(self.device());
            let checkpointing = pass
                .checkpointing
                .within(free, config, self.dtype(), tokens);
            let scored = micro.scored_tokens(pass.temperature);
            let training =
                TrainingPass::forward(&self.decoder, &micro.packed, scored, checkpointing)?;
            let scores = Scores::read(training.token_logprobs())?;
            let (derivatives, value) = loss(number, micro, &scores);
            let gradients = training.backward(&derivatives)?;
            check_gradients(&gradients, self.parameters.keys().map(String::as_str))?;
            Ok((gradients, value))
        };
        let threads = threads(&self.decoder, pass);
        let stopping = &self.stopping;
        in_order(
            micro_batches,
            (threads, stopping),
            one,
            |(gradients, value)| {
                values.push(value);
                add(&mut sum, gradients, threads)
            },
        )?;
        Ok((sum, values))
    }

    /// Clips the gradients, makes one update at `learning_rate` and returns the gradients' norm
    /// before clipping.
    ///
    /// # Errors
    /// [`LearnerError::Diverged`] if a gradient or an updated weight is not finite;
    /// [`Self::weights`] are then as before.
    pub fn update(&mut self, gradients: Gradients, learning_rate: f64) -> Result<f64> {
        let norm = global_norm(&gradients)?;
        self.update_with(gradients, norm, learning_rate)
    }

    /// Does the same with gradients whose norm is known.
    pub(crate) fn update_with(
        &mut self,
        gradients: Gradients,
        norm: f64,
        learning_rate: f64,
    ) -> Result<f64> {
        let diverged = self.diverged();
        if !norm.is_finite() {
            return Err(diverged);
        }
        let factor = clip_factor(norm, self.optimizer.settings.max_grad_norm);
        self.optimizer
            .step(&mut self.parameters, gradients, factor, learning_rate)?;
        if !all_finite(self.parameters.values().map(|it| &it.value))? {
            return Err(diverged);
        }
        self.rebuild()?;
        Ok(norm)
    }

    /// Returns the error of the next update, if it is not finite.
    pub(crate) fn diverged(&self) -> LearnerError {
        LearnerError::Diverged {
            update: self.optimizer.updates.saturating_add(1),
        }
    }

    /// Rebuilds the decoder from the master copies. It shares them if it computes in their dtype.
    fn rebuild(&mut self) -> Result<()> {
        let dtype = self.decoder.dtype();
        let mut tensors = BTreeMap::new();
        for (name, parameter) in &self.parameters {
            let tensor = parameter.value.to_dtype(dtype)?;
            tensors.insert(name.clone(), tensor);
        }
        let weights = Weights::new(tensors);
        self.decoder = self.decoder.with_weights(&weights, DecoderMode::Train)?;
        self.weights = weights;
        Ok(())
    }
}

/// Checks that moments have the shapes of their weights. The fused loop of the optimizer reads all
/// of them at the same places.
fn check_shapes(
    parameters: &BTreeMap<String, Parameter>,
    moments: &BTreeMap<String, Moments>,
) -> Result<()> {
    for (name, Moments { first, second }) in moments {
        let weight = parameters.get(name).map(|it| it.value.dims());
        for moment in [first, second] {
            if weight != Some(moment.dims()) {
                let reason = format!(
                    "has a moment of the optimizer of the shape {:?}, but the shape {weight:?} \
                     itself; the state is damaged or of another model",
                    moment.dims()
                );
                return Err(PolicyError::tensor(name, reason).into());
            }
        }
    }
    Ok(())
}
