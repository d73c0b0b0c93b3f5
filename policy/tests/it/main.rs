//! Tests of the policy as its users see it, in one binary.

#![expect(clippy::unwrap_used, reason = "a test's helpers may fail it")]

mod chat_embedded;
mod chat_model;
mod chat_qwen3;
mod chat_render;
mod chat_tools;
mod common;
mod decoder_bits;
mod decoder_golden;
mod decoder_gradients;
mod decoder_tensor_ops;
mod gguf;
mod logprobs_golden;
mod qwen3_package;
mod sampling_golden;
mod sampling_properties;
mod sampling_tensor_ops;
