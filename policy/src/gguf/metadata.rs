//! Typed access to the metadata of a GGUF file. The keys of the shape begin with the architecture's
//! name.

use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value;

use super::invalid_key;
use crate::error::{PolicyError, Result};

/// The metadata, by key.
pub(super) struct GgufMetadata<'a> {
    values: &'a HashMap<String, Value>,
    pub(super) architecture: &'a str,
}

impl<'a> GgufMetadata<'a> {
    pub(super) fn new(values: &'a HashMap<String, Value>) -> Result<Self> {
        let mut metadata = Self {
            values,
            architecture: "",
        };
        metadata.refuse_split()?;
        metadata.architecture = metadata.required_text("general.architecture")?;
        Ok(metadata)
    }

    /// Checks that the file is a whole model. Of several files only the first has the other keys.
    fn refuse_split(&self) -> Result<()> {
        let key = "split.count";
        match self.whole(key)? {
            Some(count) if count > 1 => {
                let reason = format!(
                    "is {count}, so the model is in {count} files; join them by `llama-gguf-split \
                     --merge FIRST_FILE NEW_FILE`, or use the Hugging Face folder"
                );
                Err(invalid_key(key, reason))
            }
            _ => Ok(()),
        }
    }

    /// Returns the key of a name of the shape.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Reads a size of the shape.
    pub(super) fn count(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.whole(&self.key(name))?.map(|size| size as usize))
    }

    /// Reads a size that every model has.
    pub(super) fn required(&self, name: &str) -> Result<usize> {
        match self.count(name)? {
            Some(0) => Err(invalid_key(&self.key(name), "is 0; expected: at least 1")),
            Some(size) => Ok(size),
            None => Err(missing(&self.key(name), "a whole number")),
        }
    }

    /// Reads a number of the shape. An f32 is read as its shortest decimal, which is what the
    /// model's own config.json has.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>> {
        let key = self.key(name);
        let number = match self.values.get(&key) {
            None => return Ok(None),
            Some(Value::F32(x)) => x.to_string().parse().unwrap_or(f64::NAN),
            Some(Value::F64(x)) => *x,
            Some(_) => f64::NAN,
        };
        if number.is_finite() {
            Ok(Some(number))
        } else {
            Err(invalid_key(&key, "is not a finite number"))
        }
    }

    /// Reads a token's id.
    pub(super) fn id(&self, key: &str) -> Result<Option<usize>> {
        Ok(self.whole(key)?.map(|id| id as usize))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(invalid_key(key, "is not a string")),
        }
    }

    pub(super) fn required_text(&self, key: &str) -> Result<&'a str> {
        self.text(key)?.ok_or_else(|| missing(key, "a text"))
    }

    /// Reads a list of strings.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<&'a str>> {
        let items = self.list(key)?.ok_or_else(|| missing(key, "a list"))?;
        let texts = items.iter().map(|item| match item {
            Value::String(text) => Ok(text.as_str()),
            _ => Err(invalid_key(key, "has an entry that is not a string")),
        });
        texts.collect()
    }

    /// Reads a list of 32-bit integers; empty if it is absent.
    pub(super) fn kinds(&self, key: &str) -> Result<Vec<i32>> {
        let items = self.list(key)?.unwrap_or_default();
        let kinds = items.iter().map(|item| match item {
            Value::I32(kind) => Ok(*kind),
            _ => Err(invalid_key(
                key,
                "has an entry that is not a 32-bit integer",
            )),
        });
        kinds.collect()
    }

    /// Checks that there are no settings that the decoder does not honour.
    pub(super) fn refuse_unsupported(&self) -> Result<()> {
        let scaling = self.key("rope.scaling.type");
        if let Some(kind) = self.text(&scaling)?.filter(|&kind| kind != "none") {
            let reason = format!("is {kind:?}; supported: none. Use the Hugging Face folder");
            return Err(invalid_key(&scaling, reason));
        }
        for name in ["rope.scaling.factor", "rope.scale_linear"] {
            if let Some(factor) = self.number(name)?.filter(|&factor| factor != 1.0) {
                let reason = format!("is {factor}; supported: 1");
                return Err(invalid_key(&self.key(name), reason));
            }
        }
        for name in ["attention.sliding_window", "expert_count"] {
            if let Some(found) = self.count(name)?.filter(|&found| found > 0) {
                let reason = format!("is {found}; supported: 0");
                return Err(invalid_key(&self.key(name), reason));
            }
        }
        Ok(())
    }

    fn list(&self, key: &str) -> Result<Option<&'a [Value]>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(invalid_key(key, "is not a list")),
        }
    }

    fn whole(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        let signed = value.to_i32().ok().and_then(|x| u64::try_from(x).ok());
        let whole = value.to_u64().ok().or(signed);
        whole
            .map(Some)
            .ok_or_else(|| invalid_key(key, "is not a whole number"))
    }
}

fn missing(key: &str, wanted: &str) -> PolicyError {
    invalid_key(key, format!("is missing; expected: {wanted}"))
}
