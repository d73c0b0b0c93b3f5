//! The embedded policy: a small Qwen3 with its own tokenizer, kept in `policy/embedded/`, and the
//! training of that tokenizer.
//!
//! Invariant: the text is plain Hermes, as with any Qwen3; only its tokenization is special. The
//! pieces of the format that every episode repeats are one token each, which shortens an episode.
//!
//! `sqlenv pretrain --preset base` made the weights: `docs/pretraining.md`.

mod tokenizer;

use candle_core::{DType, Device};

use crate::error::Result;
use crate::model::Model;
use crate::model_files::ModelFiles;
use crate::weights::Weights;

pub use tokenizer::train_tokenizer;

/// The vocabulary size of the embedded tokenizer, and so the logit columns of the embedded model.
pub const VOCABULARY_SIZE: usize = 1024;

const BASE_WEIGHTS: &[u8] = include_bytes!("../../embedded/model.safetensors");

/// Builds the base policy: the embedded model with its pretrained weights, in f32 on the CPU.
pub fn base() -> Result<Model> {
    let weights = Weights::from_bytes(BASE_WEIGHTS, &Device::Cpu, DType::F32)?;
    Model::from_files(files(), weights)
}

/// Builds the embedded policy with random weights.
pub fn model(seed: u64) -> Result<Model> {
    let files = files();
    let weights = Weights::random(&ModelFiles(&files).config()?, seed)?;
    Model::from_files(files, weights)
}

/// Returns the embedded policy's files by name, all but its weights.
pub fn files() -> Vec<(String, Vec<u8>)> {
    macro_rules! contents {
        ($($name:literal),*) => {
            vec![$((
                $name.to_string(),
                include_bytes!(concat!("../../embedded/", $name)).to_vec(),
            )),*]
        };
    }
    contents!(
        "chat_template.jinja",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json"
    )
}
