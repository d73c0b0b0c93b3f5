//! A model as a Hugging Face folder: config, weights, tokenizer and chat template.
//!
//! Invariant: a model that was opened can be saved and opened again with the same files and the
//! same weights; only the dtype in `config.json` follows that of the weights. A folder that `save`
//! puts in place is complete and on the disk.

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use candle_core::{DType, Device};

use crate::chat::{self, Chat};
use crate::config::DecoderConfig;
use crate::error::{PolicyError, Result};
use crate::model_files::{self, CONFIG, ModelFiles};
use crate::weight_files::{self, check_finite};
use crate::weights::Weights;
use crate::{durable, tokenizer};

/// The description of a model, which `sqlenv` writes into the folders of a run.
const CARD: &str = "README.md";

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
        let files = model_files::read(dir, |_| true)?;
        let in_dir = |error| within(dir, error);
        let config = ModelFiles(&files).config().map_err(in_dir)?;
        let chat = chat_of(&files, &config).map_err(in_dir)?;
        let weights = Weights::load(dir, &config, device, dtype)?;
        Ok(Self {
            config,
            weights,
            chat,
            files,
        })
    }

    /// Reads the architecture of a Hugging Face folder.
    ///
    /// # Errors
    /// [`PolicyError`] names the file that is missing, malformed or unsupported.
    pub fn config_in(dir: &Path) -> Result<DecoderConfig> {
        let files = model_files::read(dir, |name| name == CONFIG)?;
        let config = ModelFiles(&files).config();
        config.map_err(|error| within(dir, error))
    }

    /// Opens a Hugging Face folder, but draws the weights at random. Weights in the folder are not
    /// read.
    ///
    /// # Errors
    /// [`PolicyError`] names the file that is missing, malformed or unsupported.
    pub fn random(dir: &Path, seed: u64) -> Result<Self> {
        let files = model_files::read(dir, |_| true)?;
        let in_dir = |error| within(dir, error);
        let config = ModelFiles(&files).config().map_err(in_dir)?;
        let weights = Weights::random(&config, seed).map_err(in_dir)?;
        Self::from_files(files, weights).map_err(in_dir)
    }

    /// Builds a model of files that are in memory, as an actor receives them from the learner.
    ///
    /// # Errors
    /// [`PolicyError`] names the file or tensor that is missing or does not fit.
    pub fn from_files(files: Vec<(String, Vec<u8>)>, weights: Weights) -> Result<Self> {
        model_files::check_names(&files)?;
        let config = ModelFiles(&files).config()?;
        for (name, tensor) in weights.iter() {
            check_finite(name, tensor)?;
        }
        Ok(Self {
            weights: weights.fitted(&config)?,
            chat: chat_of(&files, &config)?,
            config,
            files,
        })
    }

    /// Returns the model with a chat template that states tools in the system message, and prints
    /// tool calls as they are read. For a model whose own template does not
    /// ([`Chat::prints_tool_calls`]).
    ///
    /// # Errors
    /// [`PolicyError`] names the file that is malformed.
    pub fn with_tools_in_template(mut self) -> Result<Self> {
        let template = chat::with_tools(ModelFiles(&self.files))?;
        chat::replace_template(&mut self.files, template)?;
        self.chat = chat_of(&self.files, &self.config)?;
        Ok(self)
    }

    /// Returns the model with its weights on a device and in a dtype. Weights that are there
    /// already are shared, not copied.
    pub fn to(&self, device: &Device, dtype: DType) -> Result<Self> {
        Ok(Self {
            config: self.config.clone(),
            weights: self.weights.to(device, dtype)?,
            chat: self.chat.clone(),
            files: self.files.clone(),
        })
    }

    /// Returns whether the model has `content` as its file `name`, or no such file if it is absent.
    /// In `config.json` the dtype does not count, because [`Self::save`] writes that of the
    /// weights, and neither does the number of positions, which changes no result.
    pub fn has_file(&self, name: &str, content: Option<&[u8]>) -> bool {
        let own = ModelFiles(&self.files).bytes(name);
        match (own, content) {
            (Some(own), Some(content)) if name == CONFIG => {
                model_files::is_config_of_one_model(own, content)
            }
            _ => own == content,
        }
    }

    /// Checks that [`Self::save`] can write `dir`: it does not exist, it is empty, or it holds a
    /// model and nothing else, which is replaced; and a folder can be made beside it.
    ///
    /// # Errors
    /// `dir` holds something else, which `save` would destroy, or cannot be read or written.
    pub fn check_target(dir: &Path) -> Result<()> {
        Self::check_free(dir)?;
        let temporary = beside(dir, "partial")?;
        let made = durable::remove_folder(&temporary)
            .and_then(|()| fs::create_dir_all(&temporary))
            .and_then(|()| durable::remove_folder(&temporary));
        made.map_err(PolicyError::unwritable(dir))
    }

    fn check_free(dir: &Path) -> Result<()> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(|error| PolicyError::file(dir, error))?,
        };
        let is_model = [CONFIG, weight_files::FILE]
            .iter()
            .all(|name| dir.join(name).is_file());
        let is_of_model =
            |name: &str| [weight_files::FILE, CARD].contains(&name) || model_files::is_known(name);
        for entry in entries {
            let entry = entry.map_err(|error| PolicyError::file(dir, error))?;
            if !is_model {
                let reason =
                    "exists and is no model folder; choose another, so that nothing is lost";
                return Err(PolicyError::file(dir, reason));
            }
            let name = entry.file_name();
            if !name.to_str().is_some_and(is_of_model) {
                let reason = format!(
                    "holds {}, which is no file of a model; choose another folder, or move it \
                     away, so that nothing is lost",
                    name.display()
                );
                return Err(PolicyError::file(dir, reason));
            }
        }
        Ok(())
    }

    /// Writes the folder `dir`, replacing a model in it. The new folder is written and
    /// synced beside `dir` first, so that `dir` is never half a model. A crash between the two
    /// renames leaves the old model beside `dir` as `.NAME.sqlenv-old`.
    ///
    /// The `config.json` states the dtype of the weights, in which transformers loads them.
    ///
    /// # Errors
    /// Those of [`Self::check_target`], or a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<()> {
        Self::check_free(dir)?;
        self.replace(dir)
    }

    /// Writes like [`Self::save`] into a folder that belongs to a run: whatever it holds is
    /// replaced.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn replace(&self, dir: &Path) -> Result<()> {
        let temporary = beside(dir, "partial")?;
        durable::remove_folder(&temporary).map_err(PolicyError::unwritable(&temporary))?;
        if let Err(error) = self.write_files(&temporary) {
            // If it has filled the disk, its room is needed to go on. The first error is reported.
            let _ = durable::remove_folder(&temporary);
            return Err(error);
        }
        durable::replace_folder(dir, &temporary, &beside(dir, "old")?)
            .map_err(PolicyError::unwritable(dir))
    }

    /// Writes all files into a new folder and waits until they are on the disk.
    fn write_files(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).map_err(PolicyError::unwritable(folder))?;
        let dtype = self.weights.dtype();
        for (name, content) in &self.files {
            let path = folder.join(name);
            let content = match dtype {
                Some(dtype) if name == CONFIG => model_files::with_dtype(content, dtype)?,
                _ => Cow::Borrowed(content.as_slice()),
            };
            durable::write(&path, &content).map_err(PolicyError::unwritable(&path))?;
        }
        self.weights.save(folder)
    }
}

impl Chat {
    /// Reads the tokenizer and the chat template of a Hugging Face folder. Its weights are not
    /// read.
    ///
    /// # Errors
    /// [`PolicyError`] names the file that is missing, malformed or unsupported.
    pub fn open(dir: &Path) -> Result<Self> {
        let files = model_files::read(dir, |_| true)?;
        Self::from_files(&files).map_err(|error| within(dir, error))
    }
}

/// Returns the chat among `files`, whose tokens must have rows in the embedding.
fn chat_of(files: &[(String, Vec<u8>)], config: &DecoderConfig) -> Result<Chat> {
    let chat = Chat::from_files(files)?;
    let (tokens, rows) = (chat.vocabulary_size(), config.vocab_size);
    if tokens > rows {
        let reason = format!(
            "has tokens up to id {}, but config.json's vocab_size is {rows}; take both from one \
             model",
            tokens - 1
        );
        return Err(PolicyError::file(tokenizer::FILE, reason));
    }
    Ok(chat)
}

/// Adds the folder to an error about a file.
fn within(dir: &Path, error: PolicyError) -> PolicyError {
    match error {
        PolicyError::File { path, reason } => PolicyError::file(dir.join(path), reason),
        // The field begins with the name of its file.
        PolicyError::Setting { field, reason } => {
            PolicyError::setting(dir.join(field).display(), reason)
        }
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
