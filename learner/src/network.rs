//! A decoder that learns: scores, gradients and updates, for both supervised training and GRPO.
//!
//! Invariant: gradients are summed in micro-batch order, so the bits of an update depend on the micro-batches alone,
//! never on the number of threads; and a parameter that received no gradient is an error, never a silent zero.

use std::{collections::BTreeMap, thread};

use candle_core::{DType, Device, Tensor};
use policy::{
    Decoder, DecoderConfig, DecoderMode, GradientCheckpointing, TrainingPass, Weights, free_memory,
    ops::{LogprobGradients, TokenLogprobs},
};
use safetensors::View as _;

use crate::{
    batch::MicroBatch,
    error::{LearnerError, Result},
    optimizer::{
        AdamW, Gradients, Moments, OptimizerSettings, Parameter, clip_factor, global_norm,
        master_dtype, on_slices,
    },
};

const WEIGHTS: &str = "weights";
const FIRST: &str = "first";
const SECOND: &str = "second";

/// What the decoder thinks of the scored tokens of a micro-batch, one value a token.
#[derive(Clone, Debug)]
pub struct Scores {
    /// Log-probabilities at the given temperature.
    pub logprobs: Vec<f64>,
    /// Entropies of the distributions they come from, in nats.
    pub entropies: Vec<f64>,
}

/// Derivatives of a loss by the scores, one a token.
#[derive(Clone, Debug)]
pub struct LossDerivatives {
    /// d loss / d log-probability.
    pub d_logprobs: Vec<f64>,
    /// d loss / d entropy; absent where entropy does not enter the loss.
    pub d_entropies: Option<Vec<f64>>,
}

/// How micro-batches are computed.
#[derive(Clone, Copy, Debug)]
pub struct PassSettings {
    /// Divides the logits.
    pub temperature: f32,
    /// Micro-batches computed at once on the CPU, where memory grows with it and results do not change; elsewhere one is.
    pub threads: usize,
    /// What of each layer is kept for the backward pass, if a device has memory for it; results do not change.
    pub checkpointing: GradientCheckpointing,
}

impl PassSettings {
    /// What `gradient_checkpointing` of the settings means.
    #[must_use]
    pub fn checkpointing(gradient_checkpointing: bool) -> GradientCheckpointing {
        if gradient_checkpointing {
            GradientCheckpointing::On
        } else {
            GradientCheckpointing::Off
        }
    }
}

/// A decoder, its master weights and its optimiser.
pub struct Network {
    decoder: Decoder,
    /// What the decoder runs on.
    weights: Weights,
    parameters: BTreeMap<String, Parameter>,
    /// The optimiser, with its state.
    pub optimizer: AdamW,
}

impl Network {
    /// A network that starts from a copy of `weights`, on their device and in their dtype.
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
            parameters.insert(name.to_owned(), Parameter::new(tensor)?);
        }
        let decoder = Decoder::new(config, weights, DecoderMode::Train)?;
        Ok(Self {
            decoder,
            weights: weights.clone(),
            parameters,
            optimizer: AdamW::new(settings),
        })
    }

    /// The master copies, by name.
    #[must_use]
    pub fn parameters(&self) -> &BTreeMap<String, Parameter> {
        &self.parameters
    }

    /// Replaces the weights, for instance by a checkpoint's.
    ///
    /// # Errors
    /// A name or shape is not this network's.
    pub fn set_parameters(&mut self, parameters: BTreeMap<String, Parameter>) -> Result<()> {
        self.parameters = parameters;
        self.rebuild()
    }

    /// Where it computes.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.decoder.device()
    }

    /// What it computes in.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.decoder.dtype()
    }

    /// CRC-32 (IEEE) of the master copies, in the order of their names.
    #[must_use]
    pub fn digest(&self) -> u32 {
        let mut hash = crc32fast::Hasher::new();
        for parameter in self.parameters.values() {
            hash.update(&parameter.value.data());
        }
        hash.finalize()
    }

    /// The weights after the last update, in the model's dtype. Later updates do not reach them.
    #[must_use]
    pub fn weights(&self) -> Weights {
        self.weights.clone()
    }

    /// Master copies and moments under the names `weights.NAME`, `first.NAME`, `second.NAME`: with the number of updates all
    /// that [`Self::restore`] needs.
    #[must_use]
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

    /// Takes up the safetensors file of a [`Self::state`] after so many `updates`.
    ///
    /// # Errors
    /// It is of another model.
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
                    let (first, second) = (tensor, state.get(&format!("{SECOND}.{name}"))?);
                    let (first, second) = (first.clone(), second.clone());
                    moments.insert(name.to_owned(), Moments { first, second });
                }
                _ => {}
            }
        }
        self.set_parameters(parameters)?;
        self.optimizer.moments = moments;
        self.optimizer.updates = updates;
        Ok(())
    }

    /// Scores without gradient, one per micro-batch.
    ///
    /// # Errors
    /// The forward pass failed.
    pub fn scores(&self, micro_batches: &[MicroBatch], pass: PassSettings) -> Result<Vec<Scores>> {
        scores(&self.decoder, micro_batches, pass)
    }

    /// The gradient of the loss whose derivatives by the scores `coefficients` gives, summed over the micro-batches, and
    /// what `coefficients` returned beside them. It is called once for each micro-batch, with its number.
    ///
    /// # Errors
    /// A pass failed, or a parameter received no gradient.
    pub fn gradients<T: Send>(
        &self,
        micro_batches: &[MicroBatch],
        pass: PassSettings,
        coefficients: impl Fn(usize, &MicroBatch, &Scores) -> (LossDerivatives, T) + Sync,
    ) -> Result<(Gradients, Vec<T>)> {
        let mut sum = Gradients::new();
        let mut extras = Vec::with_capacity(micro_batches.len());
        let one = |number: usize, micro: &MicroBatch| {
            let training = TrainingPass::forward(
                &self.decoder,
                &micro.packed,
                micro.scored_tokens(pass.temperature),
                self.kept(micro, pass),
            )?;
            let scores = Scores::read(training.token_logprobs())?;
            let (coefficients, extra) = coefficients(number, micro, &scores);
            let derivatives = LogprobGradients {
                logprobs: &coefficients.d_logprobs,
                entropies: coefficients.d_entropies.as_deref(),
            };
            let gradients = training.backward(derivatives)?;
            gradients.check(self.parameters.keys().map(String::as_str))?;
            Ok((gradients, extra))
        };
        let threads = threads(&self.decoder, pass);
        in_waves(micro_batches, threads, one, |(gradients, extra)| {
            extras.push(extra);
            add(&mut sum, gradients)
        })?;
        Ok((sum, extras))
    }

    /// What the device has memory for, at most what is asked for.
    fn kept(&self, micro: &MicroBatch, pass: PassSettings) -> GradientCheckpointing {
        let (device, config) = (self.device(), self.decoder.config());
        let tokens = micro.packed.tokens.len();
        pass.checkpointing
            .within(free_memory(device), config, self.dtype(), tokens)
    }

    /// Clips, makes one update at `learning_rate` and returns the gradient's norm before clipping.
    ///
    /// # Errors
    /// [`LearnerError::Diverged`] if a gradient or an updated weight is not finite; [`Self::weights`] are then as before.
    pub fn update(&mut self, gradients: Gradients, learning_rate: f64) -> Result<f64> {
        let diverged = LearnerError::Diverged {
            update: self.optimizer.updates + 1,
        };
        let norm = global_norm(&gradients)?;
        if !norm.is_finite() {
            return Err(diverged);
        }
        let factor = clip_factor(norm, self.optimizer.settings.max_grad_norm);
        self.optimizer
            .step(&mut self.parameters, gradients, factor, learning_rate)?;
        if !all_finite(&self.parameters)? {
            return Err(diverged);
        }
        self.rebuild()?;
        Ok(norm)
    }

    /// Lets the decoder see the master copies, which it shares where it computes in their dtype.
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

/// Scores under a decoder that does not learn, one per micro-batch.
///
/// # Errors
/// The forward pass failed.
pub fn scores(
    decoder: &Decoder,
    micro_batches: &[MicroBatch],
    pass: PassSettings,
) -> Result<Vec<Scores>> {
    let mut all = Vec::with_capacity(micro_batches.len());
    let one = |_, micro: &MicroBatch| Scores::read(&forward(decoder, micro, pass.temperature)?);
    in_waves(micro_batches, threads(decoder, pass), one, |scores| {
        all.push(scores);
        Ok(())
    })?;
    Ok(all)
}

/// A device has work of its own to do at once.
fn threads(decoder: &Decoder, pass: PassSettings) -> usize {
    match decoder.device().is_cpu() {
        true => pass.threads,
        false => 1,
    }
}

fn forward(decoder: &Decoder, micro: &MicroBatch, temperature: f32) -> Result<TokenLogprobs> {
    let hidden = decoder.forward(&micro.packed, None)?;
    let hidden = policy::ops::select_rows(&hidden, &micro.predictors)?;
    Ok(decoder.token_logprobs(&hidden, &micro.targets, temperature)?)
}

impl Scores {
    fn read(output: &TokenLogprobs) -> Result<Self> {
        let read = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.to_vec1();
        Ok(Self {
            logprobs: read(&output.logprobs)?,
            entropies: read(&output.entropies)?,
        })
    }
}

/// Runs `work` on all micro-batches, `threads` at a time, and takes the results in micro-batch order.
fn in_waves<T: Send>(
    micro_batches: &[MicroBatch],
    threads: usize,
    work: impl Fn(usize, &MicroBatch) -> Result<T> + Sync,
    mut take: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let numbered: Vec<(usize, &MicroBatch)> = micro_batches.iter().enumerate().collect();
    for wave in numbered.chunks(threads.max(1)) {
        if let [(number, micro)] = *wave {
            take(work(number, micro)?)?;
            continue;
        }
        let results: Vec<Result<T>> = thread::scope(|scope| {
            let spawn = |&(number, micro)| {
                scope.spawn({
                    let work = &work;
                    move || work(number, micro)
                })
            };
            let handles: Vec<_> = wave.iter().map(spawn).collect();
            let join = |handle: thread::ScopedJoinHandle<'_, _>| {
                handle
                    .join()
                    .unwrap_or(Err(LearnerError::Thread("gradient")))
            };
            handles.into_iter().map(join).collect()
        });
        for result in results {
            take(result?)?;
        }
    }
    Ok(())
}

/// Adds in the dtype of the master copies.
fn add(sum: &mut Gradients, gradients: policy::Gradients) -> Result<()> {
    for (name, gradient) in gradients {
        let gradient = gradient.to_dtype(master_dtype(gradient.dtype()))?;
        match sum.get_mut(&name) {
            Some(total) => *total = (&*total + gradient)?,
            None => {
                sum.insert(name, gradient);
            }
        }
    }
    Ok(())
}

/// On the CPU in f32 all values are looked at rather than those up to the first that is not: without a branch the loop
/// vectorises. Elsewhere their norm tells.
fn all_finite(parameters: &BTreeMap<String, Parameter>) -> Result<bool> {
    let finite = |[values]: [&[f32]; 1]| {
        let finite = values.iter().map(|value| value.is_finite());
        finite.fold(true, |all, finite| all & finite)
    };
    let mut elsewhere = Gradients::new();
    for (name, Parameter { value, .. }) in parameters {
        match on_slices([value], finite)? {
            Some(true) => {}
            Some(false) => return Ok(false),
            None => {
                elsewhere.insert(name.clone(), value.clone());
            }
        }
    }
    Ok(global_norm(&elsewhere)?.is_finite())
}
