//! The shape of a decoder: sizes, weights by name, rotary frequencies. `json.rs` has the file
//! format.
//!
//! Invariant: the decoder runs what [`DecoderConfig`] holds. A setting that it would not honour is
//! an error that names it.

mod json;

use std::collections::BTreeMap;

use crate::error::{PolicyError, Result};

use self::json::unsupported;

/// Sizes above are treated as damage: the number of parameters does not overflow, and no model
/// comes near.
const MOST: usize = 1 << 22;
/// The largest models have 126 layers.
const MOST_LAYERS: usize = 1 << 12;

/// The rows of the tokens, which a tied LM head uses as well.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
/// The LM head, which some writers keep beside a tied embedding.
pub(crate) const HEAD: &str = "lm_head.weight";

/// A family of decoders that differ in norms and biases only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Norms on queries and keys, no biases by default.
    Qwen3,
    /// Biases on queries, keys and values.
    Qwen2,
    /// No biases by default.
    Llama,
}

impl Family {
    /// Returns `model_type` and `architectures` of this family.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
            Self::Qwen2 => ("qwen2", "Qwen2ForCausalLM"),
            Self::Llama => ("llama", "LlamaForCausalLM"),
        }
    }

    /// Returns the family with this `model_type` or architecture.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let mut all = [Self::Qwen3, Self::Qwen2, Self::Llama].into_iter();
        all.find(|family| <[&str; 2]>::from(family.names()).contains(&name))
    }
}

/// Llama 3's scaling of the rotary frequencies (`rope_type: llama3`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// The factor by which low frequencies are divided.
    pub factor: f64,
    /// Wavelengths above `original_max_positions / low_freq_factor` are scaled in full.
    pub low_freq_factor: f64,
    /// Wavelengths below `original_max_positions / high_freq_factor` are kept.
    pub high_freq_factor: f64,
    /// Context length before the scaling, in tokens.
    pub original_max_positions: usize,
}

/// The shape of a decoder. Names follow Hugging Face where they are short.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// The family, which decides on norms and biases.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; divides `heads` (GQA).
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Rows of the embedding and columns of the logits.
    pub vocab_size: usize,
    /// Context length in tokens that the model was trained for. The decoder does not enforce it;
    /// [`Self::check_context`] does.
    pub max_positions: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Llama 3's scaling, if any.
    pub rope_scaling: Option<RopeScaling>,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Whether the LM head uses the embedding as its weight.
    pub tie_word_embeddings: bool,
    /// Biases on queries, keys and values.
    pub qkv_bias: bool,
    /// Bias on the attention's output.
    pub output_bias: bool,
}

impl DecoderConfig {
    fn validate(&self) -> Result<()> {
        let sizes = [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("vocab_size", self.vocab_size),
            ("head_dim", self.head_dim),
        ];
        for (name, size) in sizes {
            let most = if name == "num_hidden_layers" {
                MOST_LAYERS
            } else {
                MOST
            };
            if size == 0 || size > most {
                let range = format!("from 1 to {most}");
                return Err(unsupported(name, size, range));
            }
        }
        if self.heads * self.head_dim > MOST {
            let found = format!("{}, for {} heads", self.head_dim, self.heads);
            let range = format!("a width that makes at most {MOST} for all heads");
            return Err(unsupported("head_dim", found, range));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let heads = format!("a divisor of num_attention_heads ({})", self.heads);
            return Err(unsupported("num_key_value_heads", self.kv_heads, heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(unsupported("head_dim", self.head_dim, "an even number"));
        }
        self.validate_numbers()
    }

    /// Checks the numbers that would make every logit NaN, or every position the same.
    fn validate_numbers(&self) -> Result<()> {
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            let range = "a number above 0 and below 1, such as 1e-6";
            return Err(unsupported("rms_norm_eps", self.rms_norm_eps, range));
        }
        if !(1.0..=1e12).contains(&self.rope_theta) {
            let range = "a number from 1 to 1e12, such as 10000";
            return Err(unsupported("rope_theta", self.rope_theta, range));
        }
        if self.max_positions == 0 {
            return Err(unsupported("max_position_embeddings", 0, "at least 1"));
        }
        self.rope_scaling.map_or(Ok(()), RopeScaling::validate)
    }

    /// Checks that the model was trained for contexts of so many tokens.
    ///
    /// # Errors
    /// [`PolicyError::Setting`] names the setting of a run, and both remedies.
    pub fn check_context(&self, tokens: usize) -> Result<()> {
        let most = self.max_positions;
        if tokens <= most {
            return Ok(());
        }
        let reason = format!(
            "is {tokens}, but the model was trained for contexts of {most} tokens; lower it, or \
             raise max_position_embeddings in the model's config.json if the model is meant to \
             extrapolate"
        );
        let field = "learner.rollout.max_context_tokens";
        Err(PolicyError::setting(field, reason))
    }

    /// Checks that weights of these names and shapes are exactly those of the decoder, before
    /// anything is allocated for them. An `lm_head.weight` of a tied model is accepted if it has
    /// the shape of the embedding.
    ///
    /// # Errors
    /// [`PolicyError::Tensor`] names the first that is missing, misshaped or unknown.
    pub(crate) fn check_shapes(&self, found: &BTreeMap<String, Vec<usize>>) -> Result<()> {
        let shapes = self.shapes();
        for (name, shape) in &shapes {
            let found = found
                .get(name)
                .ok_or_else(|| PolicyError::tensor(name, "is missing; config.json asks for it"))?;
            if found != shape {
                return Err(misshaped(name, found, shape));
            }
        }
        for (name, found) in found {
            // Some writers keep the head of a tied model, which has the shape of the embedding.
            let is_tied_head = self.tie_word_embeddings && name == HEAD;
            let known = if is_tied_head {
                EMBEDDING
            } else {
                name.as_str()
            };
            match shapes.get(known) {
                Some(shape) if shape == found => {}
                Some(shape) => return Err(misshaped(name, found, shape)),
                None => {
                    let reason = "is not part of the model of config.json";
                    return Err(PolicyError::tensor(name, reason));
                }
            }
        }
        Ok(())
    }

    /// Returns every weight by its Hugging Face name, with its shape.
    pub fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut shapes = BTreeMap::from([
            (EMBEDDING.to_owned(), vec![self.vocab_size, hidden]),
            ("model.norm.weight".to_owned(), vec![hidden]),
        ]);
        if !self.tie_word_embeddings {
            shapes.insert(HEAD.to_owned(), vec![self.vocab_size, hidden]);
        }
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[usize]| {
                shapes.insert(format!("model.layers.{layer}.{name}"), shape.to_vec());
            };
            add("input_layernorm.weight", &[hidden]);
            add("post_attention_layernorm.weight", &[hidden]);
            add("mlp.gate_proj.weight", &[inner, hidden]);
            add("mlp.up_proj.weight", &[inner, hidden]);
            add("mlp.down_proj.weight", &[hidden, inner]);
            add("self_attn.q_proj.weight", &[queries, hidden]);
            add("self_attn.k_proj.weight", &[keys, hidden]);
            add("self_attn.v_proj.weight", &[keys, hidden]);
            add("self_attn.o_proj.weight", &[hidden, queries]);
            if self.qkv_bias {
                add("self_attn.q_proj.bias", &[queries]);
                add("self_attn.k_proj.bias", &[keys]);
                add("self_attn.v_proj.bias", &[keys]);
            }
            if self.output_bias {
                add("self_attn.o_proj.bias", &[hidden]);
            }
            if self.family == Family::Qwen3 {
                add("self_attn.q_norm.weight", &[self.head_dim]);
                add("self_attn.k_norm.weight", &[self.head_dim]);
            }
        }
        shapes
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> usize {
        self.shapes()
            .values()
            .map(|shape| shape.iter().product::<usize>())
            .sum()
    }

    /// Returns the inverse frequencies of the rotary embedding, one for each pair of a head's
    /// values, in f32 as in transformers.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let pairs = (0..self.head_dim).step_by(2);
        let frequency = |i| {
            let power = libm::pow(self.rope_theta, i as f64 / self.head_dim as f64) as f32;
            let frequency = power.recip();
            self.rope_scaling
                .map_or(frequency, |scaling| scaling.scale(frequency))
        };
        pairs.map(frequency).collect()
    }
}

/// Builds the error for a weight of another shape than `expected`.
fn misshaped(name: &str, found: &[usize], expected: &[usize]) -> PolicyError {
    let reason = format!("has shape {found:?}, but config.json asks for {expected:?}");
    PolicyError::tensor(name, reason)
}

impl RopeScaling {
    fn validate(self) -> Result<()> {
        if !(1.0..=1e6).contains(&self.factor) {
            return Err(unsupported("factor", self.factor, "a number from 1 to 1e6"));
        }
        // The rule divides by both and by their difference.
        let (low, high) = (self.low_freq_factor, self.high_freq_factor);
        if !(low > 0.0 && high > low && high <= 1e6) {
            let found = format!("{high}, with low_freq_factor {low}");
            let range = "low_freq_factor above 0, and high_freq_factor above it and at most 1e6";
            return Err(unsupported("high_freq_factor", found, range));
        }
        match self.original_max_positions {
            0 => Err(unsupported(
                "original_max_position_embeddings",
                0,
                "at least 1",
            )),
            _ => Ok(()),
        }
    }

    /// Llama 3's rule: short wavelengths stay, long ones are divided by `factor`, those between are
    /// interpolated.
    fn scale(&self, frequency: f32) -> f32 {
        let context = self.original_max_positions as f64;
        let wavelength = std::f64::consts::TAU / f64::from(frequency);
        if wavelength < context / self.high_freq_factor {
            return frequency;
        }
        let slowed = f64::from(frequency) / self.factor;
        if wavelength > context / self.low_freq_factor {
            return slowed as f32;
        }
        let blend = (context / wavelength - self.low_freq_factor)
            / (self.high_freq_factor - self.low_freq_factor);
        ((1.0 - blend) * slowed + blend * f64::from(frequency)) as f32
    }
}

#[cfg(test)]
mod tests;
