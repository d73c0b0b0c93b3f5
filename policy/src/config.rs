//! The shape of a decoder, read from and written to Hugging Face's `config.json`.
//!
//! Invariant: what [`DecoderConfig`] holds, the decoder runs; a setting that it would not honour is refused by name. Both
//! layouts are read: `rope_theta` at top level (transformers 4) and inside `rope_parameters` (transformers 5).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::error::{PolicyError, Result};

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
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Qwen3, "qwen3", "Qwen3ForCausalLM"),
        (Self::Qwen2, "qwen2", "Qwen2ForCausalLM"),
        (Self::Llama, "llama", "LlamaForCausalLM"),
    ];

    /// `model_type` and `architectures` of this family.
    fn names(self) -> (&'static str, &'static str) {
        let [qwen3, qwen2, llama] = Self::ALL.map(|(_, name, architecture)| (name, architecture));
        match self {
            Self::Qwen3 => qwen3,
            Self::Qwen2 => qwen2,
            Self::Llama => llama,
        }
    }
}

/// Llama 3's stretching of the rotary frequencies (`rope_type: llama3`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// How much the low frequencies are slowed.
    pub factor: f64,
    /// Wavelengths beyond `original_max_positions / low_freq_factor` are slowed in full.
    pub low_freq_factor: f64,
    /// Wavelengths under `original_max_positions / high_freq_factor` are kept.
    pub high_freq_factor: f64,
    /// Context length before the stretching, in tokens.
    pub original_max_positions: usize,
}

/// The shape of a decoder. Names follow Hugging Face where they are short.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Which norms and biases there are.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Rows of the embedding and columns of the logits.
    pub vocab_size: usize,
    /// Context length in tokens that the model was made for; a note, not a limit of the decoder.
    pub max_positions: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Llama 3's stretching, if any.
    pub rope_scaling: Option<RopeScaling>,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Whether the logits use the embedding as their weight.
    pub tie_word_embeddings: bool,
    /// Biases on queries, keys and values.
    pub qkv_bias: bool,
    /// Bias on the attention's output.
    pub output_bias: bool,
}

impl DecoderConfig {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// [`PolicyError::Setting`] names the field that is missing, malformed or not supported.
    pub fn from_json(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| PolicyError::setting("config.json", format!("not JSON: {error}")))?;
        let Value::Object(map) = value else {
            return Err(PolicyError::setting("config.json", "not a JSON object"));
        };
        let config = Self::from_fields(&Fields(&map))?;
        config.validate()?;
        Ok(config)
    }

    fn from_fields(fields: &Fields<'_>) -> Result<Self> {
        let family = fields.family()?;
        fields.refuse_unsupported()?;
        let hidden_size = fields.required("hidden_size")?;
        let heads = fields.required("num_attention_heads")?;
        let attention_bias = fields.bool("attention_bias", false)?;
        Ok(Self {
            family,
            hidden_size,
            intermediate_size: fields.required("intermediate_size")?,
            layers: fields.required("num_hidden_layers")?,
            heads,
            kv_heads: fields.count("num_key_value_heads")?.unwrap_or(heads),
            head_dim: match fields.count("head_dim")? {
                Some(head_dim) => head_dim,
                None => hidden_size / heads.max(1),
            },
            vocab_size: fields.required("vocab_size")?,
            max_positions: fields.count("max_position_embeddings")?.unwrap_or(2048),
            rope_theta: fields.rope_theta()?,
            rope_scaling: fields.rope_scaling()?,
            rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
            tie_word_embeddings: fields.bool("tie_word_embeddings", false)?,
            qkv_bias: attention_bias || family == Family::Qwen2,
            output_bias: attention_bias && family != Family::Qwen2,
        })
    }

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
                return Err(refused(name, 0, "at least 1"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let heads = format!("a divisor of num_attention_heads ({})", self.heads);
            return Err(refused("num_key_value_heads", self.kv_heads, heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(refused("head_dim", self.head_dim, "an even number"));
        }
        Ok(())
    }

    /// A `config.json` that transformers loads (read by versions 4 and 5).
    pub fn to_json(&self) -> String {
        let (model_type, architecture) = self.family.names();
        let mut rope = json!({"rope_type": "default", "rope_theta": self.rope_theta});
        let mut scaling = Value::Null;
        if let Some(llama3) = self.rope_scaling {
            scaling = json!({
                "rope_type": "llama3",
                "factor": llama3.factor,
                "low_freq_factor": llama3.low_freq_factor,
                "high_freq_factor": llama3.high_freq_factor,
                "original_max_position_embeddings": llama3.original_max_positions,
            });
            rope = scaling.clone();
            rope["rope_theta"] = json!(self.rope_theta);
        }
        let config = json!({
            "architectures": [architecture],
            "model_type": model_type,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,
            "rope_scaling": scaling,
            "rope_parameters": rope,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_bias": self.output_bias,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "use_sliding_window": false,
            "use_cache": true,
            "dtype": "float32",
            "torch_dtype": "float32",
        });
        format!("{config:#}\n")
    }

    /// Every weight by its Hugging Face name, with its shape.
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

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.shapes()
            .values()
            .map(|shape| shape.iter().product::<usize>())
            .sum()
    }

    /// Inverse frequencies of the rotary embedding, one for each pair of a head's values, in f32 as transformers has them.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let pairs = (0..self.head_dim).step_by(2);
        let frequency = |i| {
            let power = libm::pow(self.rope_theta, i as f64 / self.head_dim as f64) as f32;
            let frequency = power.recip();
            self.rope_scaling
                .map_or(frequency, |scaling| scaling.stretch(frequency))
        };
        pairs.map(frequency).collect()
    }
}

impl RopeScaling {
    /// Llama 3's rule: short waves stay, long waves slow by `factor`, those between are blended.
    fn stretch(&self, frequency: f32) -> f32 {
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

fn refused(
    field: &str,
    found: impl std::fmt::Display,
    supported: impl std::fmt::Display,
) -> PolicyError {
    PolicyError::setting(
        format!("config.json: {field}"),
        format!("is {found}; supported: {supported}"),
    )
}

/// Typed access to the fields of a `config.json`, where null counts as absent.
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn count(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_u64().and_then(|count| usize::try_from(count).ok()) {
            Some(count) => Ok(Some(count)),
            None => Err(refused(name, value, "a whole number")),
        }
    }

    fn required(&self, name: &str) -> Result<usize> {
        self.count(name)?
            .ok_or_else(|| refused(name, "missing", "a whole number"))
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.get(name)
            .map(|value| {
                value
                    .as_f64()
                    .ok_or_else(|| refused(name, value, "a number"))
            })
            .transpose()
    }

    fn bool(&self, name: &str, default: bool) -> Result<bool> {
        self.get(name).map_or(Ok(default), |value| {
            value
                .as_bool()
                .ok_or_else(|| refused(name, value, "true or false"))
        })
    }

    fn family(&self) -> Result<Family> {
        let (field, found) = match (self.get("model_type"), self.get("architectures")) {
            (Some(Value::String(name)), _) => ("model_type", name.clone()),
            (None, Some(names)) => ("architectures", names[0].as_str().unwrap_or("").to_owned()),
            _ => ("model_type", "missing".to_owned()),
        };
        Family::ALL
            .into_iter()
            .find(|(_, name, architecture)| found == *name || found == *architecture)
            .map(|(family, ..)| family)
            .ok_or_else(|| refused(field, found, "qwen3, qwen2, llama"))
    }

    fn refuse_unsupported(&self) -> Result<()> {
        if let Some(activation) = self.get("hidden_act").filter(|&name| name != "silu") {
            return Err(refused("hidden_act", activation, "\"silu\""));
        }
        for name in ["mlp_bias", "use_sliding_window"] {
            if self.bool(name, false)? {
                return Err(refused(name, true, false));
            }
        }
        let layers = self.get("layer_types").and_then(Value::as_array);
        match layers.and_then(|kinds| kinds.iter().find(|&kind| kind != "full_attention")) {
            Some(kind) => Err(refused("layer_types", kind, "\"full_attention\"")),
            None => Ok(()),
        }
    }

    /// The rotary settings, wherever this version of transformers keeps them.
    fn rope(&self) -> Option<Fields<'_>> {
        let settings = self
            .get("rope_parameters")
            .or_else(|| self.get("rope_scaling"))?;
        settings.as_object().map(Fields)
    }

    fn rope_theta(&self) -> Result<f64> {
        let inner = self
            .rope()
            .map(|rope| rope.number("rope_theta"))
            .transpose()?;
        let theta = inner
            .flatten()
            .map_or_else(|| self.number("rope_theta"), |theta| Ok(Some(theta)))?;
        Ok(theta.unwrap_or(10_000.0))
    }

    fn rope_scaling(&self) -> Result<Option<RopeScaling>> {
        let Some(rope) = self.rope() else {
            return Ok(None);
        };
        let kind = rope.get("rope_type").or_else(|| rope.get("type"));
        let needed = |name| {
            rope.number(name)?
                .ok_or_else(|| refused(name, "missing", "a number, as rope_type is llama3"))
        };
        match kind.and_then(Value::as_str) {
            None | Some("default") => Ok(None),
            Some("llama3") => Ok(Some(RopeScaling {
                factor: needed("factor")?,
                low_freq_factor: needed("low_freq_factor")?,
                high_freq_factor: needed("high_freq_factor")?,
                original_max_positions: rope.required("original_max_position_embeddings")?,
            })),
            Some(kind) => Err(refused("rope_type", kind, "default, llama3")),
        }
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

    /// Values of transformers' rule, worked out by hand: theta 10000, D = 4, so frequencies 1 and 0.01; context 8192,
    /// factors 1 and 4: wavelengths 6.28 (kept) and 628.3 (kept), with context 512: 628.3 > 512 (slowed by 8).
    #[test]
    fn llama3_slows_the_long_waves_only() {
        let scaling = |context| RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: context,
        };
        assert_eq!(scaling(8192).stretch(0.01), 0.01);
        assert_eq!(scaling(512).stretch(0.01), 0.01 / 8.0);
        let blended = scaling(1024).stretch(0.01);
        let blend = (1024.0 / 628.318_53 - 1.0) / 3.0;
        assert!((f64::from(blended) - (0.01 / 8.0 * (1.0 - blend) + 0.01 * blend)).abs() < 1e-9);
    }
}
