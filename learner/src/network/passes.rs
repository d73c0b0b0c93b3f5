//! Forward and backward passes over micro-batches, several at a time.

use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{DType, Tensor};
use policy::{Decoder, GradientCheckpointing, ops::TokenLogprobs};

use crate::{
    batch::MicroBatch,
    error::{LearnerError, Result},
    optimizer::{Gradients, master_dtype},
    parallel,
};

/// Log-probabilities and entropies of a micro-batch's scored tokens, one value per token.
#[derive(Clone, Debug)]
pub struct Scores {
    /// Log-probabilities at the given temperature.
    pub logprobs: Vec<f64>,
    /// Entropies of the distributions they come from, in nats.
    pub entropies: Vec<f64>,
}

/// Settings of the forward and backward passes over micro-batches.
#[derive(Clone, Copy, Debug)]
pub struct PassSettings {
    /// Divisor of the logits.
    pub temperature: f32,
    /// Micro-batches that the CPU computes at once; another device computes one. Memory grows with
    /// it, results do not change.
    pub threads: usize,
    /// What of each layer is kept for the backward pass, if a device has memory for it; results do
    /// not change.
    pub checkpointing: GradientCheckpointing,
}

impl PassSettings {
    /// Returns what the setting `gradient_checkpointing` stands for.
    pub fn checkpointing(gradient_checkpointing: bool) -> GradientCheckpointing {
        if gradient_checkpointing {
            GradientCheckpointing::On
        } else {
            GradientCheckpointing::Off
        }
    }
}

/// Computes scores under a decoder without an optimizer, one per micro-batch.
pub fn scores(
    decoder: &Decoder,
    micro_batches: &[MicroBatch],
    pass: PassSettings,
) -> Result<Vec<Scores>> {
    scores_unless(&AtomicBool::new(false), decoder, micro_batches, pass)
}

/// Does the same unless `stopping` is set before the last micro-batch.
pub(crate) fn scores_unless(
    stopping: &AtomicBool,
    decoder: &Decoder,
    micro_batches: &[MicroBatch],
    pass: PassSettings,
) -> Result<Vec<Scores>> {
    let mut all = Vec::with_capacity(micro_batches.len());
    let one = |_, micro: &MicroBatch| {
        let hidden = decoder.forward(&micro.packed, None)?;
        let hidden = policy::ops::select_rows(&hidden, &micro.predictors)?;
        Scores::read(&decoder.token_logprobs(&hidden, micro.targets(), pass.temperature)?)
    };
    let threads = threads(decoder, pass);
    in_order(micro_batches, (threads, stopping), one, |scores| {
        all.push(scores);
        Ok(())
    })?;
    Ok(all)
}

/// Returns how many micro-batches to compute at once. A pass fills a device that is not the CPU.
pub(super) fn threads(decoder: &Decoder, pass: PassSettings) -> usize {
    match decoder.device().is_cpu() {
        true => pass.threads,
        false => 1,
    }
}

impl Scores {
    pub(super) fn read(output: &TokenLogprobs) -> Result<Self> {
        let read = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.to_vec1();
        Ok(Self {
            logprobs: read(&output.logprobs)?,
            entropies: read(&output.entropies)?,
        })
    }
}

/// Runs `work` on all micro-batches, `threads` at a time, and gives the results to `take` in
/// micro-batch order, unless `stopping` is set before.
pub(super) fn in_order<T: Send>(
    micro_batches: &[MicroBatch],
    (threads, stopping): (usize, &AtomicBool),
    work: impl Fn(usize, &MicroBatch) -> Result<T> + Sync,
    take: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let unless_stopping = |number: usize| match stopping.load(Ordering::Relaxed) {
        true => Err(LearnerError::Stopped),
        false => work(number, &micro_batches[number]),
    };
    parallel::in_order(threads, micro_batches.len(), unless_stopping, take)
}

/// Adds `gradients` to `sum` in the dtype of the master copies: bf16 would lose small ones.
pub(super) fn add(sum: &mut Gradients, mut gradients: Gradients, threads: usize) -> Result<()> {
    let common = sum.iter_mut().filter_map(|(name, total)| {
        let gradient = gradients.remove(name)?;
        Some((total, gradient))
    });
    parallel::for_each(threads, common, |(total, gradient)| {
        let gradient = gradient.to_dtype(master_dtype(gradient.dtype()))?;
        *total = (&*total + gradient)?;
        Ok(())
    })?;
    for (name, gradient) in gradients {
        let gradient = gradient.to_dtype(master_dtype(gradient.dtype()))?;
        sum.insert(name, gradient);
    }
    Ok(())
}
