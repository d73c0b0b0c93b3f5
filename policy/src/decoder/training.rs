//! A forward pass for training, and its backward pass.
//!
//! Invariant: the log-probabilities are those of [`Decoder::forward`] and
//! [`Decoder::token_logprobs`], bit for bit. The backward pass is written layer by layer without an
//! autograd graph. A layer's activations are freed as soon as its gradient is computed, and with
//! [`GradientCheckpointing`] they are recomputed in place of kept.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};

use super::layer::{Activations, PassInputs};
use super::{Decoder, EMBEDDING, HEAD};
use crate::config::DecoderConfig;
use crate::error::{PolicyError, Result};
use crate::ops::{self, LogprobGradients, Targets, TokenLogprobs};
use crate::packed_rows::PackedRows;

/// Whether a layer's activations are kept for its backward pass or recomputed there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientCheckpointing {
    /// Keeps every activation that the backward pass reads.
    #[default]
    Off,
    /// Keeps each layer's input and recomputes its activations in the backward pass: less memory
    /// for one more forward pass (Chen et al., arXiv:1604.06174).
    On,
}

impl GradientCheckpointing {
    /// Turns checkpointing on if the activations of `tokens` take more than half of the `free`
    /// bytes. `None` (unknown) changes nothing.
    #[must_use]
    pub fn within(
        self,
        free: Option<u64>,
        config: &DecoderConfig,
        dtype: DType,
        tokens: usize,
    ) -> Self {
        let bytes = Activations::token_bytes(config, dtype) * config.layers * tokens;
        // The other half is for the temporary tensors of a pass.
        match free {
            Some(free) if bytes as u64 > free / 2 => Self::On,
            _ => self,
        }
    }
}

/// The tokens that a training pass scores, N of them.
#[derive(Clone, Copy, Debug)]
pub struct ScoredTokens<'a> {
    /// For each, the packed position whose hidden state predicts it, `[N]`.
    pub predictors: &'a [u32],
    /// The token ids, and what each one was chosen from, `[N]`.
    pub targets: Targets<'a>,
    /// Divides the logits.
    pub temperature: f32,
}

/// Gradients by the name of their weight, each in its weight's shape and device.
pub type Gradients = BTreeMap<String, Tensor>;

pub(super) fn set_gradient(gradients: &mut Gradients, name: &str, gradient: Tensor) {
    let before = gradients.insert(name.to_owned(), gradient);
    assert!(before.is_none(), "{name} has two gradients: this is a bug");
}

/// Checks that each of the named weights has a gradient. One that the backward pass misses would
/// silently never learn.
///
/// # Errors
/// [`PolicyError::Tensor`] names it.
pub fn check_gradients<'a>(
    gradients: &Gradients,
    mut names: impl Iterator<Item = &'a str>,
) -> Result<()> {
    match names.find(|name| !gradients.contains_key(*name)) {
        Some(name) => Err(PolicyError::tensor(
            name,
            "received no gradient: the backward pass does not compute it, which is a bug",
        )),
        None => Ok(()),
    }
}

/// A forward pass over packed rows, with the tensors that its backward pass needs.
pub struct TrainingPass<'a> {
    decoder: &'a Decoder,
    batch: &'a PackedRows,
    inputs: PassInputs<'a>,
    scored: ScoredTokens<'a>,
    layers: Vec<SavedLayer>,
    /// The residual stream after the last layer [T, W], and the hidden states after the final norm
    /// at the predictors [N, W].
    residual: Tensor,
    hidden: Tensor,
    token_logprobs: TokenLogprobs,
}

enum SavedLayer {
    Activations(Box<Activations>),
    Input(Tensor),
}

impl<'a> TrainingPass<'a> {
    /// Runs `batch`, whose rows have no KV cache, and scores its `scored` tokens.
    ///
    /// # Errors
    /// [`PolicyError::Usage`] if rows and tokens do not fit each other; [`PolicyError::Tensor`] if
    /// a predictor or target is out of range.
    pub fn forward(
        decoder: &'a Decoder,
        batch: &'a PackedRows,
        scored: ScoredTokens<'a>,
        checkpointing: GradientCheckpointing,
    ) -> Result<Self> {
        batch.validate(&decoder.config)?;
        batch.validate_prefixes()?;
        let inputs = decoder.pass_inputs(batch)?;
        let mut layers = Vec::with_capacity(decoder.layers.len());
        let mut x = ops::select_rows(&decoder.embedding, &batch.tokens)?;
        for layer in &decoder.layers {
            let input = x.clone();
            let (residual, activations) = layer.forward(x, &inputs, None)?;
            layers.push(match checkpointing {
                GradientCheckpointing::Off => SavedLayer::Activations(Box::new(activations)),
                GradientCheckpointing::On => SavedLayer::Input(input),
            });
            x = residual;
        }
        let hidden = decoder.norm.forward(&x, &inputs)?;
        let hidden = ops::select_rows(&hidden, scored.predictors)?;
        let token_logprobs = decoder.token_logprobs(&hidden, scored.targets, scored.temperature)?;
        Ok(Self {
            decoder,
            batch,
            inputs,
            scored,
            layers,
            residual: x,
            hidden,
            token_logprobs,
        })
    }

    /// Returns the log-probabilities and entropies of the scored tokens.
    pub fn token_logprobs(&self) -> &TokenLogprobs {
        &self.token_logprobs
    }

    /// Returns the gradient of every weight, from the derivatives of the loss by the
    /// log-probabilities and entropies.
    ///
    /// # Errors
    /// [`PolicyError::Usage`] if the decoder was built for sampling.
    pub fn backward(mut self, derivatives: &LogprobGradients) -> Result<Gradients> {
        let decoder = self.decoder;
        let mut gradients = Gradients::default();
        let backend = decoder.backend;
        let (dhidden, dhead) = backend.token_logprobs_backward(
            self.token_logprobs,
            &self.hidden,
            &decoder.head,
            self.scored.targets,
            self.scored.temperature,
            derivatives,
        )?;
        let zeros = self.residual.zeros_like()?;
        let dnormed = backend.add_rows(zeros, self.scored.predictors, &dhidden)?;
        let inputs = self.inputs;
        let mut dx =
            decoder
                .norm
                .backward(&self.residual, &dnormed, None, &inputs, &mut gradients)?;
        // Frees the large tensors before the layers need memory for their own.
        drop((dhidden, dnormed, self.residual, self.hidden));
        for layer in decoder.layers.iter().rev() {
            let saved = self
                .layers
                .pop()
                .expect("every layer was saved: this is a bug");
            let activations = match saved {
                SavedLayer::Activations(activations) => *activations,
                SavedLayer::Input(input) => layer.forward(input, &inputs, None)?.1,
            };
            dx = layer.backward(&activations, &dx, &inputs, &mut gradients)?;
        }
        // A tied embedding is also the LM head, so its gradient is the sum of both.
        let dembedding = if decoder.config.tie_word_embeddings {
            dhead
        } else {
            let zeros = dhead.zeros_like()?;
            set_gradient(&mut gradients, HEAD, dhead);
            zeros
        };
        let dembedding = backend.add_rows(dembedding, &self.batch.tokens, &dx)?;
        set_gradient(&mut gradients, EMBEDDING, dembedding);
        Ok(gradients)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_computed_again() {
        let config = crate::embedded::model(0).unwrap().config;
        let layer = Activations::token_bytes(&config, DType::F32);
        let needed = (layer * config.layers * 100) as u64;
        let within = |checkpointing: GradientCheckpointing, free| {
            checkpointing.within(free, &config, DType::F32, 100)
        };
        assert_eq!(
            within(GradientCheckpointing::Off, None),
            GradientCheckpointing::Off
        );
        assert_eq!(
            within(GradientCheckpointing::Off, Some(2 * needed)),
            GradientCheckpointing::Off
        );
        assert_eq!(
            within(GradientCheckpointing::Off, Some(2 * needed - 2)),
            GradientCheckpointing::On
        );
        assert_eq!(
            within(GradientCheckpointing::On, Some(u64::MAX)),
            GradientCheckpointing::On
        );
    }
}
