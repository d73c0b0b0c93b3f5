//! A model as a Hugging Face folder: config, weights, tokenizer and chat template.
//!
//! Invariant: a model that was opened can be saved and opened again with the same files and the
//! same weights. A folder that `save` puts in place is complete and on the disk.

use std::fs;
use std::path::Path;

use candle_core::{DType, Device};

use crate::chat::Chat;
use crate::config::DecoderConfig;
use crate::durable;
use crate::error::{PolicyError, Result};
use crate::weights::Weights;

const CONFIG_FILE: &str = "config.json";
const WEIGHTS_FILE: &str = "model.safetensors";

/// The files of a folder that belong to the model, besides its weights. All but the config and the
/// tokenizer are optional.
const FILES: [&str; 10] = [
    CONFIG_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "LICENSE",
];

/// A policy's config, weights and text files, without a decoder.
#[derive(Debug, Clone)]
pub struct Model {
    /// The decoder's shape.
    pub config: DecoderConfig,
    /// The parameters.
    pub weights: Weights,
    /// The tokenizer and the chat template.
    pub chat: Chat,
    /// All files but the weights, by name: what an actor needs besides the weights.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Model {
    /// Opens a Hugging Face folder: `config.json`, `tokenizer.json`, a chat template and
    /// safetensors.
    ///
    /// # Errors
    /// [`PolicyError`] names the file that is missing, malformed or unsupported.
    pub fn open(dir: &Path, device: &Device, dtype: DType) -> Result<Self> {
        if !dir.is_dir() {
            let reason = "no such folder; a model folder holds config.json, tokenizer.json and \
                          model.safetensors";
            return Err(PolicyError::file(dir, reason));
        }
        let files = read_files(dir)?;
        let in_dir = |error| within(dir, error);
        let config = config_of(&files).map_err(in_dir)?;
        let chat = Chat::from_files(&files).map_err(in_dir)?;
        let weights = Weights::load(dir, &config, device, dtype)?;
        Ok(Self {
            config,
            weights,
            chat,
            files,
        })
    }

    /// Opens a Hugging Face folder, but draws the weights at random. Weights in the folder are not
    /// read.
    ///
    /// # Errors
    /// [`PolicyError`] names the file that is missing, malformed or unsupported.
    pub fn random(dir: &Path, seed: u64) -> Result<Self> {
        let files = read_files(dir)?;
        let weights = Weights::random(&config_of(&files)?, seed).map_err(|e| within(dir, e))?;
        Self::from_files(files, weights).map_err(|e| within(dir, e))
    }

    /// Builds a model of files that are in memory, as an actor receives them from the learner.
    ///
    /// # Errors
    /// [`PolicyError`] names the file or tensor that is missing or does not fit.
    pub fn from_files(files: Vec<(String, Vec<u8>)>, weights: Weights) -> Result<Self> {
        let config = config_of(&files)?;
        Ok(Self {
            weights: weights.fitted(&config)?,
            config,
            chat: Chat::from_files(&files)?,
            files,
        })
    }

    /// Returns the model with its weights on a device and in a dtype. Weights that are there
    /// already are shared, not copied.
    pub fn to(&self, device: &Device, dtype: DType) -> Result<Self> {
        Ok(Self {
            weights: self.weights.to(device, dtype)?,
            ..self.clone()
        })
    }

    /// Checks that [`Self::save`] may write `dir`: it does not exist, it is empty, or it holds a
    /// model, which is replaced.
    ///
    /// # Errors
    /// `dir` holds something else, which `save` would destroy, or cannot be read.
    pub fn check_target(dir: &Path) -> Result<()> {
        beside(dir, "partial")?;
        let is_model = [CONFIG_FILE, WEIGHTS_FILE]
            .iter()
            .all(|name| dir.join(name).is_file());
        let is_free = is_model
            || match fs::read_dir(dir) {
                Ok(mut entries) => entries.next().is_none(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
                Err(error) => return Err(PolicyError::file(dir, error)),
            };
        if is_free {
            Ok(())
        } else {
            let reason = "exists and is no model folder; choose another, so that nothing is lost";
            Err(PolicyError::file(dir, reason))
        }
    }

    /// Writes the folder `dir`, replacing a model in it. The new folder is written and
    /// synced beside `dir` first, so that `dir` is never half a model. A crash between the two
    /// renames leaves the old model beside `dir` as `.NAME.sqlenv-old`.
    ///
    /// # Errors
    /// Those of [`Self::check_target`], or a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<()> {
        Self::check_target(dir)?;
        let temporary = beside(dir, "partial")?;
        durable::remove_folder(&temporary).map_err(|error| PolicyError::file(&temporary, error))?;
        fs::create_dir_all(&temporary).map_err(|error| PolicyError::file(&temporary, error))?;
        for (name, content) in &self.files {
            let path = temporary.join(name);
            durable::write(&path, content).map_err(|error| PolicyError::file(&path, error))?;
        }
        self.weights.save(&temporary)?;
        durable::replace_folder(dir, &temporary, &beside(dir, "old")?)
            .map_err(|error| PolicyError::file(dir, error))
    }
}

/// Returns the decoder's config among `files`.
pub(crate) fn config_of(files: &[(String, Vec<u8>)]) -> Result<DecoderConfig> {
    let (_, bytes) = files
        .iter()
        .find(|(name, _)| name == CONFIG_FILE)
        .ok_or_else(|| {
            PolicyError::file(
                CONFIG_FILE,
                "missing: a Hugging Face model folder describes its architecture there",
            )
        })?;
    let text = std::str::from_utf8(bytes).map_err(|error| PolicyError::file(CONFIG_FILE, error))?;
    DecoderConfig::from_json(text)
}

fn read_files(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for name in FILES {
        let path = dir.join(name);
        match fs::read(&path) {
            Ok(content) => files.push((name.to_string(), content)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(PolicyError::file(&path, error)),
        }
    }
    Ok(files)
}

/// Adds the folder to an error about a file.
fn within(dir: &Path, error: PolicyError) -> PolicyError {
    match error {
        PolicyError::File { path, reason } => PolicyError::file(dir.join(path), reason),
        PolicyError::Text(reason) => PolicyError::file(dir, reason),
        other => other,
    }
}

fn beside(dir: &Path, suffix: &str) -> Result<std::path::PathBuf> {
    let name = dir
        .file_name()
        .ok_or_else(|| PolicyError::file(dir, "a model is saved into a named folder"))?;
    // Hidden and under the program's name, so that it never holds a user's files.
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".sqlenv-{suffix}"));
    Ok(dir.with_file_name(hidden))
}
