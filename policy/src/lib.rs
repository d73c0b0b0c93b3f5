//! The policy: one decoder that samples and trains, its weights, tokenizer, chat template and
//! sampling.
//!
//! Invariant: sampler and learner run the same forward pass ([`Decoder`]), and its reductions have
//! a fixed order. So the log-probability that the sampler records for a token is, bit for bit, the
//! one that the learner computes.

mod chat;
pub mod chat_template;
mod config;
mod constraint;
pub mod cuda;
mod decoder;
mod device;
pub mod durable;
pub mod embedded;
mod error;
pub mod gguf;
mod kv_cache;
mod model;
mod model_files;
pub mod ops;
mod packed_rows;
mod page_tables;
mod python_format;
pub mod random;
pub mod regular_file;
pub mod sampling;
pub mod tokenizer;
mod weight_files;
mod weights;

pub use chat::{Chat, ChatRole, Message, ToolCall};
pub use config::{DecoderConfig, Family, RopeScaling};
pub use constraint::{ConstrainedCompletion, Constrainer, Constraint};
pub use decoder::{
    Decoder, DecoderMode, GradientCheckpointing, Gradients, ScoredTokens, TrainingPass,
    check_gradients,
};
pub use device::{DTypeChoice, DeviceChoice, Placement, free_memory, peak_memory, release_memory};
pub use error::{PolicyError, Result};
pub use kv_cache::KvCache;
pub use model::Model;
pub use model_files::TEXT_FILES;
pub use packed_rows::{PackedRow, PackedRows};
pub use random::Coordinates;
pub use sampling::{Sampled, SamplingSettings};
pub use weights::Weights;
