//! The shape of a decoder: sizes, weights by name, rotary frequencies. `json.rs` has the file
//! format.
//!
//! Invariant: the decoder runs what [`DecoderConfig`] holds. A setting that it would not honour is
//! an error that names it.

mod json;

use std::collections::BTreeMap;

use crate::error::Result;

use self::json::unsupported;

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
    /// Context length in tokens that the model was trained for. The decoder does not enforce it.
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
            if size == 0 {
                return Err(unsupported(name, 0, "at least 1"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let heads = format!("a divisor of num_attention_heads ({})", self.heads);
            return Err(unsupported("num_key_value_heads", self.kv_heads, heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(unsupported("head_dim", self.head_dim, "an even number"));
        }
        Ok(())
    }

    /// Returns every weight by its Hugging Face name, with its shape.
    pub fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut shapes = BTreeMap::from([
            (
                "model.embed_tokens.weight".to_owned(),
                vec![self.vocab_size, hidden],
            ),
            ("model.norm.weight".to_owned(), vec![hidden]),
        ]);
        if !self.tie_word_embeddings {
            shapes.insert("lm_head.weight".to_owned(), vec![self.vocab_size, hidden]);
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

impl RopeScaling {
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
mod tests {
    use super::*;

    const SMALL: &str = r#"{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 400"#;

    fn parse(more: &str) -> Result<DecoderConfig> {
        DecoderConfig::from_json(&format!("{SMALL}{more}}}"))
    }

    #[test]
    fn defaults_follow_hugging_face() {
        let config = parse("").unwrap();
        assert_eq!((config.kv_heads, config.head_dim), (4, 16));
        assert_eq!((config.rope_theta, config.rms_norm_eps), (10_000.0, 1e-6));
        assert!(!config.tie_word_embeddings && !config.qkv_bias);
    }

    #[test]
    fn both_layouts_of_the_rotary_settings_are_read() {
        let old = parse(r#", "rope_theta": 1000000.0, "rope_scaling": null"#).unwrap();
        let new = r#", "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}"#;
        assert_eq!(old, parse(new).unwrap());
    }

    #[test]
    fn what_is_written_is_read_back() {
        let llama3 = r#", "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}"#;
        for more in [
            "",
            llama3,
            r#", "tie_word_embeddings": true, "attention_bias": true"#,
        ] {
            let config = parse(more).unwrap();
            assert_eq!(DecoderConfig::from_json(&config.to_json()).unwrap(), config);
        }
    }

    #[test]
    fn an_error_names_the_field_and_what_is_supported() {
        let cases = [
            (r#", "hidden_act": "gelu""#, "hidden_act", "silu"),
            (
                r#", "num_key_value_heads": 3"#,
                "num_key_value_heads",
                "divisor",
            ),
            (r#", "head_dim": 15"#, "head_dim", "even"),
            (
                r#", "use_sliding_window": true"#,
                "use_sliding_window",
                "false",
            ),
            (r#", "mlp_bias": true"#, "mlp_bias", "false"),
            (
                r#", "rope_scaling": {"type": "yarn"}"#,
                "rope_type",
                "llama3",
            ),
            (
                r#", "rope_scaling": {"type": "llama3"}"#,
                "factor",
                "number",
            ),
            (r#", "model_type": "gpt2""#, "model_type", "qwen3"),
            (r#", "vocab_size": "many""#, "vocab_size", "whole number"),
        ];
        for (more, field, remedy) in cases {
            let message = parse(more).unwrap_err().to_string();
            assert!(
                message.contains(field) && message.contains(remedy),
                "{message}"
            );
        }
    }

    /// Values of transformers' rule, computed by hand: theta 10000, D = 4, so frequencies 1 and
    /// 0.01; context 8192, factors 1 and 4: wavelengths 6.28 (kept) and 628.3 (kept), with context
    /// 512: 628.3 > 512 (scaled by 8).
    #[test]
    fn llama3_slows_the_long_waves_only() {
        let scaling = |context| RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: context,
        };
        assert_eq!(scaling(8192).scale(0.01), 0.01);
        assert_eq!(scaling(512).scale(0.01), 0.01 / 8.0);
        let blended = scaling(1024).scale(0.01);
        let blend = (1024.0 / 628.318_53 - 1.0) / 3.0;
        assert!((f64::from(blended) - (0.01 / 8.0 * (1.0 - blend) + 0.01 * blend)).abs() < 1e-9);
    }
}
