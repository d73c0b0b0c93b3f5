//! A decoder that learns: scores, gradients and updates, for both supervised training and GRPO.
//!
//! Invariant: gradients are summed in micro-batch order, so the bits of an update depend on the micro-batches alone,
//! never on the number of threads; and a parameter that received no gradient is an error, never a silent zero.

use std::{collections::BTreeMap, thread};

use candle_core::{DType, Tensor};
use policy::{
    Decoder, DecoderConfig, Keep, TrainingPass, Use, Weights,
    ops::{LogprobGradients, TokenLogprobs},
};

use crate::{
    batch::MicroBatch,
    error::{LearnerError, Result},
    optimizer::{AdamW, Gradients, OptimizerSettings, Parameter},
};

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
pub struct Coefficients {
    /// d loss / d log-probability.
    pub d_logprobs: Vec<f64>,
    /// d loss / d entropy; absent where entropy does not enter the loss.
    pub d_entropies: Option<Vec<f64>>,
}

/// How micro-batches are computed.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Divides the logits.
    pub temperature: f32,
    /// Micro-batches computed at once; memory grows with it, results do not change.
    pub threads: usize,
    /// What of each layer is kept for the backward pass; results do not change.
    pub keep: Keep,
}

impl Pass {
    /// What `gradient_checkpointing` of the settings means.
    #[must_use]
    pub fn keep(gradient_checkpointing: bool) -> Keep {
        if gradient_checkpointing {
            Keep::Inputs
        } else {
            Keep::Activations
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
            let parameter = Parameter::new(tensor.dims().to_vec(), to_f32(tensor)?);
            parameters.insert(name.to_owned(), parameter);
        }
        let decoder = Decoder::new(config, weights, Use::Train)?;
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

    /// The weights after the last update, in the model's dtype. Later updates do not reach them.
    #[must_use]
    pub fn weights(&self) -> Weights {
        self.weights.clone()
    }

    /// Scores without gradient, one per micro-batch.
    ///
    /// # Errors
    /// The forward pass failed.
    pub fn scores(&self, micro_batches: &[MicroBatch], pass: Pass) -> Result<Vec<Scores>> {
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
        pass: Pass,
        coefficients: impl Fn(usize, &MicroBatch, &Scores) -> (Coefficients, T) + Sync,
    ) -> Result<(Gradients, Vec<T>)> {
        let mut sum = Gradients::new();
        let mut extras = Vec::with_capacity(micro_batches.len());
        let one = |number: usize, micro: &MicroBatch| {
            let training = TrainingPass::forward(
                &self.decoder,
                &micro.packed,
                micro.scored_tokens(pass.temperature),
                pass.keep,
            )?;
            let scores = Scores::read(training.scores())?;
            let (coefficients, extra) = coefficients(number, micro, &scores);
            let derivatives = LogprobGradients {
                logprobs: &coefficients.d_logprobs,
                entropies: coefficients.d_entropies.as_deref(),
            };
            let gradients = training.backward(derivatives)?;
            gradients.check(self.parameters.keys().map(String::as_str))?;
            let mut by_name = Gradients::new();
            for (name, gradient) in gradients {
                by_name.insert(name, to_f32(&gradient)?);
            }
            Ok((by_name, extra))
        };
        in_waves(micro_batches, pass.threads, one, |(gradients, extra)| {
            add(&mut sum, gradients);
            extras.push(extra);
        })?;
        Ok((sum, extras))
    }

    /// Clips, makes one update at `learning_rate` and returns the gradient's norm before clipping.
    ///
    /// # Errors
    /// [`LearnerError::Diverged`] if a gradient or an updated weight is not finite; [`Self::weights`] are then as before.
    pub fn update(&mut self, mut gradients: Gradients, learning_rate: f64) -> Result<f64> {
        let diverged = LearnerError::Diverged {
            update: self.optimizer.updates + 1,
        };
        if !gradients.values().all(|values| all_finite(values)) {
            return Err(diverged);
        }
        let norm = self
            .optimizer
            .step(&mut self.parameters, &mut gradients, learning_rate);
        let mut parameters = self.parameters.values();
        if !parameters.all(|parameter| all_finite(&parameter.values)) {
            return Err(diverged);
        }
        self.rebuild()?;
        Ok(norm)
    }

    /// Lets the decoder see the master copies.
    fn rebuild(&mut self) -> Result<()> {
        let (device, dtype) = (self.decoder.device(), self.decoder.dtype());
        let mut tensors = BTreeMap::new();
        for (name, parameter) in &self.parameters {
            let shape = parameter.shape.as_slice();
            let tensor = Tensor::from_slice(&parameter.values, shape, device)?;
            tensors.insert(name.clone(), tensor.to_dtype(dtype)?);
        }
        let weights = Weights::new(tensors);
        self.decoder = self.decoder.with_weights(&weights, Use::Train)?;
        self.weights = weights;
        Ok(())
    }
}

/// Scores under a decoder that does not learn, one per micro-batch.
///
/// # Errors
/// The forward pass failed.
pub fn scores(decoder: &Decoder, micro_batches: &[MicroBatch], pass: Pass) -> Result<Vec<Scores>> {
    let mut all = Vec::with_capacity(micro_batches.len());
    let one = |_, micro: &MicroBatch| Scores::read(&forward(decoder, micro, pass.temperature)?);
    in_waves(micro_batches, pass.threads, one, |scores| all.push(scores))?;
    Ok(all)
}

fn forward(decoder: &Decoder, micro: &MicroBatch, temperature: f32) -> Result<TokenLogprobs> {
    let hidden = decoder.forward(&micro.packed, None)?;
    let hidden = policy::ops::select_rows(&hidden, &micro.predictors)?;
    Ok(decoder.token_logprobs(&hidden, &micro.targets, temperature)?)
}

impl Scores {
    fn read(output: &TokenLogprobs) -> Result<Self> {
        let read = |tensor: &Tensor| {
            Ok::<_, LearnerError>(to_f32(tensor)?.into_iter().map(f64::from).collect())
        };
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
    mut take: impl FnMut(T),
) -> Result<()> {
    let numbered: Vec<(usize, &MicroBatch)> = micro_batches.iter().enumerate().collect();
    for wave in numbered.chunks(threads.max(1)) {
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
            take(result?);
        }
    }
    Ok(())
}

fn add(sum: &mut Gradients, gradients: Gradients) {
    for (name, gradient) in gradients {
        match sum.get_mut(&name) {
            Some(total) => total
                .iter_mut()
                .zip(&gradient)
                .for_each(|(total, g)| *total += g),
            None => {
                sum.insert(name, gradient);
            }
        }
    }
}

/// Looks at all values rather than up to the first that is not: without a branch the loop vectorises.
fn all_finite(values: &[f32]) -> bool {
    values
        .iter()
        .fold(true, |all, value| all & value.is_finite())
}

fn to_f32(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?)
}
