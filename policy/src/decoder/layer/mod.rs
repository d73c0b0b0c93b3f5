//! One layer of the decoder, forward and backward: pre-norm attention and a SwiGLU MLP, each with a
//! residual connection.
//!
//! Invariant: forward returns every tensor that backward reads. The caller keeps them, drops them,
//! or runs forward again (gradient checkpointing).
//!
//! Shapes: T packed tokens, W width of the residual stream, H query heads, K key-value heads, D
//! head size, I width of the MLP.

use candle_core::{DType, Tensor};

use super::{Gradients, WeightLoader, training::set_gradient};
use crate::config::{DecoderConfig, Family};
use crate::error::{PolicyError, Result};
use crate::kv_cache::KvCache;
use crate::ops::{Backend, LinearWeight};
use crate::packed_rows::PackedRow;

/// The inputs that all layers of one pass share.
pub(super) struct PassInputs<'a> {
    pub(super) backend: Backend,
    pub(super) config: &'a DecoderConfig,
    pub(super) rows: &'a [PackedRow],
    /// The rows [T, D] of the cos/sin table for the tokens' positions, see [`Backend::rope`].
    pub(super) cos_sin: Tensor,
}

pub(super) struct Layer {
    input_norm: Norm,
    attention: Attention,
    post_attention_norm: Norm,
    gate: Projection,
    up: Projection,
    down: Projection,
}

/// The tensors that a layer's backward pass reads.
pub(super) struct Activations {
    input: Tensor,
    attention_input: Tensor,
    attention: AttentionActivations,
    residual: Tensor,
    mlp_input: Tensor,
    gate: Tensor,
    up: Tensor,
    mlp_hidden: Tensor,
}

impl Activations {
    /// Returns the bytes that one token takes.
    pub(super) fn token_bytes(config: &DecoderConfig, dtype: DType) -> usize {
        let (heads, kv_heads) = (
            config.heads * config.head_dim,
            config.kv_heads * config.head_dim,
        );
        let qk_before_norm = match config.family {
            Family::Qwen3 => heads + kv_heads,
            Family::Qwen2 | Family::Llama => 0,
        };
        let attention = qk_before_norm + 2 * heads + 2 * kv_heads;
        let around = 4 * config.hidden_size + 3 * config.intermediate_size;
        (attention + around) * dtype.size_in_bytes()
    }
}

impl Layer {
    pub(super) fn new(
        config: &DecoderConfig,
        loader: &WeightLoader<'_>,
        layer: usize,
    ) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let projection = |part: &str| Projection::new(loader, &name(part), false);
        Ok(Self {
            input_norm: Norm::new(loader, &name("input_layernorm"))?,
            attention: Attention::new(config, loader, &name("self_attn"))?,
            post_attention_norm: Norm::new(loader, &name("post_attention_layernorm"))?,
            gate: projection("mlp.gate_proj")?,
            up: projection("mlp.up_proj")?,
            down: projection("mlp.down_proj")?,
        })
    }

    /// Runs the layer: [T, W] → [T, W], with the activations for the backward pass. A KV cache
    /// comes with the layer's number in it.
    pub(super) fn forward(
        &self,
        input: Tensor,
        inputs: &PassInputs<'_>,
        cache: Option<(&mut KvCache, usize)>,
    ) -> Result<(Tensor, Activations)> {
        let attention_input = self.input_norm.forward(&input, inputs)?;
        let (attention_output, attention) =
            self.attention.forward(&attention_input, inputs, cache)?;
        let norm = &self.post_attention_norm;
        let (residual, mlp_input) = norm.after_adding(&input, &attention_output, inputs)?;
        let [gate, up] = projections([&self.gate, &self.up], &mlp_input, inputs)?;
        let mlp_hidden = inputs.backend.swiglu(&gate, &up)?;
        let [mlp_output] = projections([&self.down], &mlp_hidden, inputs)?;
        let output = inputs.backend.add(&residual, &mlp_output)?;
        let activations = Activations {
            input,
            attention_input,
            attention,
            residual,
            mlp_input,
            gate,
            up,
            mlp_hidden,
        };
        Ok((output, activations))
    }

    /// Returns the gradient of the input from that of the output, and adds the gradients of the
    /// weights.
    pub(super) fn backward(
        &self,
        activations: &Activations,
        doutput: &Tensor,
        inputs: &PassInputs<'_>,
        gradients: &mut Gradients,
    ) -> Result<Tensor> {
        let a = activations;
        // The chain rule from the output back to the input. Each residual connection adds its
        // gradient in the norm's backward pass.
        let outputs = [(&self.down, doutput)];
        let dmlp_hidden = projections_backward(&outputs, &a.mlp_hidden, inputs, gradients)?;
        let (dgate, dup) = inputs
            .backend
            .swiglu_backward(&a.gate, &a.up, &dmlp_hidden)?;
        let outputs = [(&self.gate, &dgate), (&self.up, &dup)];
        let dnormed = projections_backward(&outputs, &a.mlp_input, inputs, gradients)?;
        let dresidual = self.post_attention_norm.backward(
            &a.residual,
            &dnormed,
            Some(doutput),
            inputs,
            gradients,
        )?;
        let dnormed = self.attention.backward(
            &a.attention,
            &a.attention_input,
            &dresidual,
            inputs,
            gradients,
        )?;
        self.input_norm
            .backward(&a.input, &dnormed, Some(&dresidual), inputs, gradients)
    }
}

struct Attention {
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    /// Norms over the head size of queries and keys, before the rotary embedding (Qwen3).
    norms: Option<(Norm, Norm)>,
}

struct AttentionActivations {
    /// Queries and keys before their norms, if the family has these.
    qk_before_norm: Option<(Tensor, Tensor)>,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attended: Tensor,
}

impl Attention {
    fn new(config: &DecoderConfig, loader: &WeightLoader<'_>, name: &str) -> Result<Self> {
        let projection =
            |part: &str, bias| Projection::new(loader, &format!("{name}.{part}"), bias);
        let norm = |part: &str| Norm::new(loader, &format!("{name}.{part}"));
        Ok(Self {
            q: projection("q_proj", config.qkv_bias)?,
            k: projection("k_proj", config.qkv_bias)?,
            v: projection("v_proj", config.qkv_bias)?,
            o: projection("o_proj", config.output_bias)?,
            norms: match config.family {
                Family::Qwen3 => Some((norm("q_norm")?, norm("k_norm")?)),
                Family::Qwen2 | Family::Llama => None,
            },
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        inputs: &PassInputs<'_>,
        cache: Option<(&mut KvCache, usize)>,
    ) -> Result<(Tensor, AttentionActivations)> {
        let (config, backend) = (inputs.config, inputs.backend);
        let split = |x: Tensor, heads| x.reshape(((), heads, config.head_dim));
        let [q, k, v] = projections([&self.q, &self.k, &self.v], x, inputs)?;
        let v = split(v, config.kv_heads)?;
        let before = (split(q, config.heads)?, split(k, config.kv_heads)?);
        let norms = self.norms.as_ref();
        let weights = norms.map(|(q_norm, k_norm)| (&q_norm.weight, &k_norm.weight));
        let (eps, cos_sin) = (config.rms_norm_eps, &inputs.cos_sin);
        let (q, k) = backend.norm_and_rope(&before.0, &before.1, weights, eps, cos_sin)?;
        let qk_before_norm = norms.map(|_| before);
        let attended = match cache {
            Some((cache, layer)) => cache.attend(layer, [&q, &k, &v], inputs.rows)?,
            None => backend.attention(&q, &k, &v, inputs.rows)?,
        };
        let [output] = projections([&self.o], &attended, inputs)?;
        let activations = AttentionActivations {
            qk_before_norm,
            q,
            k,
            v,
            attended,
        };
        Ok((output, activations))
    }

    fn backward(
        &self,
        activations: &AttentionActivations,
        x: &Tensor,
        doutput: &Tensor,
        inputs: &PassInputs<'_>,
        gradients: &mut Gradients,
    ) -> Result<Tensor> {
        let AttentionActivations {
            q, k, v, attended, ..
        } = activations;
        let backend = inputs.backend;
        let dattended = projections_backward(&[(&self.o, doutput)], attended, inputs, gradients)?;
        let [dq, dk, dv] =
            backend.attention_backward(q, k, v, inputs.rows, attended, &dattended)?;
        let mut dq = backend.rope_backward(&dq, &inputs.cos_sin)?;
        let mut dk = backend.rope_backward(&dk, &inputs.cos_sin)?;
        if let (Some((q_norm, k_norm)), Some((q, k))) = (&self.norms, &activations.qk_before_norm) {
            dq = q_norm.backward(q, &dq, None, inputs, gradients)?;
            dk = k_norm.backward(k, &dk, None, inputs, gradients)?;
        }
        let flat = |x: Tensor| x.flatten_from(1);
        let (dq, dk, dv) = (flat(dq)?, flat(dk)?, flat(dv)?);
        let outputs = [(&self.q, &dq), (&self.k, &dk), (&self.v, &dv)];
        projections_backward(&outputs, x, inputs, gradients)
    }
}

/// An RMSNorm.
pub(super) struct Norm {
    name: String,
    weight: Tensor,
}

impl Norm {
    /// Loads the norm whose weight is `{name}.weight`.
    pub(super) fn new(loader: &WeightLoader<'_>, name: &str) -> Result<Self> {
        let name = format!("{name}.weight");
        let weight = loader.tensor(&name)?;
        Ok(Self { name, weight })
    }

    pub(super) fn forward(&self, x: &Tensor, inputs: &PassInputs<'_>) -> Result<Tensor> {
        let eps = inputs.config.rms_norm_eps;
        Ok(inputs.backend.rms_norm(x, &self.weight, eps)?)
    }

    /// Returns x + y, and its norm.
    fn after_adding(
        &self,
        x: &Tensor,
        y: &Tensor,
        inputs: &PassInputs<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let eps = inputs.config.rms_norm_eps;
        Ok(inputs.backend.add_and_norm(x, y, &self.weight, eps)?)
    }

    /// Returns the gradient of x, that of the residual connection included, and adds that of the
    /// weight.
    pub(super) fn backward(
        &self,
        x: &Tensor,
        dy: &Tensor,
        residual: Option<&Tensor>,
        inputs: &PassInputs<'_>,
        gradients: &mut Gradients,
    ) -> Result<Tensor> {
        let (weight, eps) = (&self.weight, inputs.config.rms_norm_eps);
        let (dx, dweight) = inputs
            .backend
            .rms_norm_backward(x, weight, eps, dy, residual)?;
        set_gradient(gradients, &self.name, dweight);
        Ok(dx)
    }
}

/// A linear layer, with or without a bias.
struct Projection {
    name: String,
    weight: LinearWeight,
    bias: Option<Tensor>,
}

impl Projection {
    fn new(loader: &WeightLoader<'_>, name: &str, bias: bool) -> Result<Self> {
        let weight = loader.linear(&loader.tensor(&format!("{name}.weight"))?)?;
        let bias = bias
            .then(|| loader.tensor(&format!("{name}.bias")))
            .transpose()?;
        Ok(Self {
            name: name.to_owned(),
            weight,
            bias,
        })
    }
}

/// Runs several projections of the same x.
fn projections<const N: usize>(
    projections: [&Projection; N],
    x: &Tensor,
    inputs: &PassInputs<'_>,
) -> Result<[Tensor; N]> {
    let weights = projections.map(|projection| &projection.weight);
    let mut outputs = inputs.backend.linears(x, weights)?;
    for (output, projection) in outputs.iter_mut().zip(projections) {
        if let Some(bias) = &projection.bias {
            *output = output.broadcast_add(bias)?;
        }
    }
    Ok(outputs)
}

/// Returns the gradient of an x that several projections read, from those of their outputs, and
/// adds those of their weights.
fn projections_backward(
    outputs: &[(&Projection, &Tensor)],
    x: &Tensor,
    inputs: &PassInputs<'_>,
    gradients: &mut Gradients,
) -> Result<Tensor> {
    let backend = inputs.backend;
    if outputs.iter().any(|(p, _)| !p.weight.is_trainable()) {
        let reason = "a decoder built for sampling has no backward pass";
        return Err(PolicyError::Usage(reason.to_owned()));
    }
    let dys: Vec<&Tensor> = outputs.iter().map(|&(_, dy)| dy).collect();
    let dweights = backend.linear_weight_gradients(x, &dys)?;
    let mut products = Vec::with_capacity(outputs.len());
    for ((projection, dy), dweight) in outputs.iter().zip(dweights) {
        let name = &projection.name;
        set_gradient(gradients, &format!("{name}.weight"), dweight);
        if projection.bias.is_some() {
            let dbias = backend.bias_gradient(dy)?;
            set_gradient(gradients, &format!("{name}.bias"), dbias);
        }
        products.push((*dy, &projection.weight));
    }
    Ok(backend.linear_input_gradient(&products)?)
}

#[cfg(test)]
mod tests;
