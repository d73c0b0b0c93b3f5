//! The policy: one decoder that samples and trains, its weights, its tokens and its text.
//!
//! Invariant: sampler and learner run the same forward pass ([`Decoder`]) with reductions of fixed order, so the
//! log-probability recorded when a token is sampled is, bit for bit, the one that the learner computes.

mod chat;
mod config;
pub mod cuda;
mod decoder;
mod device;
mod error;
pub mod gguf;
mod kv_cache;
mod model;
pub mod ops;
mod page_tables;
mod python;
pub mod random;
pub mod sampling;
pub mod template;
pub mod tiny;
pub mod tokenizer;
mod weights;

pub use chat::{Chat, Message, Role, ToolCall};
pub use config::{DecoderConfig, Family, RopeScaling};
pub use decoder::{Decoder, Gradients, Keep, PackedRows, Row, Scored, TrainingPass, Use};
pub use device::{DTypeChoice, DeviceChoice, free_memory, peak_memory, release_memory};
pub use error::{PolicyError, Result};
pub use kv_cache::KvCache;
pub use model::Model;
pub use random::Coordinates;
pub use sampling::{Sampled, SamplingSettings};
pub use weights::Weights;
