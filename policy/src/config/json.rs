//! Hugging Face's `config.json` of the three families, read and written.
//!
//! Invariant: what is written is read back unchanged. Both layouts are read: `rope_theta` at top
//! level (transformers 4) and inside `rope_parameters` (transformers 5). Fields that the decoder
//! does not honour are errors that name them. Defaults are those of transformers, or the field is
//! required.

use serde_json::{Map, Value, json};

use super::{DecoderConfig, Family, RopeScaling};
use crate::error::{PolicyError, Result};

impl DecoderConfig {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// [`PolicyError::Setting`] names the field that is missing, malformed or not supported.
    pub fn from_json(text: &str) -> Result<Self> {
        let map = serde_json::from_str(text).map_err(|error| {
            PolicyError::setting("config.json", format!("not a JSON object: {error}"))
        })?;
        let fields = ConfigFields(&map);
        let family = fields.family()?;
        fields.refuse_unsupported()?;
        let hidden_size = fields.required("hidden_size")?;
        let heads = fields.required("num_attention_heads")?;
        let attention_bias = fields.bool("attention_bias", false)?;
        let most_positions = match family {
            Family::Qwen3 | Family::Qwen2 => 32_768,
            Family::Llama => 2_048,
        };
        let config = Self {
            family,
            hidden_size,
            intermediate_size: fields.required("intermediate_size")?,
            layers: fields.required("num_hidden_layers")?,
            heads,
            kv_heads: fields.kv_heads(family, heads)?,
            // transformers' default of Qwen3 is 128, whatever the other sizes are.
            head_dim: match family {
                Family::Qwen3 => fields.required("head_dim")?,
                Family::Qwen2 | Family::Llama => {
                    let equal_share = hidden_size / heads.max(1);
                    fields.count("head_dim")?.unwrap_or(equal_share)
                }
            },
            vocab_size: fields.required("vocab_size")?,
            max_positions: fields
                .count("max_position_embeddings")?
                .unwrap_or(most_positions),
            rope_theta: fields.rope_theta()?,
            rope_scaling: fields.rope_scaling()?,
            rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
            tie_word_embeddings: fields.bool("tie_word_embeddings", false)?,
            qkv_bias: attention_bias || family == Family::Qwen2,
            output_bias: attention_bias && family != Family::Qwen2,
        };
        config.validate()?;
        Ok(config)
    }

    /// Returns a `config.json` that transformers 4 and 5 load.
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
        let fields = json!({
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
        format!("{fields:#}\n")
    }
}

/// Builds the error for a field whose value the decoder does not support.
pub(super) fn unsupported(
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
struct ConfigFields<'a>(&'a Map<String, Value>);

impl ConfigFields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn count(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_u64().and_then(|count| usize::try_from(count).ok()) {
            Some(count) => Ok(Some(count)),
            None => Err(unsupported(name, value, "a whole number")),
        }
    }

    fn required(&self, name: &str) -> Result<usize> {
        self.count(name)?
            .ok_or_else(|| unsupported(name, "missing", "a whole number"))
    }

    /// Returns the key-value heads. Null stands for one for each query head, and so does a missing
    /// field for Llama. transformers' default of Qwen is 32, whatever the other sizes are, so a
    /// missing field is an error there.
    fn kv_heads(&self, family: Family, heads: usize) -> Result<usize> {
        let name = "num_key_value_heads";
        if family == Family::Llama || self.0.contains_key(name) {
            return Ok(self.count(name)?.unwrap_or(heads));
        }
        self.required(name)
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.get(name)
            .map(|value| {
                value
                    .as_f64()
                    .ok_or_else(|| unsupported(name, value, "a number"))
            })
            .transpose()
    }

    fn bool(&self, name: &str, default: bool) -> Result<bool> {
        self.get(name).map_or(Ok(default), |value| {
            value
                .as_bool()
                .ok_or_else(|| unsupported(name, value, "true or false"))
        })
    }

    fn family(&self) -> Result<Family> {
        let (field, found) = match (self.get("model_type"), self.get("architectures")) {
            (Some(Value::String(name)), _) => ("model_type", name.clone()),
            (None, Some(names)) => ("architectures", names[0].as_str().unwrap_or("").to_owned()),
            _ => ("model_type", "missing".to_owned()),
        };
        Family::named(&found).ok_or_else(|| unsupported(field, found, "qwen3, qwen2, llama"))
    }

    fn refuse_unsupported(&self) -> Result<()> {
        if let Some(activation) = self.get("hidden_act").filter(|&name| name != "silu") {
            return Err(unsupported("hidden_act", activation, "\"silu\""));
        }
        for name in ["mlp_bias", "use_sliding_window"] {
            if self.bool(name, false)? {
                return Err(unsupported(name, true, false));
            }
        }
        let layers = self.get("layer_types").and_then(Value::as_array);
        match layers.and_then(|kinds| kinds.iter().find(|&kind| kind != "full_attention")) {
            Some(kind) => Err(unsupported("layer_types", kind, "\"full_attention\"")),
            None => Ok(()),
        }
    }

    /// Returns the rotary settings, from either layout. As in transformers, `rope_scaling` takes
    /// the place of `rope_parameters` if both are there.
    fn rope(&self) -> Option<ConfigFields<'_>> {
        let settings = |name| {
            let settings = self.get(name)?.as_object()?;
            (!settings.is_empty()).then_some(settings)
        };
        settings("rope_scaling")
            .or_else(|| settings("rope_parameters"))
            .map(ConfigFields)
    }

    fn rope_theta(&self) -> Result<f64> {
        let inner = match self.rope() {
            Some(rope) => rope.number("rope_theta")?,
            None => None,
        };
        Ok(match inner {
            Some(theta) => theta,
            None => self.number("rope_theta")?.unwrap_or(10_000.0),
        })
    }

    fn rope_scaling(&self) -> Result<Option<RopeScaling>> {
        let Some(rope) = self.rope() else {
            return Ok(None);
        };
        let kind = rope.get("rope_type").or_else(|| rope.get("type"));
        let needed = |name| {
            rope.number(name)?
                .ok_or_else(|| unsupported(name, "missing", "a number, as rope_type is llama3"))
        };
        match kind.and_then(Value::as_str) {
            None | Some("default") => Ok(None),
            Some("llama3") => Ok(Some(RopeScaling {
                factor: needed("factor")?,
                low_freq_factor: needed("low_freq_factor")?,
                high_freq_factor: needed("high_freq_factor")?,
                original_max_positions: rope.required("original_max_position_embeddings")?,
            })),
            Some(kind) => Err(unsupported("rope_type", kind, "default, llama3")),
        }
    }
}
