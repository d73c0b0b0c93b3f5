//! The decoder: one forward pass over packed rows that trains and samples.
//!
//! Invariant: rows of any length lie end to end without padding, and on the CPU in f32 what a row returns depends, bit for
//! bit, on that row's tokens alone, whether they come in one piece, in chunks, or one by one through the [`KvCache`].

use candle_core::{Device, Tensor};

use crate::config::DecoderConfig;
use crate::error::{PolicyError, Result};
use crate::kv_cache::{KvCache, LayerCache};
use crate::ops::{self, LinearWeight, RopeTable, TokenLogprobs};
use crate::weights::Weights;

/// Tokens of several rows, laid end to end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedRows {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Their rows, in order.
    pub rows: Vec<Row>,
}

/// One row of a packed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Tokens of this row in the batch; at least 1.
    pub len: usize,
    /// Tokens before them, in the KV cache; 0 without a cache.
    pub past: usize,
    /// Slot of the KV cache; not read without a cache.
    pub slot: usize,
}

impl PackedRows {
    /// Appends whole sequence, as training has them.
    pub fn push(&mut self, tokens: &[u32]) {
        self.push_cached(tokens, 0, 0);
    }

    /// Appends the next tokens of the sequence in a slot that holds `past` tokens.
    pub fn push_cached(&mut self, tokens: &[u32], past: usize, slot: usize) {
        self.tokens.extend_from_slice(tokens);
        self.rows.push(Row {
            len: tokens.len(),
            past,
            slot,
        });
    }

    fn check(&self, config: &DecoderConfig) -> Result<()> {
        let total: usize = self.rows.iter().map(|row| row.len).sum();
        if total != self.tokens.len() || self.rows.iter().any(|row| row.len == 0) {
            let (rows, tokens) = (self.rows.len(), self.tokens.len());
            return Err(PolicyError::Usage(format!(
                "{rows} packed rows of {total} tokens in all do not fit {tokens} tokens, or one is empty"
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

    fn positions(&self) -> Vec<u32> {
        let positions = |row: &Row| (row.past as u32)..(row.past + row.len) as u32;
        self.rows.iter().flat_map(positions).collect()
    }
}

/// What a decoder is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Gradients flow to the weights, and changes of them are seen.
    Train,
    /// The weights are laid out once for the kernels; no gradients.
    Sample,
}

/// A decoder of one of the supported families.
pub struct Decoder {
    config: DecoderConfig,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    /// The logits' weight [V, H] as training reads it, and as sampling does.
    head: Tensor,
    head_product: LinearWeight,
    rope: RopeTable,
}

impl Decoder {
    /// Builds the decoder on the weights' device and in their dtype.
    ///
    /// # Errors
    /// [`PolicyError::Tensor`] names a weight that is missing or misshaped.
    pub fn new(config: &DecoderConfig, weights: &Weights, purpose: Use) -> Result<Self> {
        let weights = weights.clone().fitted(config)?;
        let source = Source {
            weights: &weights,
            purpose,
        };
        let embedding = source.tensor("model.embed_tokens.weight")?;
        let head = if config.tie_word_embeddings {
            embedding.clone()
        } else {
            source.tensor("lm_head.weight")?
        };
        Ok(Self {
            layers: (0..config.layers)
                .map(|layer| Layer::new(config, &source, layer))
                .collect::<Result<_>>()?,
            norm: source.tensor("model.norm.weight")?,
            head_product: source.product(&head)?,
            rope: RopeTable::new(config.inverse_frequencies()),
            config: config.clone(),
            embedding,
            head,
        })
    }

    /// The decoder's shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// Runs T packed tokens → [T, hidden], after the final norm. With a cache, the rows' keys and values are appended to
    /// their slots; without one, every row is a whole sequence.
    ///
    /// # Errors
    /// [`PolicyError::Usage`] where rows, tokens and cache do not fit each other; nothing is changed then.
    pub fn forward(&self, batch: &PackedRows, mut cache: Option<&mut KvCache>) -> Result<Tensor> {
        batch.check(&self.config)?;
        match &mut cache {
            Some(cache) => cache.admit(&batch.rows)?,
            None if batch.rows.iter().any(|row| row.past > 0) => {
                let reason = "a row with a past needs the KV cache that holds it";
                return Err(PolicyError::Usage(reason.to_owned()));
            }
            None => {}
        }
        let context = Context {
            config: &self.config,
            rope: &self.rope,
            rows: &batch.rows,
            positions: &batch.positions(),
        };
        let ids = Tensor::new(batch.tokens.as_slice(), self.device())?;
        let mut x = self.embedding.index_select(&ids, 0)?;
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, &context, cache.as_mut().map(|cache| cache.layer(i)))?;
        }
        Ok(ops::rms_norm(&x, &self.norm, self.config.rms_norm_eps)?)
    }

    /// Logits [N, V] of hidden states [N, hidden].
    ///
    /// # Errors
    /// Only what the tensor library raises.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(ops::linear(hidden, &self.head_product)?)
    }

    /// Log-probabilities and entropies `[N]` of `targets` after hidden states `[N, hidden]`, differentiable; never holds the
    /// logits of more than a few rows.
    ///
    /// # Errors
    /// Where the number of targets is not N, or one is outside of the vocabulary.
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

/// Weights for a purpose.
struct Source<'a> {
    weights: &'a Weights,
    purpose: Use,
}

impl Source<'_> {
    fn tensor(&self, name: &str) -> Result<Tensor> {
        let tensor = self.weights.get(name)?;
        Ok(match self.purpose {
            Use::Train => tensor.clone(),
            Use::Sample => tensor.detach(),
        })
    }

    fn product(&self, weight: &Tensor) -> Result<LinearWeight> {
        Ok(match self.purpose {
            Use::Train => LinearWeight::Tensor(weight.clone()),
            Use::Sample => LinearWeight::packed(weight)?,
        })
    }
}

/// What all layers of one forward pass share.
struct Context<'a> {
    config: &'a DecoderConfig,
    rope: &'a RopeTable,
    rows: &'a [Row],
    positions: &'a [u32],
}

struct Layer {
    input_norm: Tensor,
    attention: Attention,
    inner_norm: Tensor,
    gate: Projection,
    up: Projection,
    down: Projection,
}

impl Layer {
    fn new(config: &DecoderConfig, source: &Source<'_>, layer: usize) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let projection = |part: &str| Projection::new(source, &name(part), false);
        Ok(Self {
            input_norm: source.tensor(&name("input_layernorm.weight"))?,
            attention: Attention::new(config, source, &name("self_attn"))?,
            inner_norm: source.tensor(&name("post_attention_layernorm.weight"))?,
            gate: projection("mlp.gate_proj")?,
            up: projection("mlp.up_proj")?,
            down: projection("mlp.down_proj")?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        context: &Context<'_>,
        cache: Option<&mut LayerCache>,
    ) -> Result<Tensor> {
        let eps = context.config.rms_norm_eps;
        let normed = ops::rms_norm(x, &self.input_norm, eps)?;
        let x = (x + self.attention.forward(&normed, context, cache)?)?;
        let normed = ops::rms_norm(&x, &self.inner_norm, eps)?;
        let inner = ops::swiglu(&self.gate.forward(&normed)?, &self.up.forward(&normed)?)?;
        Ok((x + self.down.forward(&inner)?)?)
    }
}

struct Attention {
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    /// Norms over the width of a head, of queries and keys (Qwen3).
    norms: Option<(Tensor, Tensor)>,
}

impl Attention {
    fn new(config: &DecoderConfig, source: &Source<'_>, name: &str) -> Result<Self> {
        let projection =
            |part: &str, bias| Projection::new(source, &format!("{name}.{part}"), bias);
        let norm = |part: &str| source.tensor(&format!("{name}.{part}.weight"));
        Ok(Self {
            q: projection("q_proj", config.qkv_bias)?,
            k: projection("k_proj", config.qkv_bias)?,
            v: projection("v_proj", config.qkv_bias)?,
            o: projection("o_proj", config.output_bias)?,
            norms: match config.family {
                crate::Family::Qwen3 => Some((norm("q_norm")?, norm("k_norm")?)),
                crate::Family::Qwen2 | crate::Family::Llama => None,
            },
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        context: &Context<'_>,
        cache: Option<&mut LayerCache>,
    ) -> Result<Tensor> {
        let config = context.config;
        let split = |x: Tensor, heads| x.reshape(((), heads, config.head_dim));
        let mut q = split(self.q.forward(x)?, config.heads)?;
        let mut k = split(self.k.forward(x)?, config.kv_heads)?;
        let v = split(self.v.forward(x)?, config.kv_heads)?;
        if let Some((q_norm, k_norm)) = &self.norms {
            q = ops::rms_norm(&q, q_norm, config.rms_norm_eps)?;
            k = ops::rms_norm(&k, k_norm, config.rms_norm_eps)?;
        }
        let q = ops::rope(&q, context.rope, context.positions)?;
        let k = ops::rope(&k, context.rope, context.positions)?;
        let mixed = match cache {
            Some(cache) => cache.attend(&q, &k, &v, context.rows)?,
            None => ops::attention(&q, &k, &v, context.rows)?,
        };
        self.o.forward(&mixed)
    }
}

/// A linear layer, with or without a bias.
struct Projection {
    weight: LinearWeight,
    bias: Option<Tensor>,
}

impl Projection {
    fn new(source: &Source<'_>, name: &str, bias: bool) -> Result<Self> {
        let weight = source.product(&source.tensor(&format!("{name}.weight"))?)?;
        let bias = bias
            .then(|| source.tensor(&format!("{name}.bias")))
            .transpose()?;
        Ok(Self { weight, bias })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = ops::linear(x, &self.weight)?;
        Ok(match &self.bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        })
    }
}
