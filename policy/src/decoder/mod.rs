//! The decoder: one forward pass over packed rows for training and sampling, and its backward pass.
//!
//! Invariant: rows of any length lie end to end without padding. On the CPU in f32 a row's output
//! depends, bit for bit, on that row's tokens alone, whether they come in one prefill, in chunks,
//! or by decode steps through the [`KvCache`].

mod layer;
mod training;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::config::DecoderConfig;
use crate::error::{PolicyError, Result};
use crate::kv_cache::KvCache;
use crate::ops::{self, LinearWeight, RopeTable, TokenLogprobs};
use crate::weights::Weights;
use layer::{Layer, Norm, PassInputs};
pub use training::{GradientCheckpointing, Gradients, ScoredTokens, TrainingPass};

/// The tokens of several rows, laid end to end (packed, or "varlen", rows).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedRows {
    /// The tokens of all rows, [T].
    pub tokens: Vec<u32>,
    /// The rows, in order.
    pub rows: Vec<PackedRow>,
}

/// One row of a packed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRow {
    /// Tokens of this row in the batch; at least 1. A decode step has 1, prefill more.
    pub len: usize,
    /// Tokens before them, which are in the KV cache or, without one, are the first tokens of
    /// another row of the batch.
    pub past: usize,
    /// The slot of the KV cache or, without one, the index of that other row, which is not read if
    /// `past` is 0.
    pub slot: usize,
}

impl PackedRows {
    /// Appends a whole sequence, as in training.
    pub fn push(&mut self, tokens: &[u32]) {
        self.push_cached(tokens, 0, 0);
    }

    /// Appends the rest of a sequence whose first `past` tokens are those of row `prefix`.
    pub fn push_after(&mut self, tokens: &[u32], past: usize, prefix: usize) {
        self.push_cached(tokens, past, prefix);
    }

    /// Appends the next tokens of the sequence in a slot that holds `past` tokens.
    pub fn push_cached(&mut self, tokens: &[u32], past: usize, slot: usize) {
        self.tokens.extend_from_slice(tokens);
        self.rows.push(PackedRow {
            len: tokens.len(),
            past,
            slot,
        });
    }

    fn validate(&self, config: &DecoderConfig) -> Result<()> {
        let total: usize = self.rows.iter().map(|row| row.len).sum();
        if total != self.tokens.len() || self.rows.iter().any(|row| row.len == 0) {
            let (rows, tokens) = (self.rows.len(), self.tokens.len());
            return Err(PolicyError::Usage(format!(
                "{rows} packed rows of {total} tokens in all do not fit {tokens} tokens, or one is \
                 empty"
            )));
        }
        match self
            .tokens
            .iter()
            .find(|&&token| token as usize >= config.vocab_size)
        {
            Some(token) => Err(PolicyError::Usage(format!(
                "token {token} is outside of the vocabulary of {}",
                config.vocab_size
            ))),
            None => Ok(()),
        }
    }

    /// Checks rows without a cache, whose past must be a prefix of an earlier row.
    fn validate_prefixes(&self) -> Result<()> {
        for (index, row) in self.rows.iter().enumerate().filter(|(_, row)| row.past > 0) {
            let held = match self.rows[..index].get(row.slot) {
                Some(prefix) if prefix.past == 0 => prefix.len,
                _ => 0,
            };
            if row.past > held {
                let (past, slot) = (row.past, row.slot);
                return Err(PolicyError::Usage(format!(
                    "row {index} has a past of {past} tokens; without a KV cache they must be a \
                     prefix of an earlier row without a past, and row {slot} has {held}"
                )));
            }
        }
        Ok(())
    }

    fn positions(&self) -> Vec<u32> {
        let positions = |row: &PackedRow| (row.past as u32)..(row.past + row.len) as u32;
        self.rows.iter().flat_map(positions).collect()
    }
}

/// What a decoder is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderMode {
    /// Training: weights stay plain tensors, as the backward pass needs them.
    Train,
    /// Sampling: weights are packed once for the kernels.
    Sample,
}

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A pre-norm decoder of one of the supported families.
pub struct Decoder {
    config: DecoderConfig,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    /// The weight of the LM head [V, W] as training reads it, and as sampling does.
    head: Tensor,
    lm_head_linear: LinearWeight,
    rope: Arc<RopeTable>,
}

impl Decoder {
    /// Builds the decoder on the weights' device and in their dtype.
    ///
    /// # Errors
    /// [`PolicyError::Tensor`] names a weight that is missing or has the wrong shape.
    pub fn new(config: &DecoderConfig, weights: &Weights, mode: DecoderMode) -> Result<Self> {
        let rope = Arc::new(RopeTable::new(config.inverse_frequencies()));
        Self::build(config, weights, mode, rope)
    }

    /// Builds a decoder of the same shape with other weights.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_weights(&self, weights: &Weights, mode: DecoderMode) -> Result<Self> {
        Self::build(&self.config, weights, mode, Arc::clone(&self.rope))
    }

    fn build(
        config: &DecoderConfig,
        weights: &Weights,
        mode: DecoderMode,
        rope: Arc<RopeTable>,
    ) -> Result<Self> {
        let weights = weights.clone().fitted(config)?;
        let loader = WeightLoader {
            weights: &weights,
            mode,
        };
        let embedding = loader.tensor(EMBEDDING)?;
        let head = match config.tie_word_embeddings {
            true => embedding.clone(),
            false => loader.tensor(HEAD)?,
        };
        Ok(Self {
            layers: (0..config.layers)
                .map(|layer| Layer::new(config, &loader, layer))
                .collect::<Result<_>>()?,
            norm: Norm::new(&loader, "model.norm")?,
            lm_head_linear: match mode {
                DecoderMode::Train => LinearWeight::Tensor(head.clone()),
                DecoderMode::Sample => LinearWeight::packed_unrounded(&head)?,
            },
            rope,
            config: config.clone(),
            embedding,
            head,
        })
    }

    /// Returns the decoder's shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Returns the device of the weights.
    pub fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// Returns the dtype of the weights.
    pub fn dtype(&self) -> DType {
        self.embedding.dtype()
    }

    /// Runs T packed tokens → hidden states [T, W] after the final norm. With a cache, this is
    /// prefill or decode: the rows' keys and values are appended to their slots. Without one, every
    /// row is a whole sequence or continues another.
    ///
    /// # Errors
    /// [`PolicyError::Usage`] if rows, tokens and cache do not fit each other; nothing is changed
    /// then.
    pub fn forward(&self, batch: &PackedRows, mut cache: Option<&mut KvCache>) -> Result<Tensor> {
        batch.validate(&self.config)?;
        match &mut cache {
            Some(cache) => cache.allocate(&batch.rows)?,
            None => batch.validate_prefixes()?,
        }
        let inputs = self.pass_inputs(batch)?;
        let mut x = ops::select_rows(&self.embedding, &batch.tokens)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let cache = cache.as_mut().map(|cache| cache.layer(i));
            (x, _) = layer.forward(x, &inputs, cache)?;
        }
        self.norm.forward(&x, self.config.rms_norm_eps)
    }

    fn pass_inputs<'a>(&'a self, batch: &'a PackedRows) -> Result<PassInputs<'a>> {
        Ok(PassInputs {
            config: &self.config,
            rows: &batch.rows,
            cos_sin: self.rope.cos_sin(&batch.positions(), self.device())?,
        })
    }

    /// Returns the logits [N, V] of hidden states [N, W], at least in f32.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(ops::linear_unrounded(hidden, &self.lm_head_linear)?)
    }

    /// Returns log-probabilities and entropies `[N]` of `targets` after hidden states `[N, W]`. On
    /// the CPU in f32 at most 64 MiB of logits are held.
    ///
    /// # Errors
    /// If the number of targets is not N, or one is outside of the vocabulary.
    pub fn token_logprobs(
        &self,
        hidden: &Tensor,
        targets: &[u32],
        temperature: f32,
    ) -> Result<TokenLogprobs> {
        Ok(ops::token_logprobs(
            hidden,
            &self.head,
            targets,
            temperature,
        )?)
    }
}

/// Looks up weights and prepares them for a mode.
struct WeightLoader<'a> {
    weights: &'a Weights,
    mode: DecoderMode,
}

impl WeightLoader<'_> {
    fn tensor(&self, name: &str) -> Result<Tensor> {
        Ok(self.weights.get(name)?.detach())
    }

    fn linear(&self, weight: &Tensor) -> Result<LinearWeight> {
        Ok(match self.mode {
            DecoderMode::Train => LinearWeight::Tensor(weight.clone()),
            DecoderMode::Sample => LinearWeight::packed(weight)?,
        })
    }
}
