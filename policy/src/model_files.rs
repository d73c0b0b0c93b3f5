//! The files of a model folder besides its weights: which they are, and how they are read.
//!
//! Invariant: only files of one list are read or taken from elsewhere, and none is larger than its
//! bound.

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use candle_core::DType;
use serde_json::Value;

use crate::config::DecoderConfig;
use crate::error::{PolicyError, Result};
use crate::{regular_file, tokenizer};

/// The shape of the decoder, and the end-of-text ids of older folders.
pub(crate) const CONFIG: &str = "config.json";
/// The end-of-text ids, among settings of generation.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
/// The names of special tokens, and the chat template of older folders.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The names of special tokens in older folders.
pub(crate) const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
/// The chat template.
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The files that decide what a model reads and writes, besides its weights.
pub const TEXT_FILES: [&str; 6] = [
    CONFIG,
    GENERATION_CONFIG,
    tokenizer::FILE,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    SPECIAL_TOKENS_MAP,
];

/// The files of a folder that belong to the model, and the most bytes that each may have. All but
/// the config and the tokenizer are optional.
const FILES: [(&str, u64); 10] = [
    (CONFIG, MIB),
    (GENERATION_CONFIG, MIB),
    (tokenizer::FILE, 64 * MIB),
    (TOKENIZER_CONFIG, 16 * MIB),
    (CHAT_TEMPLATE, MIB),
    (SPECIAL_TOKENS_MAP, 16 * MIB),
    ("added_tokens.json", 16 * MIB),
    ("vocab.json", 64 * MIB),
    ("merges.txt", 64 * MIB),
    ("LICENSE", MIB),
];
const MIB: u64 = 1 << 20;

/// The fields of `config.json` that name the dtype of the weights, in transformers 5 and 4.
const DTYPE_FIELDS: [&str; 2] = ["dtype", "torch_dtype"];

/// The files of a model by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelFiles<'a>(pub(crate) &'a [(String, Vec<u8>)]);

impl<'a> ModelFiles<'a> {
    /// Returns the content of a file, if it is there.
    pub(crate) fn bytes(self, name: &str) -> Option<&'a [u8]> {
        let (_, content) = self.0.iter().find(|(file, _)| file == name)?;
        Some(content)
    }

    /// Returns the content of a file as JSON, and null if it is not there.
    ///
    /// # Errors
    /// [`PolicyError::File`] names the file if it is malformed.
    pub(crate) fn json(self, name: &str) -> Result<Value> {
        let content = self.bytes(name);
        content.map_or(Ok(Value::Null), |content| parsed(name, content))
    }

    /// Returns the decoder's config.
    ///
    /// # Errors
    /// [`PolicyError`] names the file if it is missing, and the field that cannot be used.
    pub(crate) fn config(self) -> Result<DecoderConfig> {
        let content = self.bytes(CONFIG).ok_or_else(|| {
            let reason = "missing: a Hugging Face model folder describes its architecture there";
            PolicyError::file(CONFIG, reason)
        })?;
        let text =
            std::str::from_utf8(content).map_err(|error| PolicyError::file(CONFIG, error))?;
        DecoderConfig::from_json(text)
    }
}

/// Reads those files of a folder that are wanted and there.
///
/// # Errors
/// [`PolicyError::File`] names what is no folder, or the file that cannot be read.
pub(crate) fn read(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Vec<u8>)>> {
    check_folder(dir)?;
    let wanted = FILES.into_iter().filter(|(name, _)| is_wanted(name));
    let read = wanted.filter_map(|file| read_file(dir, file).transpose());
    read.collect()
}

fn check_folder(dir: &Path) -> Result<()> {
    let reason = match fs::metadata(dir) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => {
            "is a file; give the folder that holds config.json, tokenizer.json and \
             model.safetensors (`sqlenv import-gguf FILE DIR` makes one of a GGUF file)"
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            "no such folder; a model folder holds config.json, tokenizer.json and \
             model.safetensors"
        }
        Err(error) => return Err(PolicyError::file(dir, error)),
    };
    Err(PolicyError::file(dir, reason))
}

/// Returns the name and the content of one of [`FILES`]; none if there is no such file.
fn read_file(dir: &Path, (name, most): (&str, u64)) -> Result<Option<(String, Vec<u8>)>> {
    // A link that leads out of the folder would send a file of this machine to every actor.
    let read = regular_file::inside(dir, name).and_then(|path| regular_file::read(&path, most));
    let path = dir.join(name);
    match read {
        Ok(content) => Ok(Some((name.to_owned(), content))),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(PolicyError::file(path, error)),
        Err(_) if path.symlink_metadata().is_err() => Ok(None),
        Err(_) => {
            let reason = "is a link to a file that is not there; copy the file itself";
            Err(PolicyError::file(path, reason))
        }
    }
}

/// Returns whether [`FILES`] has a name.
pub(crate) fn is_known(name: &str) -> bool {
    FILES.iter().any(|(known, _)| *known == name)
}

/// Checks that files from elsewhere are those of a model, each once: they are written under these
/// names.
///
/// # Errors
/// [`PolicyError::File`] names the file.
pub(crate) fn check_names(files: &[(String, Vec<u8>)]) -> Result<()> {
    for (index, (name, content)) in files.iter().enumerate() {
        let known = FILES.iter().find(|(known, _)| known == name);
        let is_twice = files[..index].iter().any(|(earlier, _)| earlier == name);
        match known {
            Some((_, most)) if !is_twice && content.len() as u64 <= *most => {}
            _ => {
                let reason = "is not a file of a model, or there twice, or too large; run the \
                              same program on both sides";
                return Err(PolicyError::file(name, reason));
            }
        }
    }
    Ok(())
}

/// Returns the content of a `config.json` for weights in a dtype, in which transformers loads them.
/// A content that states this dtype already, or none, stays as it is.
///
/// # Errors
/// [`PolicyError::File`] if it is malformed.
pub(crate) fn with_dtype(config: &[u8], dtype: DType) -> Result<Cow<'_, [u8]>> {
    let stated = match dtype {
        DType::BF16 => "bfloat16",
        DType::F16 => "float16",
        DType::F32 => "float32",
        DType::F64 => "float64",
        _ => return Ok(Cow::Borrowed(config)),
    };
    let mut json = parsed(CONFIG, config)?;
    let mut is_changed = false;
    for field in DTYPE_FIELDS {
        if let Some(old) = json.get_mut(field)
            && old.as_str().is_some_and(|old| old != stated)
        {
            *old = stated.into();
            is_changed = true;
        }
    }
    if !is_changed {
        return Ok(Cow::Borrowed(config));
    }
    Ok(Cow::Owned(format!("{json:#}\n").into_bytes()))
}

/// Returns whether two contents of `config.json` state the same but for the dtype and the number of
/// positions.
pub(crate) fn is_config_of_one_model(left: &[u8], right: &[u8]) -> bool {
    let compared = |content: &[u8]| {
        let mut json = parsed(CONFIG, content).ok()?;
        let fields = json.as_object_mut()?;
        for field in DTYPE_FIELDS {
            fields.remove(field);
        }
        // Nothing that is computed depends on it.
        fields.remove("max_position_embeddings");
        Some(json)
    };
    match (compared(left), compared(right)) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

fn parsed(name: &str, content: &[u8]) -> Result<Value> {
    serde_json::from_slice(content)
        .map_err(|error| PolicyError::file(name, format!("not JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const F32: &[u8] = br#"{"rope_theta": 10000.0, "dtype": "float32", "torch_dtype": "float32"}"#;

    #[test]
    fn a_config_states_the_dtype_of_the_weights() {
        let written = with_dtype(F32, DType::BF16).unwrap();
        let expected = "{\n  \"rope_theta\": 10000.0,\n  \"dtype\": \"bfloat16\",\n  \
                        \"torch_dtype\": \"bfloat16\"\n}\n";
        assert_eq!(String::from_utf8_lossy(&written), expected);
        let again = with_dtype(&written, DType::BF16).unwrap();
        assert!(matches!(again, Cow::Borrowed(_)) && again == written);
        // Those that state the dtype, or none, keep their layout.
        for config in [F32, br#"{"torch_dtype": null, "vocab_size": 3}"#, b"{}"] {
            assert_eq!(&*with_dtype(config, DType::F32).unwrap(), config);
        }
        assert!(with_dtype(b"{", DType::F32).is_err());
    }

    #[test]
    fn configs_of_one_model_differ_in_the_dtype_alone() {
        let bf16 = with_dtype(F32, DType::BF16).unwrap();
        assert!(is_config_of_one_model(F32, &bf16));
        assert!(is_config_of_one_model(br#"{"rope_theta": 10000.0}"#, &bf16));
        assert!(!is_config_of_one_model(
            br#"{"rope_theta": 20000.0}"#,
            &bf16
        ));
        assert!(!is_config_of_one_model(b"{", &bf16) && is_config_of_one_model(b"{", b"{"));
    }
}
