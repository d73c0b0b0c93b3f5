//! The decoder: one forward pass over packed rows for training and sampling, and its backward pass.
//!
//! Invariant: rows of any length lie end to end without padding. With kernels (f32 and bf16 on the
//! CPU, bf16 on an NVIDIA GPU) a row's output depends, bit for bit, on that row's tokens alone,
//! whether they come in one prefill, in chunks, or by decode steps through the [`KvCache`].

mod layer;
mod training;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::config::{DecoderConfig, EMBEDDING, HEAD};
use crate::error::Result;
use crate::kv_cache::KvCache;
use crate::ops::{self, Backend, LinearWeight, RopeTable, Targets, TokenLogprobs};
use crate::packed_rows::PackedRows;
use crate::weights::Weights;
use layer::{Layer, Norm, PassInputs};
pub use training::{GradientCheckpointing, Gradients, ScoredTokens, TrainingPass, check_gradients};

/// What a decoder is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderMode {
    /// Training: weights are held as both passes read them.
    Train,
    /// Sampling: weights are packed once for the kernels, and there is no backward pass.
    Sample,
}

/// A pre-norm decoder of one of the supported families.
pub struct Decoder {
    config: DecoderConfig,
    backend: Backend,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    /// The LM head [V, W].
    head: LinearWeight,
    rope: Arc<RopeTable>,
}

impl Decoder {
    /// Builds the decoder on the weights' device and in their dtype.
    ///
    /// # Errors
    /// [`crate::PolicyError::Tensor`] names a weight that is missing or has the wrong shape.
    pub fn new(config: &DecoderConfig, weights: &Weights, mode: DecoderMode) -> Result<Self> {
        let embedding = weights.get(EMBEDDING)?;
        let backend = Backend::of(embedding.device(), embedding.dtype()).for_shape(config);
        Self::on_backend(config, weights, mode, backend)
    }

    /// Does the same with another backend than that of the weights' device and dtype, as tests of
    /// [`Backend::TensorOps`] on the CPU do.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn on_backend(
        config: &DecoderConfig,
        weights: &Weights,
        mode: DecoderMode,
        backend: Backend,
    ) -> Result<Self> {
        let rope = Arc::new(RopeTable::new(config.inverse_frequencies()));
        Self::build(config, weights, (mode, backend), rope)
    }

    /// Builds a decoder of the same shape and backend with other weights.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_weights(&self, weights: &Weights, mode: DecoderMode) -> Result<Self> {
        let rope = Arc::clone(&self.rope);
        Self::build(&self.config, weights, (mode, self.backend), rope)
    }

    fn build(
        config: &DecoderConfig,
        weights: &Weights,
        (mode, backend): (DecoderMode, Backend),
        rope: Arc<RopeTable>,
    ) -> Result<Self> {
        let weights = weights.clone().fitted(config)?;
        let loader = WeightLoader {
            weights: &weights,
            mode,
            backend,
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
            head: loader.linear(&head)?,
            rope,
            backend,
            config: config.clone(),
            embedding,
        })
    }

    /// Returns the decoder's shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Returns what computes the operations.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns the device of the weights.
    pub fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// Returns the dtype of the weights.
    pub fn dtype(&self) -> DType {
        self.embedding.dtype()
    }

    /// Allocates a KV cache of `slots` sequences of up to `capacity_tokens` tokens.
    ///
    /// # Errors
    /// The device has too little memory.
    pub fn kv_cache(&self, slots: usize, capacity_tokens: usize) -> Result<KvCache> {
        let place = (self.device(), self.dtype());
        KvCache::new(&self.config, self.backend, place, slots, capacity_tokens)
    }

    /// Runs T packed tokens → hidden states [T, W] after the final norm. With a cache, this is
    /// prefill or decode: the rows' keys and values are appended to their slots. Without one, every
    /// row is a whole sequence or continues another.
    ///
    /// # Errors
    /// [`crate::PolicyError::Usage`] if rows, tokens and cache do not fit each other; nothing is
    /// changed then.
    pub fn forward(&self, batch: &PackedRows, mut cache: Option<&mut KvCache>) -> Result<Tensor> {
        batch.validate(&self.config)?;
        match &mut cache {
            Some(cache) => cache.allocate(&batch.rows)?,
            None => batch.validate_prefixes()?,
        }
        let inputs = self.pass_inputs(batch)?;
        let mut x = ops::select_rows(&self.embedding, &batch.tokens)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let cache = cache.as_deref_mut().map(|cache| (cache, i));
            (x, _) = layer.forward(x, &inputs, cache)?;
        }
        self.norm.forward(&x, &inputs)
    }

    fn pass_inputs<'a>(&'a self, batch: &'a PackedRows) -> Result<PassInputs<'a>> {
        Ok(PassInputs {
            backend: self.backend,
            config: &self.config,
            rows: &batch.rows,
            cos_sin: self.rope.cos_sin(&batch.positions(), self.device())?,
        })
    }

    /// Returns the logits [N, V] of hidden states [N, W], at least in f32.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(self.backend.linear_unrounded(hidden, &self.head)?)
    }

    /// Returns log-probabilities and entropies `[N]` of `targets` after hidden states `[N, W]`. On
    /// the CPU at most 64 MiB of logits are held, or those of 48 tokens where they take more.
    ///
    /// # Errors
    /// If the number of targets or of sets is not N, or one is outside of the vocabulary.
    pub fn token_logprobs<'a>(
        &self,
        hidden: &Tensor,
        targets: impl Into<Targets<'a>>,
        temperature: f32,
    ) -> Result<TokenLogprobs> {
        Ok(self
            .backend
            .token_logprobs(hidden, &self.head, targets, temperature)?)
    }
}

/// Looks up weights and prepares them for a mode.
struct WeightLoader<'a> {
    weights: &'a Weights,
    mode: DecoderMode,
    backend: Backend,
}

impl WeightLoader<'_> {
    fn tensor(&self, name: &str) -> Result<Tensor> {
        Ok(self.weights.get(name)?.detach())
    }

    fn linear(&self, weight: &Tensor) -> Result<LinearWeight> {
        Ok(match self.mode {
            DecoderMode::Train => self.backend.training_weight(weight)?,
            DecoderMode::Sample => self.backend.sampling_weight(weight)?,
        })
    }
}
